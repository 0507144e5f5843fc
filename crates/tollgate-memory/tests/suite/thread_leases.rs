//! Leases for threads: how far a limit may be exceeded, and when blocks expire.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use tollgate_core::{
    Charge, Cost, Key, Lease, Micros, Outcome, Policy, Quota, Source, Store, StoreExt, Timestamp,
    Verdict,
};
use tollgate_memory::{Clock, ManualClock, MemoryStore, ThreadLeases};
use tollgate_store_tests::{Harness, store_tests};

struct Leasing(ManualClock);

impl Harness for Leasing {
    type Store = ThreadLeases<ManualClock>;

    async fn start() -> (Self, Self::Store) {
        let (clock, store) = store();
        (Self(clock), store)
    }

    fn advance(&self, span: Micros) -> bool {
        self.0.advance(span);
        true
    }
}

// Without leased policies, it is an exact store.
store_tests!(Leasing);

const WINDOW: Micros = Micros::new(1_000_000);
const LIMIT: u64 = 100;

/// Each thread may hold ten units for half of the window.
fn leased(policy: Policy) -> Policy {
    let lease = Lease::of(1, 10).ttl(Duration::from(WINDOW) / 2);
    policy.with_lease(lease).expect("a policy that can be leased")
}

fn quota() -> Quota {
    Quota::new(LIMIT, Duration::from(WINDOW))
}

fn store() -> (ManualClock, ThreadLeases<ManualClock>) {
    let clock = ManualClock::default();
    (clock.clone(), MemoryStore::builder().clock(clock).build().with_thread_leases())
}

fn decide(store: &impl Store, policy: &Policy, cost: u64) -> Verdict {
    let charge = Charge::new(policy, &Key::GLOBAL, Cost::new(cost));
    let Ok(reply) = store.decide(&[charge]).now() else { panic!("the store replies immediately") };
    reply.expect("a verdict")
}

/// A thread that decides requests for the test.
struct Worker {
    costs: Sender<u64>,
    admitted: Receiver<bool>,
}

impl Worker {
    fn new(store: ThreadLeases<ManualClock>, policy: Policy) -> Self {
        let (costs, to_decide) = channel();
        let (reply, admitted) = channel();
        thread::spawn(move || {
            for cost in to_decide {
                if reply.send(decide(&store, &policy, cost).is_admitted()).is_err() {
                    return;
                }
            }
        });
        Self { costs, admitted }
    }

    fn admits(&self, cost: u64) -> bool {
        self.costs.send(cost).expect("a running thread");
        self.admitted.recv().expect("a running thread")
    }
}

/// A step: which thread requests how many units, and after how much time.
fn steps() -> impl Strategy<Value = Vec<(usize, u64, u64)>> {
    let pause = prop_oneof![4 => Just(0), 4 => 0..20_000_u64, 1 => 0..700_000_u64];
    prop::collection::vec((0..3_usize, 1..4_u64, pause), 1..600)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn excess_is_at_most_the_held_units(steps in steps(), is_log: bool) {
        let policy = if is_log {
            Policy::sliding_window_log("hot", quota())
        } else {
            Policy::token_bucket("hot", quota())
        };
        let policy = leased(policy.unwrap());
        let held = 3 * policy.lease().unwrap().units(LIMIT);
        let (clock, store) = store();
        let workers: Vec<_> =
            (0..3).map(|_| Worker::new(store.clone(), policy.clone())).collect();
        // Admitted units of the last window, and the bucket's level without its bound.
        let mut window = VecDeque::<(Timestamp, u64)>::new();
        let mut missing = 0_u64;
        for (thread, cost, pause) in steps {
            clock.advance(Micros::new(pause));
            missing = missing.saturating_sub(LIMIT * pause);
            let now = clock.now();
            if workers[thread].admits(cost) {
                window.push_back((now, cost));
                missing += cost * WINDOW.get();
            }
            while window.front().is_some_and(|(at, _)| *at + WINDOW <= now) {
                window.pop_front();
            }
            let admitted = window.iter().map(|(_, cost)| cost).sum::<u64>();
            if is_log {
                prop_assert!(admitted <= LIMIT + held, "{admitted} units in a window");
            } else {
                prop_assert!(missing <= (LIMIT + held) * WINDOW.get(), "{missing}");
            }
        }
    }

    /// In a window, at most two blocks of each thread have units that were not spent: a block that
    /// expired, and the block that the thread holds.
    #[test]
    fn unused_units_are_at_most_the_held_units(steps in steps(), threads in 1..=3_usize) {
        let policy = leased(Policy::sliding_window_log("hot", quota()).unwrap());
        let unused = 2 * threads as u64 * policy.lease().unwrap().units(LIMIT);
        let (clock, store) = store();
        let workers: Vec<_> =
            (0..threads).map(|_| Worker::new(store.clone(), policy.clone())).collect();
        let mut window = VecDeque::<(Timestamp, u64)>::new();
        for (thread, cost, pause) in steps {
            clock.advance(Micros::new(pause));
            let now = clock.now();
            while window.front().is_some_and(|(at, _)| *at + WINDOW <= now) {
                window.pop_front();
            }
            let admitted = window.iter().map(|(_, cost)| cost).sum::<u64>();
            if workers[thread % threads].admits(cost) {
                window.push_back((now, cost));
            } else {
                prop_assert!(admitted + cost + unused > LIMIT, "{admitted} units in a window");
            }
        }
        // After a quiet window, another thread may use the entire limit.
        clock.advance(WINDOW);
        let other = Worker::new(store, policy);
        prop_assert_eq!((0..2 * LIMIT).filter(|_| other.admits(1)).count() as u64, LIMIT);
    }
}

/// Decides single units until the thread has spent a unit from a block.
fn hold(store: &impl Store, policy: &Policy) {
    let held = (0..LIMIT).any(|_| decide(store, policy, 1).source() == Source::Lease);
    assert!(held, "the thread takes no block");
}

#[test]
fn block_expires() {
    let policy = leased(Policy::token_bucket("hot", quota()).unwrap());
    let (clock, store) = store();
    // Blocks of 1, 2 and 4 units: three units remain.
    for _ in 0..4 {
        decide(&store, &policy, 1);
    }
    for (pause, source) in [(WINDOW.get() / 2, Source::Lease), (1, Source::Store)] {
        clock.advance(Micros::new(pause));
        assert_eq!(decide(&store, &policy, 1).source(), source);
    }
}

#[test]
fn busy_thread_rarely_needs_the_store() {
    let policy = leased(Policy::token_bucket("hot", quota()).unwrap());
    let (_clock, store) = store();
    // Blocks of 1, 2, 4 and 8 units, and then of 10 units.
    let (units, blocks) = (15 + 50, 4 + 5);
    let by_store = (0..units).filter(|_| decide(&store, &policy, 1).source() == Source::Store);
    assert_eq!(by_store.count(), blocks);
}

#[test]
fn reset_ends_blocks_of_all_threads() {
    let policy = leased(Policy::token_bucket("hot", quota()).unwrap());
    let (_clock, store) = store();
    let other = thread::scope(|scope| {
        scope.spawn(|| hold(&store, &policy)).join().unwrap();
        hold(&store, &policy);
        let Ok(Ok(())) = store.reset(&policy, &Key::GLOBAL).now() else { panic!("no reset") };
        decide(&store, &policy, 1)
    });
    assert_eq!(other.source(), Source::Store);
    let Ok(Ok(peeked)) = store.peek(&policy, &Key::GLOBAL).now() else { panic!("no verdict") };
    assert_eq!(peeked.decisions()[0].remaining, LIMIT - 1);
}

#[test]
fn numbers_of_a_block_follow_its_units() {
    let policy = leased(Policy::token_bucket("hot", quota()).unwrap());
    let (_clock, store) = store();
    for spent in 1..=LIMIT {
        let verdict = decide(&store, &policy, 1);
        assert_eq!(
            (verdict.is_admitted(), verdict.decisions()[0].remaining),
            (true, LIMIT - spent)
        );
    }
    assert!(!decide(&store, &policy, 1).is_admitted());
}

#[test]
fn replaced_blocks_lose_no_units() {
    let policy = leased(Policy::sliding_window_log("hot", quota()).unwrap());
    let (_clock, store) = store();
    let admitted = (0..LIMIT).filter(|_| decide(&store, &policy, 6).is_admitted()).count();
    assert_eq!(admitted, 16);
}

#[test]
fn blocks_admit_no_cost_above_the_capacity() {
    let policy = leased(Policy::token_bucket("hot", quota()).unwrap());
    let (_clock, store) = store();
    hold(&store, &policy);
    let denial = decide(&store, &policy, LIMIT + 1).decisions()[0].outcome;
    assert_eq!(denial, Outcome::ExceedsCapacity);
}
