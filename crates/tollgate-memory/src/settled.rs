//! Remembers settled receipts, so each receipt is settled at most once.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

use tollgate_core::{Receipt, ReceiptId, Timestamp};

/// Remembers each settled receipt until it lapses, up to `capacity` receipts for rate limits and as
/// many for concurrency limits.
///
/// When the capacity is reached, the store forgets a receipt rather than reject new settlements.
/// Otherwise a busy service would get no refunds, and a policy that counts only failures would deny
/// clients although their requests succeed.
///
/// For rate limits, the store forgets the receipt that was settled first. From then on, receipts
/// for charges up to that instant count as lapsed. So receipts are never settled twice, but a slow
/// request may be charged its estimated cost.
///
/// A permit must be returned however long its request took. For concurrency limits, the store
/// therefore forgets the receipt that lapses first, and no receipt counts as lapsed. If a caller
/// settles the forgotten receipt again, the store may return a permit that another request for the
/// same key took in the same microsecond.
#[derive(Debug)]
pub(crate) struct Settled {
    of_rates: Receipts,
    in_flight: Receipts,
    /// Rate limit receipts charged up to this instant are remembered or count as lapsed.
    lapsed_to: Option<Timestamp>,
}

/// The result of entering a receipt.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    /// The receipt is new and may be settled.
    New,
    /// The receipt counts as lapsed, because it may have been settled and forgotten.
    Lapsed,
    /// The capacity is 0.
    NoRoom,
}

#[derive(Debug)]
struct Receipts {
    ids: HashSet<ReceiptId>,
    /// Ordered by the instant at which each receipt can be forgotten.
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

    /// Remembers a receipt that is settled at `now`. The caller must have checked that the receipt
    /// is not remembered yet.
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
            // Reject a receipt charged before the first remembered settlement, because it may have
            // been settled even earlier, and forgotten.
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

    /// Removes lapsed receipts and returns whether there is room for another.
    fn has_room(&mut self, now: Timestamp) -> bool {
        while self.queue.peek().is_some_and(|Reverse((lapses_at, _))| *lapses_at <= now) {
            self.forget_first();
        }
        self.ids.len() < self.capacity
    }

    /// When the first remembered rate limit receipt was settled. It was charged at that time or
    /// earlier.
    fn first_settled_at(&self) -> Option<Timestamp> {
        self.queue.peek().map(|Reverse((lapses_at, _))| *lapses_at - Receipt::LIFETIME)
    }

    /// Makes room for another receipt, unless the capacity is 0.
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

    /// Remembers a receipt settled at `now` until it has certainly lapsed. If the clock has stepped
    /// back, the charge may be dated later than `now`. Receipts settled after it are then
    /// remembered slightly longer than necessary.
    fn insert(&mut self, receipt: &Receipt, now: Timestamp) {
        if self.capacity > 0 && self.ids.insert(receipt.id) {
            let from = now.max(receipt.charged.charged_at);
            // Rate limits all use the same lifetime, which preserves the order of settlement in the
            // queue.
            let in_flight = receipt.policy.is_concurrency();
            let lifetime = if in_flight { receipt.lifetime() } else { Receipt::LIFETIME };
            self.queue.push(Reverse((from + lifetime, receipt.id)));
        }
    }
}
