//! Questions to the store.

use smallvec::SmallVec;
use tollgate_core::{Charge, Cost, Verdict};

use crate::applied::AppliedLimit;
use crate::limit::{Limits, Mode};

/// How to present the charges to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Charge the request.
    Charge,
    /// Only learn the decisions ([`Charge::dry`]).
    Dry,
    /// Only learn the remaining units: the same charges with cost 0.
    Peek,
}

impl Question {
    /// Returns the charges for the store. Shadow limits are only asked to charge: a local fallback
    /// that decides only for them would hide the failure of the others.
    pub fn charges<'a>(
        self,
        limits: &'a Limits,
        applied: &'a [AppliedLimit],
    ) -> SmallVec<[Charge<'a>; 4]> {
        let present = |charge: Charge<'a>| match self {
            Self::Charge => charge,
            Self::Dry => charge.dry(),
            Self::Peek => Charge { cost: Cost::ZERO, ..charge },
        };
        let asked = applied.iter().filter(|applied| self.asks(limits, applied));
        asked.map(|applied| present(limits.charge(applied))).collect()
    }

    fn asks(self, limits: &Limits, applied: &AppliedLimit) -> bool {
        self == Self::Charge || limits.of(applied).mode != Mode::Shadow
    }

    /// Returns the reply with the former decisions of limits that were not asked.
    pub(crate) fn complete(
        self,
        limits: &Limits,
        applied: &[AppliedLimit],
        reply: &Verdict,
    ) -> Verdict {
        let mut decided = reply.decisions().iter().copied();
        let decisions = applied.iter().map(|applied| {
            let reply = if self.asks(limits, applied) { decided.next() } else { None };
            reply.unwrap_or(applied.decision)
        });
        let verdict = Verdict::new(reply.is_admitted(), reply.decided_at(), decisions);
        verdict.with_source(reply.source())
    }
}
