//! The layer's view of a request: a row for each limit that applies, filled in step by step.

use std::ops::{Deref, DerefMut};

use smallvec::SmallVec;
use tollgate_core::{Source, StoreError, Timestamp, Verdict};

use super::extras::FollowUp;
use super::row::Row;

/// The limits that apply to a request, with the store's decisions after `judge`. Once the request
/// has passed, only the rows that its response needs: none if the store failed, or if the response
/// shows nothing.
#[derive(Default)]
pub(super) struct Rows {
    /// Most layers have one limit.
    list: SmallVec<[Row; 1]>,
    pub(super) decided_at: Timestamp,
    pub(super) source: Source,
    /// State for a request that passed. Most requests have none.
    pub(super) follow_up: Option<Box<FollowUp>>,
}

impl Rows {
    /// Adds a row. A layer with `limits` limits needs at most as many rows.
    #[inline]
    pub(super) fn push(&mut self, row: Row, limits: usize) {
        if self.list.is_empty() {
            self.list.reserve(limits);
        }
        self.list.push(row);
    }

    pub(super) fn clear(&mut self) {
        self.list.clear();
    }

    #[inline]
    pub(super) fn fill_in(&mut self, verdict: &Verdict) {
        for (row, decision) in self.list.iter_mut().zip(verdict.decisions()) {
            row.decision = *decision;
        }
        (self.decided_at, self.source) = (verdict.decided_at(), verdict.source());
    }

    /// Rebuilds the verdict of an admitted request, for callers that need a verdict.
    pub(super) fn verdict(&self) -> Verdict {
        let decisions = self.list.iter().map(|row| row.decision);
        Verdict::new(true, self.decided_at, decisions).with_source(self.source)
    }
}

impl Deref for Rows {
    type Target = [Row];

    #[inline]
    fn deref(&self) -> &[Row] {
        &self.list
    }
}

impl DerefMut for Rows {
    fn deref_mut(&mut self) -> &mut [Row] {
        &mut self.list
    }
}

/// Why the layer rejects a request after the store replied.
pub(super) enum Rejection {
    Denied,
    /// The store could not decide, and a policy fails closed.
    Undecided(StoreError),
}
