//! What becomes of requests while the store cannot decide.

use std::time::Duration;

use http::StatusCode;
use tokio::time::advance;
use tollgate::failure::{Breaker, BreakerState, Fallback};
use tollgate::{
    Charge, Cost, Key, LayerError, Limit, ManualClock, MemoryStore, Micros, OnStoreError, Policy,
    ReceiptId, Settlement, Source, Store, StoreExt,
};

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
async fn an_open_policy_lets_pass_without_any_field() {
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
async fn a_closed_policy_refuses_until_the_next_probe() {
    let store = remote();
    let service = limited(&store, [Limit::global(on("closed", 9, OnStoreError::Closed))]);
    for (fault, retry_after) in FAULTS.into_iter().zip(["1", "1", "3"]) {
        store.fail(fault);
        let response = ask(&service, get()).await;
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(rate_fields(response.headers()), [format!("retry-after: {retry_after}")]);
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
    assert_eq!(left.as_deref(), Some("7"), "one answer was lost, and its charge counts");
}

#[tokio::test]
async fn one_closed_policy_refuses_for_all_that_apply() {
    let store = remote();
    let closed = Limit::global(on("closed", 9, OnStoreError::Closed));
    let closed = closed.when(|head| head.uri.path() == "/login");
    let others = [("open", OnStoreError::Open), ("local", OnStoreError::Local)];
    let others = others.map(|(name, failing)| Limit::global(on(name, 9, failing)));
    let fallback = Fallback::new(store.clone(), MemoryStore::new());
    let service = limited(&fallback, others.into_iter().chain([closed]));
    store.fail(Fault::NotCharged);
    let login = request(http::Method::GET, "/login");
    let problem = json(ask(&service, login).await).await;
    assert_eq!(problem["status"], 503);
    assert_eq!(problem["violated-policies"], serde_json::json!(["closed"]));
    assert_eq!(status(&service).await, 200, "elsewhere it does not apply");
}

#[test]
fn a_local_policy_needs_a_store_with_a_local_fallback() {
    let local = || Limit::global(on("local", 9, OnStoreError::Local));
    let expected = LayerError::NoLocalStore { name: "local".into() };
    // A policy that only watches would silently watch nothing during an outage.
    for limits in [vec![local()], vec![Limit::global(log("all", 9)), local().shadow()]] {
        assert_eq!(builder(&remote(), limits.clone()).build().unwrap_err(), expected);
        let breaker = Breaker::new(remote());
        assert_eq!(builder(&breaker, limits.clone()).build().unwrap_err(), expected);
        let fallback = Fallback::new(breaker, MemoryStore::new());
        assert!(builder(&fallback, limits.clone()).build().is_ok());
        assert!(builder(&Breaker::new(fallback), limits).build().is_ok());
    }
}

#[tokio::test]
async fn a_local_policy_goes_on_with_half_of_its_quota() {
    let (store, (_, local)) = (remote(), memory());
    let fallback = Fallback::new(store.clone(), local);
    let service = limited(&fallback, [Limit::global(on("local", 4, OnStoreError::Local))]);
    assert_eq!(status(&service).await, 200);
    store.fail(Fault::NotCharged);
    for remaining in ["1", "0"] {
        let response = ask(&service, get()).await;
        assert_eq!(response.status(), 200);
        assert_eq!(field(response.headers(), "x-ratelimit-limit").as_deref(), Some("2"));
        assert_eq!(field(response.headers(), "x-ratelimit-remaining").as_deref(), Some(remaining));
    }
    assert_eq!(status(&service).await, 429);
    store.recover();
    let response = ask(&service, get()).await;
    assert_eq!(field(response.headers(), "x-ratelimit-remaining").as_deref(), Some("2"));
}

#[tokio::test]
async fn beside_a_local_policy_an_open_one_passes_and_shows_nothing() {
    let (store, (_, local)) = (remote(), memory());
    let fallback = Fallback::new(store.clone(), local);
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
            assert!(members.contains(r#""local-too";r=1;"#), "all or none: {members}");
        }
    }
}

#[tokio::test]
async fn beside_a_local_policy_a_closed_one_wins() {
    let (store, (_, local)) = (remote(), memory());
    let fallback = Fallback::new(store.clone(), local.clone());
    let policy = on("local", 4, OnStoreError::Local);
    let closed = Limit::global(on("closed", 9, OnStoreError::Closed));
    let limits = [Limit::global(policy.clone()), closed.clone()];
    let service = limited(&fallback, limits);
    store.fail(Fault::NotCharged);
    assert_eq!(status(&service).await, 503);
    let left = local.peek(&policy.share(1, 2).unwrap(), &Key::GLOBAL).await.unwrap();
    assert_eq!(left.decisions()[0].remaining, 2, "nothing was charged locally");
    // A closed one that only watches refuses nobody.
    let service = limited(&fallback, [Limit::global(policy), closed.shadow()]);
    assert_eq!(status(&service).await, 200);
}

#[tokio::test]
async fn what_a_local_store_charged_is_settled_there() {
    let (store, (_, local)) = (remote(), memory());
    let fallback = Fallback::new(store.clone(), local.clone());
    let policy = on("local", 8, OnStoreError::Local);
    let charges = [Charge::new(&policy, &Key::GLOBAL, Cost::new(3))];
    for (fault, source) in [(None, Source::Store), (Some(Fault::NotCharged), Source::Local)] {
        fault.inspect(|fault| store.fail(*fault));
        let verdict = fallback.decide(&charges).await.unwrap();
        assert_eq!(verdict.source(), source);
        let id = ReceiptId(source as u128);
        let receipt = verdict.receipts(&charges, || id).next().unwrap();
        let settled = fallback.settle(&receipt, Cost::ONE).await.unwrap();
        assert_eq!(settled, Settlement::Returned { units: 2 });
        assert_eq!(fallback.settle(&receipt, Cost::ONE).await.unwrap(), Settlement::Repeated);
    }
    assert_eq!(store.settled(), 2, "the remote one settled only its own");
    let left = local.peek(&policy.share(1, 2).unwrap(), &Key::GLOBAL).await.unwrap();
    assert_eq!(left.decisions()[0].remaining, 3);
}

#[tokio::test]
async fn a_local_debt_is_at_most_one_local_capacity() {
    let (store, (_, local)) = (remote(), memory());
    let fallback = Fallback::new(store.clone(), local);
    let policy = on("local", 8, OnStoreError::Local);
    let charges = [Charge::new(&policy, &Key::GLOBAL, Cost::new(3))];
    store.fail(Fault::NotCharged);
    let verdict = fallback.decide(&charges).await.unwrap();
    let receipt = verdict.receipts(&charges, || ReceiptId(1)).next().unwrap();
    let settled = fallback.settle(&receipt, Cost::new(100)).await.unwrap();
    assert_eq!(
        settled,
        Settlement::Charged { units: 5 },
        "twice four units, of which 3 were taken"
    );
}

#[tokio::test]
async fn an_error_of_the_request_is_not_decided_locally() {
    let (store, (_, local)) = (remote(), memory());
    let fallback = Fallback::new(store.clone(), local);
    let policy = on("local", 8, OnStoreError::Local);
    store.fail(Fault::Invalid);
    assert!(!fallback.charge(&policy, &Key::GLOBAL, Cost::ONE).await.unwrap_err().is_outage());
}

#[tokio::test]
async fn the_share_is_that_which_was_stated() {
    let (store, (_, local)) = (remote(), memory());
    let fallback = Fallback::with_share(store.clone(), local, 1, 4);
    store.fail(Fault::NotCharged);
    for (name, limit, share) in [("some", 100, 25), ("few", 3, 1), ("one", 1, 1)] {
        let policy = on(name, limit, OnStoreError::Local);
        let verdict = fallback.peek(&policy, &Key::GLOBAL).await.unwrap();
        assert_eq!(verdict.decisions()[0].limit, share, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_costs_only_some_requests_their_timeout() {
    let store = remote();
    let breaker = Breaker::with(store.clone(), 3, Duration::from_secs(2));
    let closed = Limit::global(on("closed", 99, OnStoreError::Closed));
    let service = limited(&breaker, [closed]);
    store.fail(Fault::NotCharged);
    for n in 1..=10 {
        let response = ask(&service, get()).await;
        assert_eq!(response.status(), 503);
        let wait = field(response.headers(), "retry-after");
        assert_eq!(wait.as_deref(), Some(if n <= 3 { "1" } else { "2" }), "the next probe");
    }
    assert_eq!((store.calls(), breaker.state()), (3, BreakerState::Open));
    store.recover();
    advance(Duration::from_millis(1_500)).await;
    let response = ask(&service, get()).await;
    assert_eq!(response.status(), 503, "nobody has looked yet");
    assert_eq!(field(response.headers(), "retry-after").as_deref(), Some("1"));
    advance(Duration::from_millis(500)).await;
    assert_eq!(status(&service).await, 200, "the probe is a request like any other");
    assert_eq!(breaker.state(), BreakerState::Closed);
    assert_eq!(status(&service).await, 200);
}

#[tokio::test(start_paused = true)]
async fn a_local_store_behind_an_open_breaker_decides_at_once() {
    let (store, (_, local)) = (remote(), memory());
    let breaker = Breaker::with(store.clone(), 1, Duration::from_secs(1));
    let fallback = Fallback::new(breaker, local);
    let service = limited(&fallback, [Limit::global(on("local", 6, OnStoreError::Local))]);
    store.fail(Fault::MaybeCharged);
    for expected in [200, 200, 200, 429] {
        assert_eq!(status(&service).await, expected);
    }
    assert_eq!(store.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_queue_goes_on_locally_and_places_come_back_there() {
    let (store, local) = (remote(), on_tokio_time());
    let fallback = Fallback::with_share(store.clone(), local.clone(), 1, 1);
    let policy = Policy::leaky_bucket("queue", tollgate::Quota::per_second(10).burst(5)).unwrap();
    let policy = policy.with_on_store_error(OnStoreError::Local);
    let service = limited(&fallback, [Limit::global(policy.clone())]);
    store.fail(Fault::NotCharged);
    assert_eq!(status(&service).await, 200);
    let leaving = tokio::time::timeout(Duration::from_millis(5), ask(&service, get())).await;
    assert!(leaving.is_err(), "it waits for its turn, and its client is gone");
    let left = local.peek(&policy.share(1, 1).unwrap(), &Key::GLOBAL).await.unwrap();
    assert_eq!((left.decisions()[0].remaining, store.settled()), (4, 0));
}
