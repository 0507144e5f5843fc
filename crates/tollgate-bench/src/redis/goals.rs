//! Goals for decisions, relative to other limiters.

use crate::redis::turns::Seen;
use crate::report::Target;

/// Tollgate's store.
pub(crate) const OURS: &str = "Tollgate";

/// Bounds the ratio between two sides' numbers in the same round.
#[derive(Clone, Copy)]
pub(crate) struct Goal {
    pub(crate) of: &'static str,
    pub(crate) what: What,
    pub(crate) against: &'static str,
    pub(crate) target: Target,
}

/// A number that a round measures.
#[derive(Clone, Copy)]
pub(crate) enum What {
    Rate,
    Median,
    P99,
    /// Redis' processor time per decision.
    Redis,
}

impl Goal {
    pub(crate) const fn at_least(what: What, against: &'static str, bound: f64) -> Self {
        Self { of: OURS, what, against, target: Target::AtLeast(bound) }
    }

    pub(crate) const fn at_most(what: What, against: &'static str, bound: f64) -> Self {
        Self { of: OURS, what, against, target: Target::AtMost(bound) }
    }

    /// The same for another side instead of Tollgate's store.
    pub(crate) const fn of(self, of: &'static str) -> Self {
        Self { of, ..self }
    }
}

impl What {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Rate => "decisions per second",
            Self::Median => "median wait",
            Self::P99 => "p99",
            Self::Redis => "Redis' time",
        }
    }

    pub(crate) const fn of(self, seen: &Seen) -> f64 {
        match self {
            Self::Rate => seen.round.rate,
            Self::Median => seen.round.median,
            Self::P99 => seen.round.p99,
            Self::Redis => seen.server,
        }
    }
}
