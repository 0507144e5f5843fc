//! Receipts that were settled, so that none is settled twice.

use std::collections::{HashSet, VecDeque};

use tollgate_core::{Receipt, ReceiptId, Timestamp};

/// Remembers settled receipts as long as they could be settled again, at most
/// `capacity` of them.
#[derive(Debug)]
pub(crate) struct Settled {
    ids: HashSet<ReceiptId>,
    /// In the order of settling, with the instant at which each can be forgotten.
    queue: VecDeque<(Timestamp, ReceiptId)>,
    capacity: usize,
}

impl Settled {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { ids: HashSet::new(), queue: VecDeque::new(), capacity }
    }

    pub(crate) fn contains(&self, id: ReceiptId) -> bool {
        self.ids.contains(&id)
    }

    /// Whether there is room for one more.
    pub(crate) fn has_room(&mut self, now: Timestamp) -> bool {
        while let Some(&(lapses_at, id)) = self.queue.front() {
            if lapses_at > now {
                break;
            }
            self.queue.pop_front();
            self.ids.remove(&id);
        }
        self.ids.len() < self.capacity
    }

    /// Remembers a receipt settled at `now`, until it has lapsed for certain. A charge may
    /// be dated later than now, if the clock has stepped back since; those settled after
    /// it then are remembered a little longer than need be.
    pub(crate) fn insert(&mut self, receipt: &Receipt, now: Timestamp) {
        if self.ids.insert(receipt.id) {
            let from = now.max(receipt.charged.charged_at);
            self.queue.push_back((from + Receipt::LIFETIME, receipt.id));
        }
    }
}
