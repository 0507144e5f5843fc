//! The layer's view of a request: a row for each limit that applies, filled in step by step.

use smallvec::SmallVec;
use tollgate_core::{Cost, Decision, Key, Source, StoreError, Timestamp, Verdict};

use crate::key::SubjectKind;

/// A tier's number in `Tiers`. The last number means no tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TierIndex(pub(super) u8);

impl Default for TierIndex {
    fn default() -> Self {
        Self(u8::MAX)
    }
}

/// A limit that applies to a request: the charge and its decision.
#[derive(Clone)]
pub(super) struct Row {
    /// The limit's number in the layer.
    pub(super) limit: u8,
    pub(super) tier: TierIndex,
    pub(super) kind: SubjectKind,
    pub(super) key: Key,
    pub(super) cost: Cost,
    /// Undecided until the store replies.
    pub(super) decision: Decision,
}

/// Most layers have one limit.
pub(super) type Rows = SmallVec<[Row; 1]>;

/// A request's rows with the store's decisions.
pub(super) struct Decided {
    pub(super) rows: Rows,
    pub(super) at: Timestamp,
    pub(super) source: Source,
}

impl Decided {
    #[inline]
    pub(super) fn new(mut rows: Rows, verdict: &Verdict) -> Self {
        for (row, decision) in rows.iter_mut().zip(verdict.decisions()) {
            row.decision = *decision;
        }
        Self { rows, at: verdict.decided_at(), source: verdict.source() }
    }

    /// Rebuilds the verdict of an admitted request, for callers that need a verdict.
    pub(super) fn verdict(&self) -> Verdict {
        let decisions = self.rows.iter().map(|row| row.decision);
        Verdict::new(true, self.at, decisions).with_source(self.source)
    }
}

/// Why the layer rejects a request after the store replied.
pub(super) enum Rejection {
    Denied(Decided),
    /// The store could not decide, and a policy fails closed.
    Undecided(Rows, StoreError),
}
