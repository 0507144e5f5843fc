//! A limit that applies to a request.

use tollgate_core::{Cost, Decision, Key};

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
