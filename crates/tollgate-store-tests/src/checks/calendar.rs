//! Fixed windows that follow a calendar.

use tollgate_core::{
    Calendar, Cost, Key, Micros, Period, Policy, Quota, Settlement, Store, StoreExt, Timestamp,
};

use super::{LONG, MODES, advance, charge, now, receipt, remaining, settle};
use crate::Harness;

const HOUR: u64 = 3_600_000_000;

/// Days with 23, 24 and 25 hours around the store's time, and a skipped day.
async fn days(store: &impl Store) -> Calendar {
    let now = now(store).await;
    let lengths = [24, 23, 48, 25, 24].into_iter().cycle().take(50);
    let starts = lengths.scan(now.as_micros().saturating_sub(30 * HOUR), |at, hours| {
        *at += hours * HOUR;
        Some(Timestamp::from_micros(*at))
    });
    // Each store has its own time, so it needs its own calendar name.
    Calendar::new(format!("day of {}", now.as_micros()), starts).expect("ascending instants")
}

fn policy(name: &str, quota: Quota) -> Policy {
    Policy::fixed_window_counter(name, quota).expect("the checks' policies build")
}

/// The store's current period. It is long enough that a check does not reach its end.
async fn period(store: &impl Store, calendar: Calendar) -> Period {
    calendar.period(now(store).await)
}

/// Uses up the quota. Every verdict reports the period's end, however long the period is.
async fn spend_a_period(store: &impl Store, policy: &Policy, key: &Key, end: Timestamp) -> Micros {
    let first = store.charge(policy, key, Cost::ONE).await.expect("the store decides");
    let decision = first.decisions()[0];
    assert_eq!((decision.remaining, decision.limit), (2, 3), "{first:?}");
    assert_eq!(first.decided_at() + decision.reset_after, end, "{first:?}");
    assert!(charge(store, policy, key, 2).await.allows());
    let verdict = store.charge(policy, key, Cost::ONE).await.expect("the store decides");
    let wait = verdict.decisions()[0].retry_after().expect("a denial has a wait");
    assert_eq!(verdict.decided_at() + wait, end, "{verdict:?}");
    wait
}

/// A denial reports the period's end, to the microsecond.
pub async fn denial_reports_period_end<H: Harness>(_: &H, store: &H::Store) {
    let calendar = days(store).await;
    let policy = policy("p", Quota::per_calendar(3, calendar));
    let end = period(store, calendar).await.end();
    spend_a_period(store, &policy, &Key::from("k"), end).await;
}

/// The full quota is available again when the period is over, however long it was.
pub async fn quota_renews_with_the_calendar<H: Harness>(harness: &H, store: &H::Store) {
    let calendar = days(store).await;
    let policy = policy("p", Quota::per_calendar(3, calendar));
    let key = Key::from("k");
    for _ in 0..12 {
        let end = period(store, calendar).await.end();
        let wait = spend_a_period(store, &policy, &key, end).await;
        advance(harness, Micros::new(wait.get() - 1));
        let early = charge(store, &policy, &key, 1).await;
        assert_eq!(early.retry_after(), Some(Micros::new(1)));
        advance(harness, Micros::new(1));
        assert_eq!(remaining(store, &policy, &key).await, 3);
    }
}

/// Units refunded within the period are available in it.
pub async fn refund_counts_in_current_period<H: Harness>(_: &H, store: &H::Store) {
    let calendar = days(store).await;
    let policy = policy("p", Quota::per_calendar(9, calendar));
    let key = Key::from("k");
    let receipt = receipt(store, &policy, &key, 4).await;
    assert_eq!(settle(store, &receipt, 1).await, Settlement::Returned { units: 3 });
    assert_eq!(remaining(store, &policy, &key).await, 8);
}

/// A refund counts only in the period of its charge.
pub async fn late_refund_does_not_reach_next_period<H: Harness>(harness: &H, store: &H::Store) {
    let calendar = days(store).await;
    let policy = policy("p", Quota::per_calendar(9, calendar));
    let key = Key::from("k");
    // Move close to the period's end, which is then within the receipt's lifetime.
    let end = period(store, calendar).await.end();
    let left = end.since(now(store).await).get();
    advance(harness, Micros::new(left - 1_000));
    let late = receipt(store, &policy, &key, 5).await;
    advance(harness, Micros::new(1_000));
    charge(store, &policy, &key, 2).await;
    assert_eq!(settle(store, &late, 0).await, Settlement::Returned { units: 0 });
    assert_eq!(remaining(store, &policy, &key).await, 7);
}

/// After a change to another calendar, span or algorithm under the same name, the consumed units
/// still count.
pub async fn changed_calendar_preserves_consumed_units<H: Harness>(_: &H, store: &H::Store) {
    let calendar = days(store).await;
    let start = period(store, calendar).await.start();
    let wide = [start, start + Micros::new(9_000 * HOUR)];
    let longer =
        Calendar::new(format!("longer than {}", start.as_micros()), wide).expect("a period");
    let per = |calendar| Quota::per_calendar(10, calendar);
    let days = |name: &str| policy(name, per(calendar));
    for other in [per(longer), per(longer).with_limit(20), Quota::new(30, LONG)] {
        let name = format!("{other:?}");
        let key = Key::from("k");
        let (one, other) = (days(&name), policy(&name, other));
        charge(store, &one, &key, 6).await;
        assert_eq!(remaining(store, &other, &key).await, other.capacity() - 6, "{name}");
        charge(store, &other, &key, 1).await;
        assert_eq!(remaining(store, &one, &key).await, 3, "{name}");
        assert!(charge(store, &one, &key, 4).await.denies(), "{name}");
    }
    for algorithm in MODES {
        let name = format!("{algorithm:?}");
        let key = Key::from("k");
        let (one, other) = (days(&name), super::policy(&name, 10, algorithm));
        charge(store, &one, &key, 7).await;
        assert_eq!(remaining(store, &other, &key).await, 3, "{name}");
        charge(store, &other, &key, 1).await;
        assert_eq!(remaining(store, &one, &key).await, 2, "{name}");
    }
}

/// A decision must use the period that contains its own instant, even if the store has only an
/// estimate of the time when the request arrives. The periods here are so short that they change
/// while requests are in transit. A store that cannot do better may return an error, but must not
/// charge.
pub async fn decision_uses_its_own_period<H: Harness>(harness: &H, store: &H::Store) {
    let now = now(store).await;
    let starts = (1..50_000).map(|n| now + Micros::new(n * 20_000));
    let calendar = Calendar::new(format!("moment after {}", now.as_micros()), starts);
    let calendar = calendar.expect("ascending instants");
    let policy = policy("p", Quota::per_calendar(1_000_000, calendar));
    let mut decided = 0;
    for _ in 0..300 {
        match store.charge(&policy, &Key::GLOBAL, Cost::ONE).await {
            Ok(verdict) => {
                decided += 1;
                let end = verdict.decided_at() + verdict.decisions()[0].reset_after;
                assert_eq!(end, calendar.period(verdict.decided_at()).end(), "{verdict:?}");
            }
            Err(error) => assert!(!error.may_have_charged(), "{error}"),
        }
        harness.advance(Micros::new(7_001));
    }
    assert!(decided > 0);
}
