//! The store's bounds under a flood of keys.

mod penalties;
mod receipts;

use std::time::Duration;

use proptest::prelude::*;
use tollgate_core::{
    Algorithm, Charge, Cost, Decision, Key, Micros, Policy, Quota, ReceiptId, Store, StoreExt,
};
use tollgate_memory::{ManualClock, MemoryStore, MemoryStoreBuilder};

use crate::now;

fn charge(store: &MemoryStore<ManualClock>, policy: &Policy, key: &Key, cost: u64) -> Decision {
    let verdict = store.charge(policy, key, Cost::new(cost)).into_inner();
    verdict.expect("a memory store decides").decisions()[0]
}

fn numbered(n: u64) -> Key {
    Key::new(n.to_be_bytes())
}

fn build(
    bounds: impl FnOnce(MemoryStoreBuilder) -> MemoryStoreBuilder,
) -> (MemoryStore<ManualClock>, ManualClock) {
    let clock = ManualClock::default();
    (bounds(MemoryStore::builder()).clock(clock.clone()).build(), clock)
}

fn per_minute(limit: u64) -> Policy {
    Policy::fixed_window_counter("p", Quota::per_minute(limit)).expect("builds")
}

#[test]
fn key_flood_evicts_no_live_key() {
    const MAX: usize = 10_000;
    let (store, _clock) = build(|store| store.max_keys(MAX));
    let policy = per_minute(5);
    let victims: Vec<Key> = (0..100).map(numbered).collect();
    for victim in &victims {
        assert!(charge(&store, &policy, victim, 4).allows());
    }
    for n in 1_000..(20 * MAX as u64) {
        charge(&store, &policy, &numbered(n), 1);
    }
    let stats = store.stats();
    assert!(stats.keys <= MAX, "{stats:?}");
    assert!(stats.overflowed > 18 * MAX as u64, "{stats:?}");
    for victim in &victims {
        assert_eq!(charge(&store, &policy, victim, 0).remaining, 1);
    }
}

#[test]
fn overflow_keys_share_one_quota() {
    let (store, _clock) = build(|store| store.max_keys(8));
    let policies =
        [per_minute(5), Policy::token_bucket("q", Quota::per_minute(7)).expect("builds")];
    for n in 0..8 {
        charge(&store, &policies[0], &numbered(n), 1);
    }
    for (policy, limit) in policies.iter().zip([5, 7]) {
        let admitted = (100..200).filter(|&n| charge(&store, policy, &numbered(n), 1).allows());
        assert_eq!(admitted.count(), limit, "{policy}");
    }
}

#[test]
fn leaving_overflow_entry_grants_no_quota() {
    let (store, clock) = build(|store| store.max_keys(8));
    let policy = Policy::sliding_window_log("p", Quota::per_minute(5)).expect("builds");
    for n in 0..8 {
        charge(&store, &policy, &numbered(n), 1);
    }
    clock.advance(Micros::new(30_000_000));
    let late = numbered(99);
    for _ in 0..5 {
        assert!(charge(&store, &policy, &late, 1).allows());
    }
    // The first eight keys have aged out, so there is room, but the five units still count.
    clock.advance(Micros::new(30_000_000));
    assert!(charge(&store, &policy, &late, 1).denies());
    clock.advance(Micros::new(30_000_000));
    assert_eq!(charge(&store, &policy, &late, 0).remaining, 5);
}

/// A key that finds room while the overflow entry is live continues its whole state.
#[test]
fn leaving_overflow_entry_keeps_debts() {
    for algorithm in Algorithm::ALL {
        let (store, clock) = build(|store| store.shards(1).max_keys(1));
        let policy = Policy::new("p", Quota::per_minute(3), algorithm).expect("builds");
        let short = Quota::new(1, Duration::from_secs(1));
        let other = Policy::fixed_window_counter("other", short).expect("builds");
        charge(&store, &other, &numbered(0), 1);
        let key = numbered(1);
        let charges = [Charge::new(&policy, &key, Cost::ONE)];
        let verdict = store.decide(&charges).into_inner().expect("decides");
        let receipt = verdict.receipts(&charges, || ReceiptId(1)).next().expect("a charge");
        now(store.settle(&receipt, Cost::new(100))).expect("settles");
        let before = charge(&store, &policy, &key, 1).retry_after().expect("a debt");
        assert_eq!(store.stats().overflowed, 2);
        let second = Micros::new(1_000_000);
        clock.advance(second);
        let after = charge(&store, &policy, &key, 1).retry_after().expect("a debt");
        assert_eq!(store.stats().overflowed, 2, "the key has room");
        assert_eq!(after.get() + second.get(), before.get(), "{algorithm:?}");
    }
}

/// A known key without room for another version's state is charged in the overflow entry. It stays
/// there when it finds room.
#[test]
fn known_key_stays_in_overflow_entry() {
    let (store, clock) = build(|store| store.shards(1).max_bytes(10_000));
    let small = Policy::fixed_window_counter("p", Quota::per_day(9)).expect("builds");
    let log = Policy::sliding_window_log("p", Quota::per_day(9)).expect("builds");
    let key = numbered(0);
    charge(&store, &small, &key, 1);
    for n in 1.. {
        let filler = Policy::sliding_window_log(format!("{n}"), Quota::per_minute(9));
        charge(&store, &filler.expect("builds"), &key, 1);
        if store.stats().overflowed > 0 {
            break;
        }
    }
    let before = store.stats().overflowed;
    assert_eq!(charge(&store, &log, &key, 8).remaining, 1);
    assert_eq!(store.stats().overflowed, before + 1, "no room for the log");
    clock.advance(Micros::new(120_000_000));
    let elsewhere = Policy::sliding_window_log("q", Quota::per_day(9)).expect("builds");
    // Each request removes a few expired keys.
    for cost in [0; 50].into_iter().chain([1]) {
        charge(&store, &elsewhere, &key, cost);
    }
    assert_eq!(store.stats().overflowed, before + 1, "there is room for another log");
    assert_eq!(charge(&store, &log, &key, 0).remaining, 1);
    assert_eq!(charge(&store, &small, &key, 0).remaining, 8, "each version counts its own charges");
}

#[test]
fn last_place_is_taken_once() {
    let (store, _clock) = build(|store| store.max_keys(1));
    let policy = per_minute(1);
    let (a, b, c) = (numbered(1), numbered(2), numbered(3));
    let pair = |x, y| {
        let charges = [Charge::new(&policy, x, Cost::ONE), Charge::new(&policy, y, Cost::ONE)];
        store.decide(&charges).into_inner().expect("decides").is_admitted()
    };
    assert!(pair(&a, &b), "one key gets the overflow entry");
    assert!(store.stats().keys <= 1);
    assert!(!pair(&c, &b), "the overflow entry has no units left");
}

#[test]
fn overflow_charges_are_summed() {
    let (store, _clock) = build(|store| store.max_keys(1));
    let policy = per_minute(5);
    charge(&store, &policy, &numbered(0), 1);
    let (a, b) = (numbered(1), numbered(2));
    let charges = [Charge::new(&policy, &a, Cost::new(3)), Charge::new(&policy, &b, Cost::new(3))];
    assert!(!store.decide(&charges).into_inner().expect("decides").is_admitted());
    assert_eq!(charge(&store, &policy, &a, 0).remaining, 5, "a denial changes no state");
}

#[test]
fn logs_count_at_full_size() {
    let (store, _clock) = build(|store| store.max_bytes(4 << 20));
    let policy = Policy::sliding_window_log("p", Quota::per_minute(1_000)).expect("builds");
    for n in 0..1_000 {
        charge(&store, &policy, &numbered(n), 1);
    }
    let stats = store.stats();
    assert!(stats.bytes <= 4 << 20, "{stats:?}");
    assert!(stats.keys >= 64, "{stats:?}");
    assert!(stats.overflowed > 0, "{stats:?}");
}

#[test]
fn states_of_one_request_share_the_bytes() {
    let (store, _clock) = build(|store| store.max_bytes(1 << 20));
    let log = |n| {
        let quota = Quota::per_minute(1_000);
        Policy::sliding_window_log(format!("p{n}"), quota).expect("builds")
    };
    let policies: Vec<Policy> = (0..16).map(log).collect();
    for n in 0..64 {
        let key = numbered(n);
        let charges: Vec<_> =
            policies.iter().map(|policy| Charge::new(policy, &key, Cost::ONE)).collect();
        store.decide(&charges).into_inner().expect("decides");
        let stats = store.stats();
        assert!(stats.bytes <= 1 << 20, "{n}: {stats:?}");
    }
}

#[test]
fn growth_for_one_request_stays_within_the_bytes() {
    const BYTES: usize = 8_000;
    let (store, _clock) = build(|store| store.shards(1).max_bytes(BYTES));
    let policy = Policy::token_bucket("p", Quota::per_minute(10)).expect("builds");
    for first in (0..400).step_by(8) {
        let keys: Vec<_> = (first..first + 8).map(numbered).collect();
        let charges: Vec<_> = keys.iter().map(|key| Charge::new(&policy, key, Cost::ONE)).collect();
        store.decide(&charges).into_inner().expect("decides");
        let stats = store.stats();
        assert!(stats.bytes <= BYTES, "{first}: {stats:?}");
    }
}

#[test]
fn long_keys_count_toward_bytes() {
    let (store, _clock) = build(|store| store.max_bytes(1 << 20));
    let policy = per_minute(5);
    for n in 0..1_000_u64 {
        let mut key = [0; 8_192];
        key[..8].copy_from_slice(&n.to_be_bytes());
        charge(&store, &policy, &Key::new(key), 1);
    }
    let stats = store.stats();
    assert!(stats.bytes <= 1 << 20 && stats.overflowed > 800, "{stats:?}");
}

#[test]
fn expired_keys_make_room() {
    let (store, clock) = build(|store| store.max_keys(10_000));
    let policy = per_minute(5);
    for round in 0..20 {
        for n in 0..8_000 {
            assert!(charge(&store, &policy, &numbered(round * 10_000 + n), 1).allows());
        }
        clock.advance(Micros::new(60_000_000));
    }
    assert_eq!(store.stats().overflowed, 0);
}

#[test]
fn peeks_and_denials_store_no_key() {
    let (store, _clock) = build(|store| store);
    let policy = per_minute(5);
    for n in 0..100 {
        charge(&store, &policy, &numbered(n), 0);
        charge(&store, &policy, &numbered(n), 6);
    }
    assert_eq!(store.stats().keys, 0);
}

#[test]
fn racing_threads_grant_each_window_once() {
    const WINDOW: u64 = 50;
    let store = MemoryStore::builder().shards(1).build();
    let quota = Quota::new(1, Duration::from_micros(WINDOW));
    let policy = Policy::fixed_window_counter("p", quota).expect("builds");
    let work = |thread: u64| {
        let (store, policy) = (store.clone(), policy.clone());
        move || {
            let mut windows = Vec::new();
            for n in 0..100_000_u64 {
                let key = n % 3;
                let verdict = store.charge(&policy, &numbered(key), Cost::ONE).into_inner();
                let verdict = verdict.expect("decides");
                if verdict.is_admitted() {
                    windows.push((key, verdict.decided_at().as_micros() / WINDOW));
                }
                // Each insertion sweeps other keys.
                let other = numbered((thread + 1) << 32 | n);
                let _ = store.charge(&policy, &other, Cost::ONE).into_inner();
            }
            windows
        }
    };
    let threads: Vec<_> = (0..4).map(|thread| std::thread::spawn(work(thread))).collect();
    let mut granted = std::collections::HashSet::new();
    for thread in threads {
        for window in thread.join().expect("no panic") {
            assert!(granted.insert(window), "key {} in window {} twice", window.0, window.1);
        }
    }
}

#[test]
fn moving_to_larger_state_needs_room() {
    let (store, _clock) = build(|store| store.max_bytes(1 << 20));
    let small = Policy::fixed_window_counter("p", Quota::per_day(1_000)).expect("builds");
    let large = Policy::sliding_window_log("p", Quota::per_day(1_000)).expect("builds");
    for policy in [&small, &large] {
        for n in 0..2_000 {
            charge(&store, policy, &numbered(n), 1);
        }
        assert!(store.stats().bytes <= 1 << 20, "{:?}", store.stats());
    }
}

#[test]
fn expired_flood_frees_room() {
    let (store, clock) = build(|store| store.max_bytes(1 << 20));
    let policies = ["a", "b"]
        .map(|name| Policy::fixed_window_counter(name, Quota::per_minute(5)).expect("builds"));
    let fill = |policy: &Policy| {
        for n in 0..40_000 {
            charge(&store, policy, &numbered(n), 1);
        }
        store.stats().keys
    };
    let first = fill(&policies[0]);
    clock.advance(Micros::new(120_000_000));
    let second = fill(&policies[1]);
    assert!(second * 2 > first, "{first}, then {second}");
}

#[test]
fn overflow_shadow_never_denies() {
    let (store, _clock) = build(|store| store.max_keys(1));
    let policy = per_minute(5);
    charge(&store, &policy, &numbered(0), 1);
    let (a, b) = (numbered(1), numbered(2));
    let charges =
        [Charge::new(&policy, &a, Cost::new(3)), Charge::new(&policy, &b, Cost::new(3)).shadow()];
    assert!(store.decide(&charges).into_inner().expect("decides").is_admitted());
}

#[test]
fn dry_charges_use_no_overflow_units() {
    let (store, _clock) = build(|store| store.max_keys(1));
    let policy = per_minute(5);
    charge(&store, &policy, &numbered(0), 1);
    let (a, b) = (numbered(1), numbered(2));
    let enforced = Charge::new(&policy, &a, Cost::new(2));
    let dry = Charge::new(&policy, &b, Cost::new(4)).dry();
    for (charges, left) in [([enforced, dry], 3), ([dry, enforced], 1)] {
        let verdict = store.decide(&charges).into_inner().expect("decides");
        assert!(verdict.is_admitted(), "{verdict:?}");
        let foreseen = charges.iter().zip(verdict.decisions()).find(|(charge, _)| charge.dry);
        let (_, foreseen) = foreseen.expect("a dry charge");
        assert!(foreseen.denies() && foreseen.remaining == left, "{foreseen:?}");
    }
    assert_eq!(store.stats().overflowed, 2, "dry charges take no units");
}

proptest! {
    /// Forgetting keys changes no answer for a key that has an entry. A store with room for few
    /// keys agrees with a store that has room for all keys on those inserted first.
    #[test]
    fn forgetting_keys_changes_no_answer(
        algorithm in (0..Algorithm::ALL.len()).prop_map(|n| Algorithm::ALL[n]),
        steps in prop::collection::vec((0..12_u64, 0..4_u64, 0..400_u64), 1..300),
    ) {
        let clock = ManualClock::default();
        let small = MemoryStore::builder().max_keys(4).clock(clock.clone()).build();
        let large = MemoryStore::builder().clock(clock.clone()).build();
        let quota = Quota::new(3, Duration::from_micros(500));
        let policy = Policy::new("p", quota, algorithm).expect("builds");
        // These two keys are charged first, so they get their own entries.
        for n in 0..2 {
            charge(&small, &policy, &numbered(n), 1);
            charge(&large, &policy, &numbered(n), 1);
        }
        for (n, cost, gap) in steps {
            clock.advance(Micros::new(gap));
            // A charge in every window keeps these keys live, so they never lose their entries.
            for kept in 0..2 {
                prop_assert_eq!(
                    charge(&small, &policy, &numbered(kept), 1),
                    charge(&large, &policy, &numbered(kept), 1)
                );
            }
            charge(&small, &policy, &numbered(2 + n), cost);
        }
    }
}
