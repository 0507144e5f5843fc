//! Receipts that were settled, so that none is settled twice.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

use tollgate_core::{Receipt, ReceiptId, Timestamp};

/// Remembers settled receipts as long as they could be settled again, at most
/// `capacity` of them.
#[derive(Debug)]
pub(crate) struct Settled {
    ids: HashSet<ReceiptId>,
    /// By the instant at which each can be forgotten: what was in flight soon, others after
    /// an hour.
    queue: BinaryHeap<Reverse<(Timestamp, ReceiptId)>>,
    capacity: usize,
}

impl Settled {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { ids: HashSet::new(), queue: BinaryHeap::new(), capacity }
    }

    pub(crate) fn contains(&self, id: ReceiptId) -> bool {
        self.ids.contains(&id)
    }

    /// Whether there is room for one more.
    pub(crate) fn has_room(&mut self, now: Timestamp) -> bool {
        while let Some(&Reverse((lapses_at, id))) = self.queue.peek() {
            if lapses_at > now {
                break;
            }
            self.queue.pop();
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
            self.queue.push(Reverse((from + receipt.lifetime(), receipt.id)));
        }
    }
}
