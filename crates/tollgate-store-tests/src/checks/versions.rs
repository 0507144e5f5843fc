//! Policies with several quotas: reloads, tiers, and replicas of two versions.

use std::time::Duration;

use tollgate_core::{Cost, Key, Micros};

use super::{MODES, advance, charge, decide, policy, remaining, timed};
use crate::Harness;

/// Raising or lowering a limit does not forgive consumed units.
pub async fn changed_quota_preserves_consumed_units<H: Harness>(_: &H, store: &H::Store) {
    for algorithm in MODES {
        let name = format!("{algorithm:?}");
        let key = Key::from("k");
        let (small, large) = (policy(&name, 10, algorithm), policy(&name, 100, algorithm));
        charge(store, &small, &key, 6).await;
        assert_eq!(remaining(store, &large, &key).await, 94, "{algorithm:?}");
        charge(store, &large, &key, 2).await;
        assert_eq!(remaining(store, &small, &key).await, 2, "{algorithm:?}");
        charge(store, &large, &key, 30).await;
        assert!(charge(store, &small, &key, 1).await.denies(), "{algorithm:?}");
        // The denial under the small quota has not reduced the count under the large quota.
        assert_eq!(remaining(store, &large, &key).await, 62, "{algorithm:?}");
    }
}

/// Old and new replicas alternate, as in a rolling deployment.
pub async fn alternating_versions_obey_the_larger_limit<H: Harness>(_: &H, store: &H::Store) {
    for algorithm in MODES {
        let name = format!("{algorithm:?}");
        let key = Key::from("k");
        let versions = [policy(&name, 10, algorithm), policy(&name, 25, algorithm)];
        let mut admitted = 0;
        for n in 0..100 {
            admitted += u64::from(charge(store, &versions[n % 2], &key, 1).await.allows());
        }
        assert_eq!(admitted, 25, "{algorithm:?}");
    }
}

/// The first version has no room for the units of the second, so the third starts from the second.
pub async fn third_version_counts_the_units_of_the_second<H: Harness>(_: &H, store: &H::Store) {
    for algorithm in MODES.into_iter().filter(|it| !it.is_bucket()) {
        let name = format!("{algorithm:?}");
        let key = Key::from("k");
        let mut admitted = 0;
        for limit in [1, 3, 4] {
            for _ in 0..5 {
                let decision = charge(store, &policy(&name, limit, algorithm), &key, 1).await;
                admitted += u64::from(decision.allows());
            }
            assert_eq!(admitted, limit, "{algorithm:?}");
        }
    }
}

/// After a change to another algorithm under the same name, the consumed units still count.
pub async fn changed_algorithm_preserves_consumed_units<H: Harness>(_: &H, store: &H::Store) {
    for from in MODES {
        for to in MODES {
            let name = format!("{from:?} {to:?}");
            let key = Key::from("k");
            let (before, after) = (policy(&name, 10, from), policy(&name, 10, to));
            charge(store, &before, &key, 7).await;
            assert_eq!(remaining(store, &after, &key).await, 3, "{name}");
            charge(store, &after, &key, 1).await;
            assert_eq!(remaining(store, &after, &key).await, 2, "{name}");
            let both = [
                tollgate_core::Charge::new(&before, &key, Cost::ONE),
                tollgate_core::Charge::new(&before, &key, Cost::new(3)),
            ];
            assert!(!decide(store, &both).await.is_admitted(), "{name}");
        }
    }
}

/// A key has up to four versions. Once the fifth is used, units that only the oldest counted no
/// longer count.
pub async fn fifth_version_replaces_the_oldest<H: Harness>(harness: &H, store: &H::Store) {
    for count in [4, 5] {
        let name = format!("{count} versions");
        let key = Key::from("k");
        let oldest = policy(&name, 100, MODES[0]);
        charge(store, &oldest, &key, 80).await;
        for limit in (101..).take(count - 1) {
            let short = timed(&name, limit, Duration::from_secs(60), MODES[0]);
            charge(store, &short, &key, 1).await;
        }
        // The shorter versions forget their units.
        advance(harness, Micros::new(120_000_000));
        let used = 79 + count as u64;
        let left = if count <= 4 { 100 - used } else { 100 };
        assert_eq!(remaining(store, &oldest, &key).await, left, "{name}");
    }
}
