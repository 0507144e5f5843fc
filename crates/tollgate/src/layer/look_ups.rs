//! Look-ups of clients' quotas that a request waits for.

use std::pin::Pin;

use crate::tier::lookup::{Answer, PendingAnswer};

/// A request's look-ups, by limit number. Most requests need no look-up, because the results are
/// cached, so they only move an empty box.
#[derive(Default)]
pub(super) struct LookUps {
    answers: Vec<(u8, Answer)>,
    pending: Vec<(u8, PendingAnswer)>,
}

/// Resolves when all results are known.
pub(super) type WaitingLookUps = Pin<Box<dyn Future<Output = Box<LookUps>> + Send>>;

impl LookUps {
    /// Returns the result for the limit with this number, if the request has waited for it. It is
    /// used even if it is no longer in the cache.
    pub(super) fn answer(&self, limit: u8) -> Option<&Answer> {
        let answer = self.answers.iter().find(|(number, _)| *number == limit);
        answer.map(|(_, answer)| answer)
    }

    pub(super) fn push(&mut self, limit: u8, pending: PendingAnswer) {
        self.pending.push((limit, pending));
    }

    pub(super) const fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    pub(super) fn wait(mut self: Box<Self>) -> WaitingLookUps {
        Box::pin(async move {
            for (limit, pending) in std::mem::take(&mut self.pending) {
                self.answers.push((limit, pending.wait().await));
            }
            self
        })
    }
}
