//! What is remembered of denials, and when it is not.

use std::time::Duration;

use fastrand::Rng;
use tollgate_core::{
    Algorithm, Charge, Cost, Key, LeakyMode, Micros, Policy, Quota, Receipt, ReceiptId, Refill,
    Resolution, Source, Store, StoreExt, Verdict,
};
use tollgate_redis::RedisStore;
use tollgate_test_servers::{Proxy, Redis};

use super::{charge, connected, patient, policy};

async fn cached(server: &Redis) -> RedisStore {
    connected(patient(&server.url()).deny_cache(Duration::from_secs(60))).await
}

#[tokio::test]
async fn a_flood_of_denied_requests_asks_redis_once() {
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
async fn only_what_was_denied_is_remembered() {
    let server = Redis::start();
    let store = cached(&server).await;
    let policy = policy(10);
    charge(&store, &policy, "k", 7).await;
    assert!(!charge(&store, &policy, "k", 5).await.is_admitted());
    // Dearer is denied all the more, other keys are others, and cheaper may fit.
    assert_eq!(charge(&store, &policy, "k", 6).await.source(), Source::Cache);
    assert!(charge(&store, &policy, "other", 5).await.is_admitted());
    let cheap = charge(&store, &policy, "k", 3).await;
    assert!(cheap.is_admitted() && cheap.source() == Source::Store);
    // A denial of less takes the place of one of more.
    assert_eq!(charge(&store, &policy, "k", 2).await.source(), Source::Store);
    assert_eq!(charge(&store, &policy, "k", 2).await.source(), Source::Cache);
    // To peek is never denied, and what can never fit is another answer.
    assert!(store.peek(&policy, &Key::from("k")).await.unwrap().is_admitted());
    assert_eq!(charge(&store, &policy, "k", 11).await.source(), Source::Store);
}

#[tokio::test]
async fn a_raised_quota_is_asked_for_anew() {
    let server = Redis::start();
    let store = cached(&server).await;
    charge(&store, &policy(1), "k", 1).await;
    assert!(!charge(&store, &policy(1), "k", 1).await.is_admitted());
    assert!(charge(&store, &policy(2), "k", 1).await.is_admitted());
}

#[tokio::test]
async fn a_reset_of_ones_own_is_known_at_once() {
    let server = Redis::start();
    let store = cached(&server).await;
    let policy = policy(1);
    for _ in 0..20 {
        assert!(charge(&store, &policy, "k", 1).await.is_admitted());
        assert!(!charge(&store, &policy, "k", 1).await.is_admitted());
        // The denial is under way while the reset is asked for, and may come after it.
        let key = Key::from("k");
        let denied = store.charge(&policy, &Key::from("k"), Cost::new(1));
        let (denied, reset) = tokio::join!(denied, store.reset(&policy, &key));
        let (_, ()) = (denied.unwrap(), reset.unwrap());
        // Whoever was decided last: what is remembered now is true.
        store.reset(&policy, &key).await.unwrap();
    }
}

#[tokio::test]
async fn a_policy_that_settles_is_not_remembered() {
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
async fn what_another_process_gives_back_is_seen_within_the_bound() {
    let server = Redis::start();
    let store = connected(patient(&server.url()).deny_cache(Duration::from_millis(100))).await;
    let other = connected(patient(&server.url())).await;
    let policy = policy(1);
    charge(&store, &policy, "k", 1).await;
    assert!(!charge(&store, &policy, "k", 1).await.is_admitted());
    other.reset(&policy, &Key::from("k")).await.unwrap();
    let began = std::time::Instant::now();
    while !charge(&store, &policy, "k", 1).await.is_admitted() {
        assert!(began.elapsed() < Duration::from_secs(5));
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn it_can_be_switched_off() {
    let server = Redis::start();
    let store = connected(patient(&server.url()).deny_cache(Duration::ZERO)).await;
    let policy = policy(1);
    for _ in 0..5 {
        assert_eq!(charge(&store, &policy, "k", 1).await.source(), Source::Store);
    }
}

#[tokio::test]
async fn a_shadow_that_would_deny_is_no_denial() {
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

/// The same requests to two stores in turn, one that remembers and one that asks each time,
/// each with keys of its own: both admit the same.
#[tokio::test]
async fn with_it_and_without_it_the_same_requests_pass() {
    let server = Redis::start();
    let with =
        connected(patient(&server.url()).namespace("with").deny_cache(Duration::from_secs(60)))
            .await;
    let without =
        connected(patient(&server.url()).namespace("without").deny_cache(Duration::ZERO)).await;
    let mut rng = Rng::with_seed(11);
    let algorithms = [
        Algorithm::FixedWindowCounter,
        Algorithm::SlidingWindowCounter,
        Algorithm::SlidingWindowLog { resolution: Resolution::Auto },
        Algorithm::TokenBucket { refill: Refill::Interval },
        Algorithm::LeakyBucket { mode: LeakyMode::Meter },
    ];
    // Nothing comes back while this runs, so that the instant of asking plays no part.
    let policies: Vec<Policy> = algorithms
        .into_iter()
        .enumerate()
        .map(|(n, algorithm)| {
            Policy::new(format!("p{n}"), Quota::per_day(40 + n as u64), algorithm).unwrap()
        })
        .collect();
    let (mut admitted, mut denied) = (0, 0);
    for step in 0..3_000 {
        let count = rng.usize(1..=3);
        let chosen: Vec<_> = (0..count)
            .map(|_| {
                (&policies[rng.usize(..policies.len())], Key::from(["a", "b"][rng.usize(..2)]))
            })
            .collect();
        let charges: Vec<_> = chosen
            .iter()
            .map(|(policy, key)| Charge {
                policy,
                key,
                cost: Cost::new(rng.u64(0..=6)),
                enforce: rng.u8(..5) > 0,
                dry: false,
            })
            .collect();
        let (one, other): (Verdict, Verdict) =
            (with.decide(&charges).await.unwrap(), without.decide(&charges).await.unwrap());
        assert_eq!(one.is_admitted(), other.is_admitted(), "step {step}: {charges:?}");
        if one.is_admitted() {
            admitted += 1
        } else {
            denied += 1
        }
        if rng.u16(..200) == 0 {
            let (policy, key) = &chosen[0];
            with.reset(policy, key).await.unwrap();
            without.reset(policy, key).await.unwrap();
        }
    }
    assert!(admitted > 200 && denied > 200, "{admitted} {denied}");
    assert!(with.stats().deny_cache_hits > 100, "{:?}", with.stats());
}

/// The reset is carried out after a denial that is remembered, and nobody hears of it.
#[tokio::test]
async fn a_reset_whose_answer_is_lost_may_have_been_made() {
    let server = Redis::start();
    let proxy = Proxy::start(server.address());
    let builder = patient(&proxy.url()).deny_cache(Duration::from_secs(60));
    let store = connected(builder).await;
    let policy = policy(1);
    let key = Key::from("k");
    charge(&store, &policy, "k", 1).await;
    // Asked for, and not sent yet, while a denial comes in.
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

/// Others take what is left while it is remembered: what is said to remain is old.
#[tokio::test]
async fn the_waits_of_a_remembered_denial_are_lower_bounds_and_the_rest_is_as_it_was() {
    let server = Redis::start();
    let store = cached(&server).await;
    let policy = policy(10);
    charge(&store, &policy, "k", 5).await;
    let denied = charge(&store, &policy, "k", 6).await;
    charge(&store, &policy, "k", 5).await;
    let remembered = charge(&store, &policy, "k", 6).await;
    assert_eq!(remembered.source(), Source::Cache);
    assert_eq!(remembered.decisions()[0].remaining, denied.decisions()[0].remaining);
    let other = connected(patient(&server.url())).await;
    let asked = charge(&other, &policy, "k", 6).await;
    assert_eq!((asked.source(), asked.decisions()[0].remaining), (Source::Store, 0));
    assert!(remembered.decisions()[0].retry_after() <= denied.decisions()[0].retry_after());
}
