//! Threads that share a store, replayed through the reference.
//!
//! Each clock reading is different, and the store reads its clock under the locks of a request's
//! keys. So the readings order the operations of all threads, and the reference must return the
//! same results in this order. The test stops at the first difference.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use tollgate_core::{
    Charge, Cost, Key, Policy, Quota, Receipt, ReceiptId, Settlement, Store, Timestamp, Verdict,
};
use tollgate_memory::{Clock, MemoryStore};
use tollgate_store_tests::checks::traces::without_refunds;
use tollgate_store_tests::reference::Reference;
use tollgate_store_tests::{is_long, seeds};

use crate::now;

/// A clock that advances with each reading, and remembers each thread's last reading.
#[derive(Clone, Debug, Default)]
struct Ticking(Arc<AtomicU64>);

thread_local! {
    static LAST: Cell<Timestamp> = const { Cell::new(Timestamp::EPOCH) };
}

impl Clock for Ticking {
    fn now(&self) -> Timestamp {
        let step = 1 + self.0.load(Ordering::Relaxed) % 7;
        let now = Timestamp::from_micros(self.0.fetch_add(step, Ordering::SeqCst) + step);
        LAST.set(now);
        now
    }
}

/// An operation and its result.
#[derive(Debug)]
enum Event {
    /// With the receipts' IDs.
    Decided(Vec<(Policy, Key, Cost, bool)>, Verdict, Vec<ReceiptId>),
    Settled(Receipt, Cost, Settlement),
    Renewed(Receipt, Option<Receipt>),
    Reset(Policy, Key),
}

const THREADS: u64 = 4;

#[test]
fn racing_threads_decide_in_some_order() {
    for seed in seeds(if is_long() { 400 } else { 8 }) {
        let mut rng = Rng::with_seed(seed);
        let store = MemoryStore::builder().clock(Ticking::default()).build();
        let policies = policies(&mut rng);
        let rngs: Vec<_> = (0..THREADS).map(|_| rng.fork()).collect();
        let mut events = thread::scope(|scope| {
            let threads = rngs.into_iter().zip(1..).map(|(rng, number)| {
                let (store, policies) = (store.clone(), &policies);
                scope.spawn(move || operations(&store, policies, rng, number << 32))
            });
            let threads: Vec<_> = threads.collect();
            threads.into_iter().flat_map(|it| it.join().expect("no panic")).collect::<Vec<_>>()
        });
        events.sort_by_key(|(at, _)| *at);
        let (mut reference, mut refunded) = (Reference::default(), HashMap::new());
        for (number, (at, event)) in events.iter().enumerate() {
            replay(
                &mut reference,
                &mut refunded,
                *at,
                event,
                &format!("seed {seed}, operation {number}"),
            );
        }
    }
}

fn operations(
    store: &MemoryStore<Ticking>,
    policies: &[Policy],
    mut rng: Rng,
    mut id: u128,
) -> Vec<(Timestamp, Event)> {
    let (mut events, mut receipts) = (Vec::new(), Vec::<Receipt>::new());
    for _ in 0..2_000 {
        let event = match rng.u8(..10) {
            kind @ 0..3 if !receipts.is_empty() => {
                let index = rng.usize(..receipts.len());
                let receipt = receipts[index].clone();
                if receipt.policy.is_concurrency() && kind == 0 {
                    let renewed = now(store.renew(&receipt)).expect("a permit");
                    receipts[index] = renewed.clone().unwrap_or_else(|| receipt.clone());
                    Event::Renewed(receipt, renewed)
                } else {
                    if kind > 0 {
                        receipts.swap_remove(index);
                    }
                    let actual = Cost::new(rng.u64(..8));
                    let settled = now(store.settle(&receipt, actual)).expect("has room");
                    Event::Settled(receipt, actual, settled)
                }
            }
            3 if rng.u8(..8) == 0 => {
                let (policy, key) = (rng.choice(policies).expect("a policy"), key(&mut rng));
                now(store.reset(policy, &key)).expect("a reset cannot fail");
                Event::Reset(policy.clone(), key)
            }
            _ => {
                let first = rng.usize(..policies.len());
                let chosen = policies.iter().cycle().skip(first).take(rng.usize(1..=3));
                let asked: Vec<_> = chosen
                    .map(|policy| {
                        (policy.clone(), key(&mut rng), Cost::new(rng.u64(..5)), rng.u8(..6) > 0)
                    })
                    .collect();
                let charges = charges(&asked);
                let verdict = store.decide(&charges).into_inner().expect("valid charges");
                let new = verdict.receipts(&charges, || {
                    id += 1;
                    ReceiptId(id)
                });
                let new: Vec<_> = new.collect();
                let ids = new.iter().map(|receipt| receipt.id).collect();
                receipts.extend(new);
                Event::Decided(asked, verdict, ids)
            }
        };
        events.push((LAST.get(), event));
    }
    events
}

/// `refunded` has the reference's counts of refunded units in each receipt.
fn replay(
    reference: &mut Reference,
    refunded: &mut HashMap<ReceiptId, u64>,
    at: Timestamp,
    event: &Event,
    place: &str,
) {
    match event {
        Event::Decided(asked, verdict, ids) => {
            let charges = charges(asked);
            let expected = reference.decide(&charges, at);
            let (shown, same) = (without_refunds(verdict), without_refunds(&expected));
            assert_eq!(shown, same, "{place}: {asked:#?}");
            let mut ids = ids.iter().copied();
            let receipts = expected.receipts(&charges, || ids.next().expect("as many receipts"));
            refunded.extend(receipts.map(|receipt| (receipt.id, receipt.charged.refunded)));
        }
        Event::Settled(receipt, actual, settled) => {
            let mut known = receipt.clone();
            known.charged.refunded = refunded[&receipt.id];
            let expected = reference.settle(&known, *actual, at);
            assert_eq!(*settled, expected, "{place}: {receipt:?} to {actual:?}");
        }
        Event::Renewed(receipt, renewed) => {
            assert_eq!(*renewed, reference.renew(receipt, at), "{place}: {receipt:?}");
        }
        Event::Reset(policy, key) => reference.reset(policy, key, at),
    }
}

fn charges(asked: &[(Policy, Key, Cost, bool)]) -> Vec<Charge<'_>> {
    let charges = asked.iter().map(|(policy, key, cost, is_enforced)| {
        let charge = Charge::new(policy, key, *cost);
        if *is_enforced { charge } else { charge.shadow() }
    });
    charges.collect()
}

/// Windows in which the threads make tens to thousands of operations.
fn policies(rng: &mut Rng) -> Vec<Policy> {
    let mut quota = || Quota::new(rng.u64(2..40), Duration::from_micros(rng.u64(100..20_000)));
    let policies = [
        Policy::sliding_window_log("log", quota()),
        Policy::fixed_window_counter("fixed", quota()),
        Policy::sliding_window_counter("counter", quota()),
        Policy::token_bucket("bucket", Quota::new(20, Duration::from_millis(5))),
        Policy::concurrent_requests("permits", 9, Duration::from_millis(5)),
    ];
    policies.into_iter().map(|policy| policy.expect("builds")).collect()
}

fn key(rng: &mut Rng) -> Key {
    Key::from(["", "a", "a key that is not kept inline"][rng.usize(..3)])
}
