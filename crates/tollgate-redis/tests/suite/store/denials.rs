//! Which denials are remembered.

use std::time::Duration;

use tollgate_core::{
    Charge, Cost, Decision, Key, Micros, Outcome, Policy, Quota, Receipt, ReceiptId, Source, Store,
    StoreExt, Strikes,
};
use tollgate_redis::RedisStore;
use tollgate_test_servers::{Proxy, Redis, until_async};

use super::{charge, connected, patient, policy};

pub(crate) async fn cached(server: &Redis) -> RedisStore {
    connected(patient(&server.url()).deny_cache(Duration::from_secs(60))).await
}

#[tokio::test]
async fn denied_flood_calls_redis_once() {
    let server = Redis::start();
    let store = cached(&server).await;
    let policy = policy(1);
    charge(&store, &policy, "k", 1).await;
    let first = charge(&store, &policy, "k", 1).await;
    assert_eq!(first.source(), Source::Store);
    let asked = store.stats().requests;
    for _ in 0..100 {
        let verdict = charge(&store, &policy, "k", 1).await;
        assert!(!verdict.is_admitted());
        assert_eq!(verdict.source(), Source::Cache);
        let (was, is) = (first.decisions()[0], verdict.decisions()[0]);
        assert_eq!((was.limit, was.remaining), (is.limit, is.remaining));
        assert!(is.retry_after() <= was.retry_after() && is.retry_after() > Some(Micros::ZERO));
        assert!(is.reset_after <= was.reset_after);
        assert!(verdict.decided_at() >= first.decided_at());
    }
    assert_eq!(store.stats().requests, asked);
    assert_eq!(store.stats().deny_cache_hits, 100);
}

#[tokio::test]
async fn key_with_remaining_units_is_queried() {
    let server = Redis::start();
    let store = cached(&server).await;
    let policy = policy(10);
    charge(&store, &policy, "k", 7).await;
    for _ in 0..3 {
        let denied = charge(&store, &policy, "k", 5).await;
        assert_eq!((denied.source(), denied.is_admitted()), (Source::Store, false));
    }
    // Another replica may take these units.
    let other = cached(&server).await;
    assert!(charge(&other, &policy, "k", 3).await.is_admitted());
    assert_eq!(charge(&store, &policy, "k", 5).await.decisions()[0].remaining, 0);
    assert_eq!(charge(&store, &policy, "k", 5).await.source(), Source::Cache);
}

#[tokio::test]
async fn cache_is_per_quota_cost_and_key() {
    let server = Redis::start();
    let store = cached(&server).await;
    let policy = policy(10);
    charge(&store, &policy, "k", 10).await;
    for cost in [5, 1, 6, 7] {
        // Every denial includes when one unit fits.
        let first = if cost == 1 { Source::Cache } else { Source::Store };
        assert_eq!(charge(&store, &policy, "k", cost).await.source(), first);
        assert_eq!(charge(&store, &policy, "k", cost).await.source(), Source::Cache);
    }
    assert_eq!(charge(&store, &policy, "other", 5).await.source(), Source::Store);
    // A peek is never denied, and a cost above the capacity never passes.
    let key = Key::from("k");
    let peek = store.peek(&policy, &key).await.unwrap();
    assert_eq!((peek.source(), peek.is_admitted()), (Source::Store, true));
    let exceeds = charge(&store, &policy, "k", 11).await;
    assert_eq!(exceeds.decisions()[0].outcome, Outcome::ExceedsCapacity);
    assert_eq!(exceeds.source(), Source::Cache);
    // With too many costs, only the latest are remembered.
    for cost in [2, 3, 4] {
        charge(&store, &policy, "k", cost).await;
    }
    assert_eq!(charge(&store, &policy, "k", 4).await.source(), Source::Cache);
    assert_eq!(charge(&store, &policy, "k", 5).await.source(), Source::Store);
    // A denied unit fits into a larger quota.
    assert_eq!(charge(&store, &policy, "k", 1).await.source(), Source::Cache);
    assert!(charge(&store, &super::policy(11), "k", 1).await.is_admitted());
}

/// Another replica may have taken the other policy's remaining units, which this store cannot know.
#[tokio::test]
async fn unfrozen_denials_are_not_cached() {
    let server = Redis::start();
    let store = cached(&server).await;
    let (few, many) = (policy(3), Policy::fixed_window_counter("many", Quota::per_day(9)).unwrap());
    let key = Key::GLOBAL;
    let both = |cost| [&few, &many].map(|policy| Charge::new(policy, &key, Cost::new(cost)));
    assert!(store.decide(&both(3)).await.unwrap().is_admitted());
    assert_eq!(store.decide(&both(3)).await.unwrap().source(), Source::Store);
    // `many` had room for three units, but its state may have changed since.
    let denied = store.decide(&both(3)).await.unwrap();
    assert_eq!(denied.source(), Source::Cache);
    assert!(matches!(denied.decisions()[0].outcome, Outcome::Deny { .. }));
    assert_eq!(denied.decisions()[1], Decision::undecided(9));
    // With two units left, `many` denies as well, and only Redis knows for how long.
    store.charge(&many, &key, Cost::new(4)).await.unwrap();
    store.charge(&few, &key, Cost::new(2)).await.unwrap();
    let mixed = [both(2)[0], both(3)[1]];
    for _ in 0..2 {
        let denied = store.decide(&mixed).await.unwrap();
        assert_eq!(denied.source(), Source::Store);
        assert!(denied.decisions().iter().all(Decision::denies));
    }
    // An unknown key may be out of units for longer.
    let other = Policy::fixed_window_counter("other", Quota::per_day(9)).unwrap();
    let unknown = [both(2)[0], Charge::new(&other, &key, Cost::ONE)];
    assert_eq!(store.decide(&unknown).await.unwrap().source(), Source::Store);
    assert_eq!(store.decide(&unknown).await.unwrap().source(), Source::Cache);
}

/// Each denial is a strike, and the block is longer than the denial.
#[tokio::test]
async fn penalty_is_cached_once_it_blocks() {
    let server = Redis::start();
    let store = cached(&server).await;
    let strikes = Strikes::of_denials(3, Duration::from_secs(600)).block(2 * DAY);
    let (limit, penalty) = (policy(1), Policy::penalty("penalty", strikes).unwrap());
    let key = Key::GLOBAL;
    let both = [&limit, &penalty].map(|policy| Charge::new(policy, &key, Cost::ONE));
    assert!(store.decide(&both).await.unwrap().is_admitted());
    for strike in 1..=5 {
        let denied = store.decide(&both).await.unwrap();
        assert_eq!(denied.source() == Source::Cache, strike > 3, "{strike}: {denied:?}");
        assert_eq!(denied.decisions()[1].denies(), strike >= 3, "{strike}: {denied:?}");
    }
}

const DAY: Duration = Duration::from_secs(86_400);

#[tokio::test]
async fn own_reset_clears_the_cache() {
    let server = Redis::start();
    let store = cached(&server).await;
    let policy = policy(1);
    for _ in 0..20 {
        assert!(charge(&store, &policy, "k", 1).await.is_admitted());
        assert!(!charge(&store, &policy, "k", 1).await.is_admitted());
        // The denial is in flight while the reset is requested, and may arrive after it.
        let key = Key::from("k");
        let denied = store.charge(&policy, &Key::from("k"), Cost::new(1));
        let (denied, reset) = tokio::join!(denied, store.reset(&policy, &key));
        let (_, ()) = (denied.unwrap(), reset.unwrap());
        // The remembered answer is correct for either order.
        store.reset(&policy, &key).await.unwrap();
    }
}

#[tokio::test]
async fn settled_policy_is_not_cached() {
    let server = Redis::start();
    let store = cached(&server).await;
    let policy = policy(10);
    let key = Key::from("k");
    let charges = [Charge::new(&policy, &key, Cost::new(10))];
    let verdict = store.decide(&charges).await.unwrap();
    let receipts: Vec<Receipt> = verdict.receipts(&charges, || ReceiptId(1)).collect();
    assert!(!charge(&store, &policy, "k", 1).await.is_admitted());
    store.settle(&receipts[0], Cost::new(9)).await.unwrap();
    assert!(charge(&store, &policy, "k", 1).await.is_admitted());
    for _ in 0..3 {
        assert_eq!(charge(&store, &policy, "k", 1).await.source(), Source::Store);
    }
}

#[tokio::test]
async fn foreign_reset_is_noticed_within_bound() {
    let server = Redis::start();
    let store = connected(patient(&server.url()).deny_cache(Duration::from_millis(100))).await;
    let other = connected(patient(&server.url())).await;
    let policy = policy(1);
    charge(&store, &policy, "k", 1).await;
    assert!(!charge(&store, &policy, "k", 1).await.is_admitted());
    other.reset(&policy, &Key::from("k")).await.unwrap();
    until_async("the reset is noticed", Duration::from_secs(5), async || {
        charge(&store, &policy, "k", 1).await.is_admitted().then_some(())
    })
    .await;
}

/// Redis reports another instant for the first unit, so the remembered answers are wrong.
#[tokio::test]
async fn refilled_key_replaces_cached_costs() {
    let server = Redis::start();
    let (store, other) = (cached(&server).await, cached(&server).await);
    let policy = Policy::token_bucket("p", Quota::per_day(5)).unwrap();
    assert!(charge(&store, &policy, "k", 5).await.is_admitted());
    for source in [Source::Store, Source::Cache] {
        assert_eq!(charge(&store, &policy, "k", 3).await.source(), source);
    }
    other.reset(&policy, &Key::from("k")).await.unwrap();
    assert!(charge(&other, &policy, "k", 5).await.is_admitted());
    assert_eq!(charge(&store, &policy, "k", 5).await.source(), Source::Store);
    for source in [Source::Store, Source::Cache] {
        assert_eq!(charge(&store, &policy, "k", 3).await.source(), source);
    }
}

#[tokio::test]
async fn cache_can_be_disabled() {
    let server = Redis::start();
    let store = connected(patient(&server.url()).deny_cache(Duration::ZERO)).await;
    let policy = policy(1);
    for _ in 0..5 {
        assert_eq!(charge(&store, &policy, "k", 1).await.source(), Source::Store);
    }
}

#[tokio::test]
async fn shadow_denials_are_not_cached() {
    let server = Redis::start();
    let store = cached(&server).await;
    let policy = policy(1);
    let key = Key::from("k");
    charge(&store, &policy, "k", 1).await;
    for _ in 0..3 {
        let shadow = [Charge::new(&policy, &key, Cost::ONE).shadow()];
        let verdict = store.decide(&shadow).await.unwrap();
        assert!(verdict.is_admitted() && verdict.source() == Source::Store);
    }
}

/// The reset is executed after a denial was remembered, and its answer is lost.
#[tokio::test]
async fn lost_reset_clears_the_cache() {
    let server = Redis::start();
    let proxy = Proxy::start(server.address());
    let builder = patient(&proxy.url()).deny_cache(Duration::from_secs(60));
    let store = connected(builder).await;
    let policy = policy(1);
    let key = Key::from("k");
    charge(&store, &policy, "k", 1).await;
    // The reset is requested but not sent while a denial arrives.
    let reset = store.reset(&policy, &key);
    assert!(!charge(&store, &policy, "k", 1).await.is_admitted());
    let name = store.name_of(&policy, &key);
    let name = std::str::from_utf8(&name).unwrap();
    proxy.swallow_replies();
    let reset = tokio::spawn(reset);
    while server.cmd(&["EXISTS", name]).number() == 1 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    proxy.cut();
    proxy.pass();
    assert!(reset.await.unwrap().unwrap_err().may_have_charged());
    store.connected().await;
    assert!(charge(&store, &policy, "k", 1).await.is_admitted());
}
