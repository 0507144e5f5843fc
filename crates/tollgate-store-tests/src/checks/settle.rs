//! Settling charges.

use std::time::Duration;

use tollgate_core::{
    Algorithm, Charge, Cost, Key, LeakyMode, Micros, Policy, Quota, Receipt, Refill, Resolution,
    Settlement, Store,
};

use super::{
    LONG, MODES, advance, charge, decide, pass_a_microsecond, policy, receipt, remaining, settle,
    timed,
};
use crate::Harness;

/// If a request costs less than was charged, the rest becomes available to other requests.
pub async fn refunded_units_can_be_used_again<H: Harness>(harness: &H, store: &H::Store) {
    for algorithm in MODES {
        // A bucket refills while a real clock runs, which reduces the refund. With a window of 400
        // days, the difference during the test is less than one unit.
        let policy = policy(&format!("{algorithm:?}"), 10, algorithm);
        let key = Key::from("k");
        let receipt = receipt(store, &policy, &key, 8).await;
        let settlement = settle(store, &receipt, 3).await;
        let Settlement::Returned { units } = settlement else { panic!("{settlement:?}") };
        let exact = harness.advance(Micros::ZERO);
        assert!(units == 5 || (!exact && units == 4), "{algorithm:?}: {units}");
        let left = remaining(store, &policy, &key).await;
        assert!(left == 7 || (!exact && left == 6), "{algorithm:?}: {left}");
        assert!(charge(store, &policy, &key, left).await.allows(), "{algorithm:?}");
        assert!(charge(store, &policy, &key, 1).await.denies(), "{algorithm:?}");
    }
}

/// Settling again has no effect, even through a clone or with a different cost.
pub async fn receipt_settles_once<H: Harness>(_: &H, store: &H::Store) {
    for algorithm in MODES {
        let policy = policy(&format!("{algorithm:?}"), 10, algorithm);
        let key = Key::from("k");
        charge(store, &policy, &key, 1).await;
        let receipt = receipt(store, &policy, &key, 4).await;
        settle(store, &receipt, 4).await;
        for actual in [0, 4, 9] {
            let again = settle(&store.clone(), &receipt.clone(), actual).await;
            assert_eq!(again, Settlement::Repeated, "{algorithm:?}");
        }
        assert_eq!(remaining(store, &policy, &key).await, 5, "{algorithm:?}");
    }
}

/// Settling upwards charges the missing units even beyond the quota, up to a debt of one capacity.
pub async fn debt_is_bounded_by_capacity<H: Harness>(harness: &H, store: &H::Store) {
    for algorithm in MODES {
        let policy = timed(&format!("{algorithm:?}"), 10, LONG, algorithm);
        let key = Key::from("k");
        let first = receipt(store, &policy, &key, 2).await;
        let settlement = settle(store, &first, 6).await;
        assert_eq!(settlement, Settlement::Charged { units: 4 }, "{algorithm:?}");
        assert_eq!(remaining(store, &policy, &key).await, 4, "{algorithm:?}");
        let second = receipt(store, &policy, &key, 1).await;
        let settlement = settle(store, &second, 1_000_000).await;
        let exact = harness.advance(Micros::ZERO);
        assert!(
            settlement == (Settlement::Charged { units: 13 })
                || (!exact && settlement == Settlement::Charged { units: 14 }),
            "{algorithm:?}: {settlement:?}"
        );
        assert_eq!(remaining(store, &policy, &key).await, 0, "{algorithm:?}");
        assert!(charge(store, &policy, &key, 1).await.retry_after().is_some(), "{algorithm:?}");
    }
}

/// A receipt cannot be settled after its lifetime.
pub async fn expired_receipt_cannot_be_settled<H: Harness>(harness: &H, store: &H::Store) {
    let policy = policy("lapse", 10, MODES[1]);
    let receipt = receipt(store, &policy, &Key::GLOBAL, 4).await;
    advance(harness, receipt.lifetime());
    assert_eq!(settle(store, &receipt, 0).await, Settlement::Lapsed);
    assert_eq!(remaining(store, &policy, &Key::GLOBAL).await, 6);
}

/// A receipt's lifetime follows from the charged version's window, also if a version with another
/// window settles it. Operators override windows between a charge and its settlement.
pub async fn other_window_changes_no_lifetime<H: Harness>(harness: &H, store: &H::Store) {
    let [short, long] =
        [60, 3_600].map(|seconds| timed("window", 10, Duration::from_secs(seconds), MODES[1]));
    let key = Key::from("k");
    let first = receipt(store, &short, &key, 4).await;
    assert_eq!(settle(store, &first, 0).await, Settlement::Returned { units: 4 });
    advance(harness, first.lifetime());
    let again = Receipt { policy: long.clone(), ..first };
    // The store may have forgotten that it was settled.
    assert_eq!(settle(store, &again, 0).await, Settlement::Lapsed);
    let second = receipt(store, &long, &key, 4).await;
    advance(harness, Micros::new(600_000_000));
    let late = Receipt { policy: short, ..second };
    assert_eq!(settle(store, &late, 0).await, Settlement::Returned { units: 4 });
    assert_eq!(settle(store, &late, 0).await, Settlement::Repeated);
    assert_eq!(remaining(store, &long, &key).await, 10);
}

/// Only the last waiter in a queue gets a refund, because the waiters behind it already have their
/// departure times.
pub async fn only_last_queued_request_is_refunded<H: Harness>(harness: &H, store: &H::Store) {
    // If the clock ran between two charges, the queue would drain a little.
    advance(harness, Micros::ZERO);
    let queue = Algorithm::LeakyBucket { mode: LeakyMode::default() };
    let policy = policy("queue", 10, queue);
    let key = Key::from("k");
    receipt(store, &policy, &key, 1).await;
    let middle = receipt(store, &policy, &key, 1).await;
    let last = receipt(store, &policy, &key, 1).await;
    assert_eq!(settle(store, &middle, 0).await, Settlement::Returned { units: 0 });
    assert_eq!(remaining(store, &policy, &key).await, 7);
    let delay = last.charged.leaves_at;
    assert_eq!(settle(store, &last, 0).await, Settlement::Returned { units: 1 });
    assert_eq!(remaining(store, &policy, &key).await, 8);
    // Its departure time is available again, to the microsecond.
    assert_eq!(receipt(store, &policy, &key, 1).await.charged.leaves_at, delay);
}

/// A receipt from before a reset refunds no units, because the reset has removed its charge.
pub async fn reset_invalidates_earlier_receipts<H: Harness>(harness: &H, store: &H::Store) {
    for algorithm in MODES {
        let policy = policy(&format!("{algorithm:?}"), 10, algorithm);
        let key = Key::from("k");
        let receipt = receipt(store, &policy, &key, 10).await;
        // A charge in the same microsecond as the reset may count as made after it.
        pass_a_microsecond(harness, store).await;
        store.reset(&policy, &key).await.expect("the store resets");
        charge(store, &policy, &key, 10).await;
        assert_eq!(settle(store, &receipt, 0).await, Settlement::Returned { units: 0 });
        assert_eq!(remaining(store, &policy, &key).await, 0, "{algorithm:?}");
    }
}

/// A refund applies to each version that counted the charge. A version that was first used after
/// the charge knows only a number of units, so it cannot tell the charge apart.
pub async fn refunds_reach_versions_that_counted<H: Harness>(harness: &H, store: &H::Store) {
    for algorithm in MODES {
        let name = format!("{algorithm:?}");
        let [first, second, third] = [10, 20, 30].map(|limit| policy(&name, limit, algorithm));
        let key = Key::from("k");
        charge(store, &second, &key, 1).await;
        // Charges in the same microsecond as a version's first charge count as made before it.
        pass_a_microsecond(harness, store).await;
        charge(store, &first, &key, 1).await;
        pass_a_microsecond(harness, store).await;
        let earlier = receipt(store, &first, &key, 5).await;
        pass_a_microsecond(harness, store).await;
        charge(store, &third, &key, 1).await;
        // A queue only refunds its last charge.
        let refunded =
            if matches!(algorithm, Algorithm::LeakyBucket { mode: LeakyMode::Queue { .. } }) {
                0
            } else {
                5
            };
        let returned = settle(store, &earlier, 0).await;
        assert_eq!(returned, Settlement::Returned { units: refunded }, "{algorithm:?}");
        assert_eq!(remaining(store, &first, &key).await, 2 + refunded, "{algorithm:?}");
        assert_eq!(remaining(store, &second, &key).await, 12 + refunded, "{algorithm:?}");
        assert_eq!(remaining(store, &third, &key).await, 22, "{algorithm:?}");
    }
}

/// A receipt from a small quota must not reduce the debt under a large quota.
pub async fn old_receipt_does_not_reduce_new_debt<H: Harness>(_: &H, store: &H::Store) {
    for algorithm in MODES {
        let name = format!("{algorithm:?}");
        let (small, large) = (policy(&name, 10, algorithm), policy(&name, 100, algorithm));
        let key = Key::from("k");
        let receipt = receipt(store, &small, &key, 1).await;
        charge(store, &large, &key, 80).await;
        assert_eq!(settle(store, &receipt, 2).await, Settlement::Charged { units: 1 });
        assert_eq!(remaining(store, &large, &key).await, 18, "{algorithm:?}");
    }
}

/// Ten units per year is the same rate as twenty in two years, if the burst is the same.
/// Alternating between these quotas converts no state, and receipts remain valid.
pub async fn equivalent_quotas_share_state<H: Harness>(harness: &H, store: &H::Store) {
    let log = |resolution| Algorithm::SlidingWindowLog { resolution };
    let (short, long) = (Quota::new(10, LONG / 2).burst(10), Quota::new(20, LONG).burst(10));
    let plain = Quota::new(10, LONG);
    let mut pairs = vec![[(plain, log(Resolution::Auto)), (plain, log(Resolution::Exact))]];
    for algorithm in [
        Algorithm::TokenBucket { refill: Refill::Greedy },
        Algorithm::LeakyBucket { mode: LeakyMode::Meter },
    ] {
        pairs.push([(short, algorithm), (long, algorithm)]);
    }
    for pair in pairs {
        let name = format!("{:?}", pair[0].1);
        let [first, second] = pair.map(|(quota, algorithm)| {
            Policy::new(&name, quota, algorithm).expect("the checks' policies build")
        });
        let key = Key::from("k");
        let receipt = receipt(store, &first, &key, 5).await;
        charge(store, &second, &key, 1).await;
        let settlement = settle(store, &receipt, 0).await;
        let Settlement::Returned { units } = settlement else { panic!("{settlement:?}") };
        let exact = harness.advance(Micros::ZERO);
        assert!(units == 5 || (!exact && units == 4), "{name}: {units}");
        let both = [&first, &second].map(|policy| Charge::new(policy, &key, Cost::new(4)));
        let verdict = decide(store, &both).await;
        assert!(verdict.is_admitted(), "{name}: {verdict:?}");
        let left = remaining(store, &first, &key).await;
        assert!(left == 1 || (!exact && left == 0), "{name}: {left}");
    }
}
