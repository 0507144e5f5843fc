//! Single policies with sequential requests.

use tollgate_core::{Key, Micros, Outcome, Store};

use super::{MODES, charge, policy, remaining};
use crate::Harness;

/// With a limit of ten, each algorithm allows ten units and denies the eleventh.
pub async fn admits_exactly_the_limit<H: Harness>(_: &H, store: &H::Store) {
    for algorithm in MODES {
        let policy = policy(&format!("{algorithm:?}"), 10, algorithm);
        for n in 1..=10 {
            let decision = charge(store, &policy, &Key::from("k"), 1).await;
            assert!(decision.allows(), "{algorithm:?}: unit {n}: {decision:?}");
            assert_eq!(decision.remaining, 10 - n, "{algorithm:?}");
        }
        let decision = charge(store, &policy, &Key::from("k"), 1).await;
        assert!(decision.retry_after() > Some(Micros::ZERO), "{algorithm:?}: {decision:?}");
    }
}

/// Every decision field is filled in, both for an unused key and for a used key.
pub async fn decisions_report_remaining_and_reset<H: Harness>(_: &H, store: &H::Store) {
    for algorithm in MODES {
        let policy = policy(&format!("{algorithm:?}"), 10, algorithm);
        let key = Key::from("k");
        let untouched = charge(store, &policy, &key, 0).await;
        assert_eq!((untouched.limit, untouched.remaining), (10, 10), "{algorithm:?}");
        assert_eq!(untouched.reset_after, Micros::ZERO, "{algorithm:?}");
        let used = charge(store, &policy, &key, 4).await;
        assert_eq!((used.limit, used.remaining), (10, 6), "{algorithm:?}");
        assert!(used.reset_after > Micros::ZERO, "{algorithm:?}");
    }
}

/// The verdict distinguishes a cost above the capacity from a cost that only has to wait.
pub async fn cost_above_capacity_never_passes<H: Harness>(_: &H, store: &H::Store) {
    for algorithm in MODES {
        let policy = policy(&format!("{algorithm:?}"), 10, algorithm);
        let key = Key::from("k");
        for cost in [11, 1 << 60, u64::MAX] {
            let decision = charge(store, &policy, &key, cost).await;
            assert_eq!(decision.outcome, Outcome::ExceedsCapacity, "{algorithm:?}: {cost}");
            assert_eq!(decision.remaining, 10, "{algorithm:?}");
        }
        assert!(charge(store, &policy, &key, 10).await.allows(), "{algorithm:?}");
    }
}

/// A cost of zero is allowed even if no units remain, and takes no units.
pub async fn zero_cost_changes_nothing<H: Harness>(_: &H, store: &H::Store) {
    for algorithm in MODES {
        let policy = policy(&format!("{algorithm:?}"), 3, algorithm);
        let key = Key::from("k");
        for left in (0..3).rev() {
            charge(store, &policy, &key, 1).await;
            for _ in 0..3 {
                let peek = charge(store, &policy, &key, 0).await;
                assert!(peek.allows() && peek.delay() == Micros::ZERO, "{algorithm:?}: {peek:?}");
                assert_eq!(peek.remaining, left, "{algorithm:?}");
            }
        }
    }
}

/// After any number of denied requests, a smaller request is allowed as if they had not been sent.
pub async fn denials_change_nothing<H: Harness>(_: &H, store: &H::Store) {
    for algorithm in MODES {
        let policy = policy(&format!("{algorithm:?}"), 10, algorithm);
        let key = Key::from("k");
        charge(store, &policy, &key, 7).await;
        for _ in 0..20 {
            assert!(charge(store, &policy, &key, 4).await.denies(), "{algorithm:?}");
        }
        assert_eq!(remaining(store, &policy, &key).await, 3, "{algorithm:?}");
        assert!(charge(store, &policy, &key, 3).await.allows(), "{algorithm:?}");
    }
}

/// Keys are byte strings, which may be empty, long, or contain separators, braces and line breaks.
pub async fn keys_are_arbitrary_bytes<H: Harness>(_: &H, store: &H::Store) {
    let policy = policy("keys", 1, MODES[0]);
    let long = [b'x'; 4_096];
    let keys: [&[u8]; 12] = [
        b"",
        b"a",
        b"a:",
        b"a:b",
        b"{a}:b",
        b"{a}",
        b"a\r\nb",
        b"\0",
        b"\0\0",
        &[0xff; 15],
        &long,
        &long[1..],
    ];
    for key in keys {
        assert!(charge(store, &policy, &Key::new(key), 1).await.allows(), "{key:?}");
    }
    for key in keys {
        assert!(charge(store, &policy, &Key::new(key), 1).await.denies(), "{key:?}");
    }
}

/// The same key under two policies has two quotas. Policies with the same name and quota share
/// their state.
pub async fn policies_are_separate_by_name<H: Harness>(_: &H, store: &H::Store) {
    let key = Key::from("k");
    let (a, b) = (policy("a", 1, MODES[0]), policy("b", 1, MODES[0]));
    assert!(charge(store, &a, &key, 1).await.allows());
    assert!(charge(store, &b, &key, 1).await.allows());
    let another_a = policy("a", 1, MODES[0]);
    assert!(charge(store, &another_a, &key, 1).await.denies());
}

/// A charge through one clone counts in the other clone.
pub async fn clones_share_state<H: Harness>(_: &H, store: &H::Store) {
    let policy = policy("shared", 2, MODES[0]);
    let clone = store.clone();
    assert!(charge(store, &policy, &Key::GLOBAL, 1).await.allows());
    assert!(charge(&clone, &policy, &Key::GLOBAL, 1).await.allows());
    assert!(charge(store, &policy, &Key::GLOBAL, 1).await.denies());
    assert!(charge(&clone, &policy, &Key::GLOBAL, 1).await.denies());
}

/// A reset restores a key's full quota under its policy and affects no other key or policy.
pub async fn reset_affects_one_key<H: Harness>(_: &H, store: &H::Store) {
    for algorithm in MODES {
        let name = format!("{algorithm:?}");
        let (policy, other) =
            (policy(&name, 5, algorithm), policy(&format!("{name} 2"), 5, algorithm));
        let (key, neighbour) = (Key::from("k"), Key::from("l"));
        for (policy, key) in [(&policy, &key), (&policy, &neighbour), (&other, &key)] {
            charge(store, policy, key, 5).await;
        }
        store.reset(&policy, &key).await.expect("the store resets");
        assert_eq!(remaining(store, &policy, &key).await, 5, "{algorithm:?}");
        assert_eq!(remaining(store, &policy, &neighbour).await, 0, "{algorithm:?}");
        assert_eq!(remaining(store, &other, &key).await, 0, "{algorithm:?}");
    }
}
