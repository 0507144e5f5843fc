//! Requests while the store is down.

use std::time::Duration;

use http::StatusCode;
use tollgate::key::Key;
use tollgate::layer::LayerError;
use tollgate::policy::{Cost, OnStoreError};
use tollgate::store::{Charge, ManualClock, Micros, ReceiptId, Settlement};
use tollgate::{Limit, MemoryStore, Policy, RateLimitLayer, Store, StoreExt};

use tower::{Layer, ServiceExt};

use crate::stage::{Fault, Staged};
use crate::support::*;

type Remote = Staged<MemoryStore<ManualClock>>;

fn remote() -> Remote {
    Staged::new(memory().1)
}

fn on(name: &str, limit: u64, on_store_error: OnStoreError) -> Policy {
    log(name, limit).with_on_store_error(on_store_error)
}

const FAULTS: [Fault; 3] =
    [Fault::NotCharged, Fault::MaybeCharged, Fault::RetryAfter(Micros::new(2_500_000))];

#[tokio::test]
async fn fail_open_adds_no_header() {
    let store = remote();
    let service = limited(&store, [Limit::global(on("open", 1, OnStoreError::Open))]);
    for fault in FAULTS {
        store.fail(fault);
        for _ in 0..3 {
            let response = ask(&service, get()).await;
            assert_eq!(response.status(), 200, "{fault:?}");
            assert_eq!(rate_fields(response.headers()), Vec::<String>::new());
        }
    }
}

#[tokio::test]
async fn client_layer_fails_closed() {
    let max_wait = Duration::from_secs(1);
    for (policy, expected) in
        [(log("granted", 9), 503), (on("granted", 9, OnStoreError::Open), 200)]
    {
        let store = remote();
        store.fail(Fault::NotCharged);
        let layer = RateLimitLayer::for_client(store, policy.clone(), max_wait).unwrap();
        assert_eq!(status(&layer.layer(hello())).await, expected);
    }
    let store = remote();
    store.fail(Fault::NotCharged);
    let store = store.or_local(memory().1);
    let layer = RateLimitLayer::for_client(store, log("granted", 9), max_wait).unwrap();
    assert_eq!(status(&layer.layer(hello())).await, 200);
}

/// Only the second request is delayed.
#[tokio::test(start_paused = true)]
async fn client_layer_adds_no_header() {
    let store = remote();
    store.fail(Fault::NotCharged);
    let store = store.or_local(on_tokio_time());
    let policy = Policy::leaky_bucket("queue", tollgate::Quota::per_second(10)).unwrap();
    let layer = RateLimitLayer::for_client(store, policy, Duration::from_secs(1)).unwrap();
    let service = layer.layer(hello());
    for _ in 0..2 {
        let response = ask(&service, get()).await;
        assert_eq!(rate_fields(response.headers()), Vec::<String>::new());
    }
}

#[tokio::test]
async fn fail_closed_rejects_until_recovery() {
    let store = remote();
    let service = limited(&store, [Limit::global(on("closed", 9, OnStoreError::Closed))]);
    for (fault, retry_after) in FAULTS.into_iter().zip(["1", "1", "3"]) {
        store.fail(fault);
        let response = ask(&service, get()).await;
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        let reason = "x-ratelimit-reason: temporary-reduced-capacity".to_owned();
        let fields = [format!("retry-after: {retry_after}"), reason];
        assert_eq!(rate_fields(response.headers()), fields);
        assert_eq!(response.headers()["cache-control"], "no-store");
        let problem = json(response).await;
        let expected = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
        assert_eq!(problem["type"], expected);
        assert_eq!(problem["violated-policies"], serde_json::json!(["closed"]));
    }
    store.recover();
    let response = ask(&service, get()).await;
    assert_eq!(response.status(), 200);
    let left = field(response.headers(), "x-ratelimit-remaining");
    assert_eq!(left.as_deref(), Some("7"), "the charge counts although its answer was lost");
}

#[test]
fn local_policy_needs_fallback_store() {
    let local = || Limit::global(on("local", 9, OnStoreError::Local));
    let shed = log("local", 9).with_shed(OnStoreError::Local);
    let expected = LayerError::NoLocalStore("local".into());
    // Without a fallback, a shadow policy would silently record no outcomes during an outage.
    for limits in [
        vec![local()],
        vec![Limit::global(log("all", 9)), local().shadow()],
        vec![Limit::global(shed)],
    ] {
        assert_eq!(builder(&remote(), limits.clone()).build().unwrap_err(), expected);
        let fallback = remote().or_local(MemoryStore::new());
        assert!(builder(&fallback, limits).build().is_ok());
    }
}

#[tokio::test]
async fn default_failure_policy_depends_on_store() {
    let store = remote();
    let tiers = || Limit::global(log("all", 4)).in_tier("vip", tollgate::Quota::per_minute(8));
    let limit = || tiers().unwrap();
    let tier = || tollgate::tier::from_fn(|_| Some("vip"));
    let with_local = builder(&store.clone().or_local(memory().1), [limit()]).tiers(tier());
    let with_local = with_local.build().unwrap().layer(hello());
    let alone = builder(&store, [limit()]).tiers(tier()).build().unwrap().layer(hello());
    store.fail(Fault::NotCharged);
    for expected in [200, 200, 200, 200, 429] {
        assert_eq!(status(&with_local).await, expected, "half of the tier's quota");
        assert_eq!(status(&alone).await, 200);
    }
}

#[tokio::test]
async fn shed_requests_use_the_shed_policy() {
    use OnStoreError::{Closed, Local, Open};
    for (on_store_error, shed, expected) in [
        (None, None, [[200, 429]; 2]),
        (Some(Open), None, [[200, 200]; 2]),
        (Some(Closed), None, [[503, 503]; 2]),
        (Some(Open), Some(Closed), [[200, 200], [503, 503]]),
        (Some(Closed), Some(Open), [[503, 503], [200, 200]]),
        (Some(Closed), Some(Local), [[503, 503], [200, 429]]),
        (None, Some(Open), [[200, 429], [200, 200]]),
    ] {
        for (fault, expected) in [Fault::NotCharged, Fault::Overloaded].into_iter().zip(expected) {
            let store = remote();
            let policy = on_store_error.into_iter().fold(log("p", 2), Policy::with_on_store_error);
            let policy = shed.into_iter().fold(policy, Policy::with_shed);
            let fallback = store.clone().or_local(memory().1);
            let service = limited(&fallback, [Limit::global(policy)]);
            store.fail(fault);
            for expected in expected {
                let told = status(&service).await;
                assert_eq!(told, expected, "{on_store_error:?}, shed {shed:?}: {fault:?}");
            }
        }
    }
}

#[tokio::test]
async fn reduced_capacity_is_announced() {
    const REASON: &str = "x-ratelimit-reason";
    let reduced = Some("temporary-reduced-capacity");
    let (store, (_, local)) = (remote(), memory());
    let service = limited(&store.clone().or_local(local), [Limit::global(log("local", 4))]);
    let closed = on("closed", 9, OnStoreError::Closed);
    let refusing = limited(&store, [Limit::global(closed)]);
    for service in [ask(&service, get()).await, ask(&refusing, get()).await] {
        assert_eq!(field(service.headers(), REASON), None);
    }
    store.fail(Fault::Overloaded);
    for expected in [200, 200, 429] {
        let response = ask(&service, get()).await;
        assert_eq!(response.status(), expected);
        assert_eq!(field(response.headers(), REASON).as_deref(), reduced);
    }
    let response = ask(&refusing, get()).await;
    assert_eq!(response.status(), 503);
    assert_eq!(field(response.headers(), REASON).as_deref(), reduced);
}

#[tokio::test]
async fn open_policy_is_hidden_beside_local() {
    let (store, (_, local)) = (remote(), memory());
    let fallback = store.clone().or_local(local);
    let limits = [
        Limit::global(on("open", 1, OnStoreError::Open)),
        Limit::global(on("local", 4, OnStoreError::Local)),
        Limit::global(on("local-too", 6, OnStoreError::Local)),
    ];
    let service = limited(&fallback, limits);
    store.fail(Fault::NotCharged);
    for expected in [200, 200, 429] {
        let response = ask(&service, get()).await;
        assert_eq!(response.status(), expected);
        let members = field(response.headers(), "ratelimit").unwrap();
        assert!(!members.contains(r#""open""#) && members.contains(r#""local""#), "{members}");
        if expected == 429 {
            assert!(members.contains(r#""local-too";r=1;"#), "not charged: {members}");
        }
    }
}

/// The local store decides after the client has left, because the store failed only then.
#[tokio::test]
async fn departed_request_is_not_charged_locally() {
    let (store, (_, local)) = (remote(), memory());
    let fallback = store.clone().or_local(local.clone());
    let rate = on("rate", 8, OnStoreError::Local);
    let permits = Policy::concurrent_requests("permits", 6, Duration::from_secs(60)).unwrap();
    let service = limited(&fallback, [&rate, &permits].map(|it| Limit::global(it.clone())));
    store.hold();
    store.fail(Fault::NotCharged);
    let leaving = tokio::spawn(service.oneshot(get()));
    settle_down().await;
    leaving.abort();
    settle_down().await;
    store.release();
    settle_down().await;
    for (policy, share) in [(rate, 4), (permits, 3)] {
        assert_eq!(left(&local, &policy.share(1, 2).unwrap()).await, share, "{policy}");
    }
}

#[tokio::test]
async fn local_debt_is_capped() {
    let (store, (_, local)) = (remote(), memory());
    let fallback = store.clone().or_local(local);
    let policy = on("local", 8, OnStoreError::Local);
    let charges = [Charge::new(&policy, &Key::GLOBAL, Cost::new(3))];
    store.fail(Fault::NotCharged);
    let verdict = fallback.decide(&charges).await.unwrap();
    let receipt = verdict.receipts(&charges, || ReceiptId(1)).next().unwrap();
    let settled = fallback.settle(&receipt, Cost::new(100)).await.unwrap();
    assert_eq!(
        settled,
        Settlement::Charged { units: 5 },
        "the local capacity of 4 plus the same in debt, minus the 3 charged before"
    );
}

#[tokio::test]
async fn invalid_requests_do_not_fall_back() {
    let (store, (_, local)) = (remote(), memory());
    let fallback = store.clone().or_local(local);
    let policy = on("local", 8, OnStoreError::Local);
    store.fail(Fault::Invalid);
    assert!(!fallback.charge(&policy, &Key::GLOBAL, Cost::ONE).await.unwrap_err().is_outage());
}

#[tokio::test]
async fn fallback_uses_the_configured_share() {
    let (store, (_, local)) = (remote(), memory());
    let fallback = store.clone().or_local(local).with_share(1, 4).unwrap();
    store.fail(Fault::NotCharged);
    for (name, limit, share) in [("some", 100, 25), ("few", 3, 1), ("one", 1, 1)] {
        let policy = on(name, limit, OnStoreError::Local);
        let verdict = fallback.peek(&policy, &Key::GLOBAL).await.unwrap();
        assert_eq!(verdict.decisions()[0].limit, share, "{name}");
    }
}
