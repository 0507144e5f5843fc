//! Receipts that were settled, so that none is settled twice.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

use tollgate_core::{Receipt, ReceiptId, Timestamp};

/// Remembers settled receipts as long as they could be settled again, at most so many of
/// rates, and as many of what was in flight.
///
/// Without room one of them is forgotten, or a busy service would get nothing back any more:
/// who counts only failures would shut out everybody whose requests succeed.
///
/// Of a rate it is the one that was settled first, and from then on whatever was charged up to
/// that instant has lapsed, unless it is remembered: nothing is settled twice, and what takes
/// long may stay as estimated. What was in flight must come back however long it took: there
/// the receipt goes of which there is the least to fear, the one that lapses first. Were it
/// settled again, it could give back a unit that another request of its key took in the same
/// microsecond.
#[derive(Debug)]
pub(crate) struct Settled {
    of_rates: Receipts,
    in_flight: Receipts,
    /// What was charged to a rate up to this instant is remembered or has lapsed.
    lapsed_to: Option<Timestamp>,
}

/// What becomes of a receipt that is to be settled.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    /// It is remembered: settle it.
    New,
    /// It may be one that was forgotten.
    Lapsed,
    /// None is ever remembered.
    NoRoom,
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
        let [of_rates, in_flight] = [(); 2].map(|()| Receipts::new(capacity));
        Self { of_rates, in_flight, lapsed_to: None }
    }

    pub(crate) fn contains(&self, receipt: &Receipt) -> bool {
        let Self { of_rates, in_flight, .. } = self;
        let receipts = if receipt.policy.is_concurrency() { in_flight } else { of_rates };
        receipts.ids.contains(&receipt.id)
    }

    /// Remembers a receipt settled at `now` that it does not contain, if it can be told from
    /// those that were forgotten.
    pub(crate) fn enter(&mut self, receipt: &Receipt, now: Timestamp) -> Entered {
        if receipt.policy.is_concurrency() {
            self.in_flight.make_room(now);
            self.in_flight.insert(receipt, now);
            return Entered::New;
        }
        let charged_at = receipt.charged.charged_at;
        let has_lapsed = |to: Option<Timestamp>| to.is_some_and(|to| charged_at <= to);
        if self.of_rates.capacity == 0 {
            return Entered::NoRoom;
        }
        if has_lapsed(self.lapsed_to) {
            return Entered::Lapsed;
        }
        if !self.of_rates.has_room(now) {
            // Charged before the first of those that are remembered was settled, it goes itself.
            let first = self.of_rates.first_settled_at();
            if has_lapsed(first) {
                return Entered::Lapsed;
            }
            self.lapsed_to = self.lapsed_to.max(first);
            self.of_rates.forget_first();
        }
        self.of_rates.insert(receipt, now);
        Entered::New
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

    /// When the first receipt of a rate was settled; it was not charged later.
    fn first_settled_at(&self) -> Option<Timestamp> {
        self.queue.peek().map(|Reverse((lapses_at, _))| *lapses_at - Receipt::LIFETIME)
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
            // Those of rates stay in the order in which they were settled, whatever their windows.
            let in_flight = receipt.policy.is_concurrency();
            let lifetime = if in_flight { receipt.lifetime() } else { Receipt::LIFETIME };
            self.queue.push(Reverse((from + lifetime, receipt.id)));
        }
    }
}
