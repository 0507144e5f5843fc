//! An open block, a closed block, and blocks on their way back to Redis.

use smallvec::SmallVec;
use tollgate_core::{Micros, Timestamp};

use crate::clock::{Moment, Span};
use crate::script::encode::Spent;

/// Units that this replica may spend before a deadline.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct Block {
    pub(super) id: u64,
    pub(super) units: u64,
    pub(super) left: u64,
    pub(super) span: Span,
    /// When its units became spendable: when the previous block was used up.
    pub(super) in_use_since: Moment,
    pub(super) granted_at: Timestamp,
    /// The units that remained in Redis after the grant, and the time until the key was fresh.
    pub(super) remaining: u64,
    pub(super) reset_after: Micros,
}

/// A closed block's spent units, for the report to Redis.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(test, derive(Hash))]
pub(super) struct Closed {
    pub(super) spent: Spent,
    pub(super) units: u64,
    pub(super) span: Span,
}

/// Blocks on their way back to Redis.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(crate) struct Returned(pub(super) SmallVec<[Closed; 2]>);

impl Block {
    pub(super) fn retires(&self) -> Moment {
        retires(self.span)
    }
}

impl Closed {
    pub(super) fn retires(&self) -> Moment {
        retires(self.span)
    }
}

impl Returned {
    pub(crate) fn spent(&self) -> SmallVec<[Spent; 2]> {
        self.0.iter().map(|closed| closed.spent).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// When to return a block's remaining units. The last quarter suffices for the call and a second
/// attempt.
const fn retires(Span { start, lapses, .. }: Span) -> Moment {
    lapses.saturating_sub(lapses.saturating_sub(start) / 4)
}
