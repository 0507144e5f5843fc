//! The laws of combinations, for every store in this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tollgate_core::{
    BoxFuture, Charge, Cost, Fallback, Key, Lease, Micros, PenaltyBlock, Policy, Quota, Receipt,
    ReceiptId, Reply, Settlement, Store, StoreError, StoreExt, Timestamp, Verdict,
};
use tollgate_memory::{ManualClock, MemoryStore, ThreadLeases};
use tollgate_store_tests::law::{self, Subject, Timed};
use tollgate_store_tests::law_tests;
use tollgate_store_tests::reference::Reference;

mod reference {
    use super::*;
    law_tests!(Reference::default);
}

fn store() -> (MemoryStore<ManualClock>, ManualClock) {
    let clock = ManualClock::default();
    (MemoryStore::builder().clock(clock.clone()).shards(1).build(), clock)
}

/// Generates methods of [`Subject`] that call the subject in a field.
macro_rules! forward {
    ($field:tt: decide) => {
        fn decide(&mut self, charges: &[Charge<'_>], now: Timestamp) -> Option<Verdict> {
            self.$field.decide(charges, now)
        }
    };
    ($field:tt: settle) => {
        fn settle(
            &mut self,
            receipt: &Receipt,
            actual: Cost,
            now: Timestamp,
        ) -> Option<Settlement> {
            self.$field.settle(receipt, actual, now)
        }
    };
    ($field:tt: renew_and_reset) => {
        fn renew(&mut self, receipt: &Receipt, now: Timestamp) -> Option<Option<Receipt>> {
            self.$field.renew(receipt, now)
        }

        fn reset(&mut self, policy: &Policy, key: &Key, now: Timestamp) -> Option<()> {
            self.$field.reset(policy, key, now)
        }
    };
}

mod memory {
    use super::*;
    law_tests!(|| {
        let (store, clock) = store();
        Timed::new(store, move |now| clock.set(now))
    });
}

/// A full store, in which most keys share an overflow entry per policy. This is less than a quota
/// per key, so it passes laws about what is admitted at most.
struct Full(Timed<Local, SetClocks>);

impl Full {
    fn new() -> Self {
        let clock = ManualClock::default();
        let store = MemoryStore::builder().clock(clock.clone()).shards(1).max_keys(2).build();
        Self(Timed::new(store, Box::new(move |now| clock.set(now))))
    }
}

impl Subject for Full {
    /// Keys in an overflow entry share its time.
    fn steps_back() -> bool {
        false
    }

    /// Enforces all charges: a shadow charge takes no units from an overflow entry that an enforced
    /// charge of the same request uses, even if the keys differ.
    fn decide(&mut self, charges: &[Charge<'_>], now: Timestamp) -> Option<Verdict> {
        let enforced = charges.iter().map(|charge| Charge { enforce: !charge.dry, ..*charge });
        self.0.decide(&enforced.collect::<Vec<_>>(), now)
    }

    /// Charges no debts: in an overflow entry, a debt may count under a version that only other keys
    /// have used.
    fn settle(&mut self, receipt: &Receipt, actual: Cost, now: Timestamp) -> Option<Settlement> {
        self.0.settle(receipt, actual.min(receipt.charged.cost), now)
    }

    forward!(0: renew_and_reset);
}

#[test]
fn full_store_admits_no_more() {
    law::versions_admit_no_more_than_alone(Full::new);
    law::refunds_never_admit_more(Full::new);
}

/// A key that finds room while the overflow entry is in use starts with that entry's state, also with
/// a debt beyond the capacity.
#[test]
fn overflow_debts_remain() {
    let clock = ManualClock::default();
    let store = MemoryStore::builder().clock(clock.clone()).shards(1).max_keys(1).build();
    let policy = Policy::token_bucket("p", Quota::per_second(1).burst(5)).expect("builds");
    let charge = |key: &str| {
        let key = Key::from(key);
        let charges = [Charge::new(&policy, &key, Cost::ONE)];
        let verdict = store.decide(&charges).into_inner().expect("decides");
        let receipt = verdict.receipts(&charges, || ReceiptId(1)).next();
        (verdict.decisions()[0].retry_after(), receipt)
    };
    charge("known");
    let (_, receipt) = charge("in the overflow entry");
    let settled = store.settle(&receipt.expect("admitted"), Cost::new(10)).now();
    let settled = settled.ok().expect("a memory store replies immediately").expect("settles");
    assert_eq!(settled, Settlement::Charged { units: 9 });
    // The bucket of the known key is full again, so its room is free.
    clock.advance(Duration::from_secs(2));
    assert_eq!(charge("new").0, Some(Micros::new(4_000_000)));
    assert_eq!(store.stats().overflowed, 1, "there is room for the new key");
}

mod thread_leases {
    use super::*;
    law_tests!(|| {
        let (store, clock) = store();
        Timed::new(store.with_thread_leases(), move |now| clock.set(now))
    });
}

/// A store with leases for policies that can be leased. It is less exact, so it only passes laws that
/// bound how much it admits.
struct Leased(Timed<ThreadLeases<ManualClock>, SetClocks>);

impl Leased {
    fn new() -> Self {
        let (store, clock) = store();
        Self(Timed::new(store.with_thread_leases(), Box::new(move |now| clock.set(now))))
    }
}

impl Subject for Leased {
    forward!(0: decide);
    forward!(0: settle);
    forward!(0: renew_and_reset);

    fn adapt(policy: Policy) -> Policy {
        let lease = Lease::of(1, 2).ttl(Lease::MIN_TTL);
        policy.clone().with_lease(lease).unwrap_or(policy)
    }

    fn excess(&self, policy: &Policy) -> u64 {
        policy.lease().map_or(0, |lease| lease.units(policy.capacity()))
    }
}

#[test]
fn obeyed_leases_pass() {
    law::obeyed_waits_pass(Leased::new);
}

#[test]
fn leased_versions_are_bounded() {
    law::versions_admit_no_more_than_alone(Leased::new);
    law::smaller_versions_add_nothing(Leased::new);
    law::refunds_never_admit_more(Leased::new);
}

/// A key with a state under one or two versions is charged under another version in the overflow
/// entry. Once this entry is unused, the charge's receipt must not refund units of the key's own states.
#[test]
fn overflow_receipt_keeps_own_units() {
    // A short window starts at time zero.
    let time = |micros: u64| Timestamp::from_micros(60_000_000 + micros);
    let window = |limit, micros| {
        let quota = Quota::new(limit, Duration::from_micros(micros));
        Policy::fixed_window_counter("p", quota).expect("builds")
    };
    let (long, middle, short) = (window(20, 1_000_000), window(10, 1_000_000), window(5, 60));
    for own in [&[&long][..], &[&long, &middle]] {
        let mut full = Full::new();
        let mut charge = |policy: &Policy, key: &str, cost, now| {
            let key = Key::from(key);
            let charges = [Charge::new(policy, &key, Cost::new(cost))];
            let verdict = full.decide(&charges, now).expect("decides");
            let receipt = verdict.receipts(&charges, || ReceiptId(1)).next();
            (verdict.decisions()[0].remaining, receipt)
        };
        // The store has room for two keys.
        charge(&long, "other", 1, time(0));
        for policy in own {
            charge(policy, "known", 1, time(0));
        }
        charge(&short, "new", 1, time(0));
        let (remaining, receipt) = charge(&short, "known", 1, time(1));
        assert_eq!(remaining, 3, "both charges are in the overflow entry");
        let receipt = receipt.expect("a charge");
        let settled = full.settle(&receipt, Cost::ZERO, time(60)).expect("settles");
        assert_eq!(settled, Settlement::Returned { units: 0 });
        let known = Key::from("known");
        let look = [Charge::new(&long, &known, Cost::ZERO)];
        let look = full.decide(&look, time(60)).expect("decides");
        assert_eq!(look.decisions()[0].remaining, 20 - own.len() as u64);
    }
}

/// A receipt's state has expired and was swept, and a smaller version's state was just reset. The
/// receipt's debt counts under its own policy.
#[test]
fn debt_ignores_reset_versions() {
    let (store, clock) = store();
    let mut timed = Timed::new(store, move |now| clock.set(now));
    let log = |limit| Policy::sliding_window_log("p", Quota::per_second(limit)).expect("builds");
    let (large, small) = (log(10), log(1));
    let mut charge = |policy: &Policy, key: &str, seconds: u64| {
        let key = Key::from(key);
        let charges = [Charge::new(policy, &key, Cost::ONE)];
        let now = Timestamp::from_micros(1_000_000 * seconds);
        let verdict = timed.decide(&charges, now).expect("decides");
        verdict.receipts(&charges, || ReceiptId(1)).next().expect("a charge")
    };
    let receipt = charge(&large, "k", 0);
    for other in 0..16 {
        charge(&large, &format!("other {other}"), 10);
    }
    charge(&small, "k", 20);
    let now = Timestamp::from_micros(20_000_000);
    timed.reset(&small, &Key::from("k"), now).expect("resets");
    let settled = timed.settle(&receipt, Cost::new(8), now).expect("settles");
    assert_eq!(settled, Settlement::Charged { units: 7 });
}

/// A store that fails while it is told to.
#[derive(Clone, Debug)]
struct Failing<S>(S, Arc<AtomicBool>);

impl<S: Store> Failing<S> {
    fn or_fail<T, F>(&self, call: impl FnOnce() -> Reply<F>) -> Reply<F>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        if self.1.load(Ordering::Relaxed) {
            return Reply::ready(Err(StoreError::not_charged("failing", "it was told to")));
        }
        call()
    }
}

impl<S: Store> Store for Failing<S> {
    type Future = S::Future;

    fn decide(&self, charges: &[Charge<'_>]) -> Reply<Self::Future> {
        self.or_fail(|| self.0.decide(charges))
    }

    fn settle(&self, receipt: &Receipt, actual: Cost) -> Reply<BoxFuture<Settlement>> {
        self.or_fail(|| self.0.settle(receipt, actual))
    }

    fn renew(&self, receipt: &Receipt) -> Reply<BoxFuture<Option<Receipt>>> {
        self.or_fail(|| self.0.renew(receipt))
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Reply<BoxFuture<()>> {
        self.or_fail(|| self.0.reset(policy, key))
    }

    fn block(
        &self,
        policy: &Policy,
        key: &Key,
        block: PenaltyBlock,
    ) -> Reply<BoxFuture<Option<Micros>>> {
        self.or_fail(|| self.0.block(policy, key, block))
    }
}

type Local = MemoryStore<ManualClock>;
type SetClocks = Box<dyn FnMut(Timestamp)>;

/// A fallback over two stores with the same clock.
struct Falling {
    is_down: Arc<AtomicBool>,
    timed: Timed<Fallback<Failing<Local>, Local>, SetClocks>,
}

impl Falling {
    fn new() -> Self {
        let ((first, first_clock), (local, local_clock)) = (store(), store());
        let is_down = Arc::new(AtomicBool::new(false));
        let fallback = Failing(first, Arc::clone(&is_down)).or_local(local);
        let set_clocks = move |now| {
            first_clock.set(now);
            local_clock.set(now);
        };
        Self { is_down, timed: Timed::new(fallback, Box::new(set_clocks)) }
    }
}

impl Subject for Falling {
    forward!(timed: decide);
    forward!(timed: settle);
    forward!(timed: renew_and_reset);

    fn fail(&mut self, is_down: bool) {
        self.is_down.store(is_down, Ordering::Relaxed);
    }
}

/// During an outage two requests reserve ten units each, and the bucket's local share refills five.
/// The first refund is exact under this share: all ten units are still missing.
#[test]
fn local_charges_are_settled_under_the_share() {
    let mut falling = Falling::new();
    let quota = Quota::new(200, Duration::from_secs(200));
    let bucket = Policy::token_bucket("p", quota).expect("builds");
    let time = |seconds: u64| Timestamp::from_micros(1_000_000 * (60 + seconds));
    falling.fail(true);
    let charges = [Charge::new(&bucket, &Key::GLOBAL, Cost::new(10))];
    let receipts = [1, 2].map(|id| {
        let verdict = falling.decide(&charges, time(0)).expect("the local store decides");
        verdict.receipts(&charges, || ReceiptId(id)).next().expect("a charge")
    });
    let settled = falling.settle(&receipts[1], Cost::ZERO, time(10)).expect("settles");
    assert_eq!(settled, Settlement::Returned { units: 10 });
}

mod fallback {
    use super::*;
    law_tests!(Falling::new);
}
