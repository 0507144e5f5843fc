//! Receipts that were settled, so that none is settled twice.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

use tollgate_core::{Receipt, ReceiptId, Timestamp};

/// Remembers settled receipts as long as they could be settled again, at most so many of
/// rates, and as many of what was in flight.
///
/// Without room one of a rate is not settled, and its charge stands. What was in flight must
/// come back all the same, or a busy service would shut itself out: the receipt of which there
/// is the least to fear is forgotten instead, the one that lapses first. Were it settled again,
/// it could give back a unit that another request of its key took in the same microsecond.
#[derive(Debug)]
pub(crate) struct Settled {
    of_rates: Receipts,
    in_flight: Receipts,
}

#[derive(Debug)]
struct Receipts {
    ids: HashSet<ReceiptId>,
    /// By the instant at which each can be forgotten.
    queue: BinaryHeap<Reverse<(Timestamp, ReceiptId)>>,
    capacity: usize,
}

impl Settled {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { of_rates: Receipts::new(capacity), in_flight: Receipts::new(capacity) }
    }

    pub(crate) fn contains(&self, receipt: &Receipt) -> bool {
        let Self { of_rates, in_flight } = self;
        let receipts = if receipt.policy.counts_in_flight() { in_flight } else { of_rates };
        receipts.ids.contains(&receipt.id)
    }

    /// Remembers a receipt settled at `now`, and says whether there was room.
    pub(crate) fn insert(&mut self, receipt: &Receipt, now: Timestamp) -> bool {
        if receipt.policy.counts_in_flight() {
            self.in_flight.make_room(now);
            self.in_flight.insert(receipt, now);
            return true;
        }
        let has_room = self.of_rates.has_room(now);
        if has_room {
            self.of_rates.insert(receipt, now);
        }
        has_room
    }
}

impl Receipts {
    fn new(capacity: usize) -> Self {
        Self { ids: HashSet::new(), queue: BinaryHeap::new(), capacity }
    }

    /// Whether there is room for one more.
    fn has_room(&mut self, now: Timestamp) -> bool {
        while self.queue.peek().is_some_and(|Reverse((lapses_at, _))| *lapses_at <= now) {
            self.forget_first();
        }
        self.ids.len() < self.capacity
    }

    /// Makes room for one more, unless there is none at all.
    fn make_room(&mut self, now: Timestamp) {
        if !self.has_room(now) {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        if let Some(Reverse((_, id))) = self.queue.pop() {
            self.ids.remove(&id);
        }
    }

    /// Remembers a receipt settled at `now`, until it has lapsed for certain. A charge may
    /// be dated later than now, if the clock has stepped back since; those settled after
    /// it then are remembered a little longer than need be.
    fn insert(&mut self, receipt: &Receipt, now: Timestamp) {
        if self.capacity > 0 && self.ids.insert(receipt.id) {
            let from = now.max(receipt.charged.charged_at);
            self.queue.push(Reverse((from + receipt.lifetime(), receipt.id)));
        }
    }
}
