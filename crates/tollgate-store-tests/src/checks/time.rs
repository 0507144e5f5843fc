//! Effects of time. Every check here moves the store's clock.

use std::time::Duration;

use tollgate_core::{Key, Micros};

use super::{MODES, advance, charge, remaining, timed};
use crate::Harness;

const WINDOW: Duration = Duration::from_millis(700);
const MICROSECOND: Micros = Micros::new(1);

/// A request is still denied one microsecond before `retry_after`.
pub async fn denied_until_retry_after<H: Harness>(harness: &H, store: &H::Store) {
    for algorithm in MODES {
        let policy = timed(&format!("{algorithm:?}"), 7, WINDOW, algorithm);
        let key = Key::from("k");
        for cost in [1, 3, 7] {
            while charge(store, &policy, &key, 1).await.allows() {}
            let denied = charge(store, &policy, &key, cost).await;
            let wait = denied.retry_after().expect("a denial has a wait");
            advance(harness, Micros::new(wait.get() - 1));
            let early = charge(store, &policy, &key, cost).await;
            assert_eq!(early.retry_after(), Some(MICROSECOND), "{algorithm:?}, cost {cost}");
            advance(harness, MICROSECOND);
            assert!(
                charge(store, &policy, &key, cost).await.allows(),
                "{algorithm:?}, cost {cost}"
            );
        }
    }
}

/// A key equals an unused key exactly at its reset, and not a microsecond earlier.
pub async fn key_is_unused_after_reset_after<H: Harness>(harness: &H, store: &H::Store) {
    for algorithm in MODES {
        let policy = timed(&format!("{algorithm:?}"), 7, WINDOW, algorithm);
        let key = Key::from("k");
        for cost in [1, 4, 7] {
            let reset_after = charge(store, &policy, &key, cost).await.reset_after;
            assert!(reset_after > Micros::ZERO, "{algorithm:?}");
            advance(harness, Micros::new(reset_after.get() - 1));
            assert!(remaining(store, &policy, &key).await < 7, "{algorithm:?}, cost {cost}");
            advance(harness, MICROSECOND);
            let whole = charge(store, &policy, &key, 0).await;
            assert_eq!((whole.remaining, whole.reset_after), (7, Micros::ZERO), "{algorithm:?}");
        }
    }
}

/// A queue releases a request every `window / limit`, however requests arrive.
pub async fn queue_releases_requests_evenly<H: Harness>(harness: &H, store: &H::Store) {
    let [.., queue, _] = MODES;
    let policy = timed("queue", 7, WINDOW, queue);
    let key = Key::from("k");
    let interval = Micros::new(100_000);
    let mut arrived = Micros::ZERO;
    for n in 0..20 {
        let decision = charge(store, &policy, &key, 1).await;
        assert!(decision.allows(), "request {n}: {decision:?}");
        assert_eq!(arrived.get() + decision.delay().get(), n * interval.get(), "request {n}");
        // Requests arrive faster than the queue drains, then exactly as fast.
        let gap = if n < 5 { Micros::new(1_000) } else { interval };
        advance(harness, gap);
        arrived = Micros::new(arrived.get() + gap.get());
    }
}
