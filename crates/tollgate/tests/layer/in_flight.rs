//! Limits on what is in flight: when requests are over, and what is held until then.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::get as on_get;
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use serde_json::json;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, advance, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tollgate::failure::Fallback;
use tollgate::{
    Cost, Costs, Excess, Key, LayerError, Limit, OnStoreError, Policy, Quota, Reserve, Store,
    StoreExt,
};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::stage::{Fault, Staged};
use crate::support::*;

const LEASE: Duration = Duration::from_secs(30);

fn at_once(limit: u64) -> Policy {
    Policy::concurrent_requests("at-once", limit, LEASE).unwrap()
}

async fn left<St: Store>(store: &St, policy: &Policy) -> u64 {
    store.peek(policy, &Key::GLOBAL).await.unwrap().decisions()[0].remaining
}

/// Runs everything that can run without time passing.
async fn settle_down() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

/// A service that answers when it is let, and counts those that are in it.
#[derive(Clone, Default)]
struct Slow {
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    go: Arc<Notify>,
}

impl Slow {
    fn service(
        &self,
    ) -> impl Service<
        Request<()>,
        Response = Response<Full<Bytes>>,
        Error = Infallible,
        Future: Send + 'static,
    > + Clone
    + Send
    + 'static {
        let slow = self.clone();
        service_fn(move |_| {
            let slow = slow.clone();
            async move {
                let now = slow.now.fetch_add(1, Ordering::SeqCst) + 1;
                slow.most.fetch_max(now, Ordering::SeqCst);
                slow.go.notified().await;
                slow.now.fetch_sub(1, Ordering::SeqCst);
                Ok(Response::new(Full::from("done")))
            }
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_that_come_at_once_no_more_than_the_limit_is_inside() {
    let (_, store) = memory();
    let slow = Slow::default();
    let service = layer(&store, [Limit::global(at_once(7))]).layer(slow.service());
    let mut requests = JoinSet::new();
    for _ in 0..200 {
        requests.spawn(service.clone().oneshot(get()));
    }
    let mut statuses = Vec::new();
    // Those that are denied are answered while the others are inside.
    while statuses.len() < 193 {
        statuses.push(requests.join_next().await.unwrap().unwrap().unwrap().status());
    }
    assert!(statuses.iter().all(|status| *status == 429));
    // Those that were admitted may still be on their way in.
    while slow.now.load(Ordering::SeqCst) < 7 {
        tokio::task::yield_now().await;
    }
    while !requests.is_empty() {
        slow.go.notify_one();
        assert_eq!(requests.join_next().await.unwrap().unwrap().unwrap().status(), 200);
    }
    assert_eq!(slow.most.load(Ordering::SeqCst), 7);
    assert_eq!(left(&store, &at_once(7)).await, 7);
}

fn never() -> Result<Response<Full<Bytes>>, Infallible> {
    panic!("a response that panics")
}

/// A response whose body is made of what is sent to it.
fn streamed()
-> (mpsc::Sender<Result<Frame<Bytes>, Infallible>>, impl http_body::Body<Data = Bytes> + Send) {
    let (sender, receiver) = mpsc::channel(1);
    (sender, StreamBody::new(ReceiverStream::new(receiver)))
}

#[tokio::test]
async fn a_request_is_over_when_its_body_has_ended_or_is_dropped() {
    let (_, store) = memory();
    for is_read in [true, false] {
        let (sender, body) = streamed();
        let body = parking_lot::Mutex::new(Some(body));
        let service = layer(&store, [Limit::global(at_once(2))]).layer(service_fn(|_| {
            let body = body.lock().take().unwrap();
            async { Ok::<_, Infallible>(Response::new(body)) }
        }));
        let mut response = service.oneshot(get()).await.unwrap();
        assert_eq!(left(&store, &at_once(2)).await, 1);
        sender.send(Ok(Frame::data(Bytes::from("a piece")))).await.unwrap();
        assert!(response.body_mut().frame().await.is_some());
        assert_eq!(left(&store, &at_once(2)).await, 1, "it has not ended");
        if is_read {
            drop(sender);
            assert!(response.body_mut().frame().await.is_none());
            assert_eq!(left(&store, &at_once(2)).await, 2, "it is kept, but it has ended");
        } else {
            drop(response);
            assert_eq!(left(&store, &at_once(2)).await, 2, "the client has left");
        }
    }
}

#[tokio::test]
async fn a_body_of_axum_stays_one_and_holds_its_request() {
    let (_, store) = memory();
    let (sender, receiver) = mpsc::channel::<Result<Bytes, Infallible>>(1);
    let receiver = Arc::new(parking_lot::Mutex::new(Some(receiver)));
    let stream = on_get(move || async move {
        axum::body::Body::from_stream(ReceiverStream::new(receiver.lock().take().unwrap()))
    });
    let limits = layer(&store, [Limit::global(at_once(2))]).same_body();
    let router = Router::new().route("/", stream).layer(limits);
    let response = ask_router(&router, get()).await;
    assert_eq!(left(&store, &at_once(2)).await, 1);
    sender.send(Ok(Bytes::from("a piece"))).await.unwrap();
    drop(sender);
    assert_eq!(text(response).await, "a piece");
    assert_eq!(left(&store, &at_once(2)).await, 2);
}

#[tokio::test]
async fn a_request_is_over_when_its_service_fails_or_panics_or_its_client_leaves() {
    let (_, store) = memory();
    let limits = layer(&store, [Limit::global(at_once(1))]);
    let failing = service_fn(|_: Request<()>| async { Err::<Answer, _>("it fails") });
    let mut response = Box::pin(limits.layer(failing).oneshot(get()));
    assert!(response.as_mut().await.is_err());
    assert_eq!(left(&store, &at_once(1)).await, 1, "though its future is kept");
    for panics_at_once in [true, false] {
        let service = limits.layer(service_fn(move |_: Request<()>| {
            assert!(!panics_at_once, "a service that panics");
            async { never() }
        }));
        let request = tokio::spawn(async move { service.oneshot(get()).await.map(drop) });
        let _: Result<Result<(), Infallible>, _> = request.await;
        assert_eq!(left(&store, &at_once(1)).await, 1);
    }
    let slow = Slow::default();
    let request = tokio::spawn(limits.layer(slow.service()).oneshot(get()));
    settle_down().await;
    assert_eq!(left(&store, &at_once(1)).await, 0);
    request.abort();
    assert!(request.await.unwrap_err().is_cancelled());
    assert_eq!(left(&store, &at_once(1)).await, 1);
}

#[tokio::test]
async fn who_leaves_while_the_store_is_asked_holds_nothing() {
    let (_, memory) = memory();
    let store = Staged::new(memory.clone());
    let service = limited(&store, [Limit::global(at_once(1)), Limit::global(log("all", 9))]);
    store.hold();
    let request = tokio::spawn(service.clone().oneshot(get()));
    settle_down().await;
    assert_eq!(left(&memory, &at_once(1)).await, 0, "the store has decided already");
    request.abort();
    assert!(request.await.unwrap_err().is_cancelled());
    store.release();
    settle_down().await;
    assert_eq!(left(&memory, &at_once(1)).await, 1);
    assert_eq!(left(&memory, &log("all", 9)).await, 8, "a rate counts who came");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_takes_many_leases_counts_all_along() {
    let store = on_tokio_time();
    let slow = Slow::default();
    let service = layer(&store, [Limit::global(at_once(2))]).layer(slow.service());
    let requests: Vec<_> = (0..2).map(|_| tokio::spawn(service.clone().oneshot(get()))).collect();
    settle_down().await;
    for _ in 0..10 {
        advance(LEASE / 3).await;
        settle_down().await;
        assert_eq!(service.clone().oneshot(get()).await.unwrap().status(), 429);
    }
    slow.go.notify_waiters();
    for request in requests {
        assert_eq!(request.await.unwrap().unwrap().status(), 200);
    }
    assert_eq!(left(&store, &at_once(2)).await, 2);
}

#[test]
fn what_dies_with_its_process_comes_back_after_the_lease() {
    let (clock, store) = memory();
    let service = limited(&store, [Limit::global(at_once(1))]);
    let run = |request| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.unwrap().block_on(request)
    };
    // The runtime ends, and with it whoever would renew; the response is just gone.
    std::mem::forget(run(ask(&service, get())));
    clock.advance(tollgate::Micros::new(29_999_999));
    assert_eq!(run(ask(&service, get())).status(), 429);
    clock.advance(tollgate::Micros::new(1));
    assert_eq!(run(ask(&service, get())).status(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_lease_outlasts_a_store_that_is_away_for_half_of_it() {
    let memory = on_tokio_time();
    let store = Staged::new(memory.clone());
    let slow = Slow::default();
    let service = layer(&store, [Limit::global(at_once(1))]).layer(slow.service());
    let request = tokio::spawn(service.clone().oneshot(get()));
    settle_down().await;
    for fault in [Fault::NotCharged, Fault::MaybeCharged] {
        store.fail(fault);
        advance(LEASE / 2).await;
        settle_down().await;
        store.recover();
        for _ in 0..4 {
            advance(LEASE / 4).await;
            settle_down().await;
            assert_eq!(left(&memory, &at_once(1)).await, 0, "{fault:?}");
        }
    }
    slow.go.notify_one();
    request.await.unwrap().unwrap();
    advance(LEASE).await;
    assert_eq!(left(&memory, &at_once(1)).await, 1);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_given_back_at_first_is_sent_again() {
    let memory = on_tokio_time();
    let store = Staged::new(memory.clone());
    let service = limited(&store, [Limit::global(at_once(1))]);
    let response = ask(&service, get()).await;
    for fault in [Fault::NotCharged, Fault::MaybeCharged] {
        store.fail(fault);
    }
    drop(response);
    settle_down().await;
    store.recover();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(left(&memory, &at_once(1)).await, 1);
    // That it arrived twice has given nothing of others away.
    let held = ask(&service, get()).await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(left(&memory, &at_once(1)).await, 0);
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_ends_while_its_lease_is_renewed_is_over() {
    let memory = on_tokio_time();
    let store = Staged::new(memory.clone());
    let service = limited(&store, [Limit::global(at_once(1))]);
    let response = ask(&service, get()).await;
    settle_down().await;
    store.hold();
    advance(LEASE / 2).await;
    settle_down().await;
    drop(response);
    settle_down().await;
    assert_eq!(left(&memory, &at_once(1)).await, 0, "who renews has not come back");
    store.release();
    settle_down().await;
    assert_eq!(left(&memory, &at_once(1)).await, 1);
}

#[tokio::test(start_paused = true)]
async fn who_waits_comes_in_when_another_is_over() {
    let store = on_tokio_time();
    let slow = Slow::default();
    let max = Duration::from_secs(5);
    let limit = Limit::global(at_once(1)).excess(Excess::Wait { max });
    let service = layer(&store, [limit]).layer(slow.service());
    let first = tokio::spawn(service.clone().oneshot(get()));
    settle_down().await;
    let second = tokio::spawn(service.clone().oneshot(get()));
    sleep(Duration::from_secs(2)).await;
    assert!(!second.is_finished(), "the lease of the first lasts longer than it waits");
    slow.go.notify_one();
    assert_eq!(first.await.unwrap().unwrap().status(), 200);
    sleep(Duration::from_millis(100)).await;
    slow.go.notify_one();
    let second = timeout(Duration::from_millis(100), second).await;
    assert_eq!(second.unwrap().unwrap().unwrap().status(), 200);
    let kept = tokio::spawn(service.clone().oneshot(get()));
    settle_down().await;
    let (start, denied) = (Instant::now(), service.clone().oneshot(get()).await.unwrap());
    assert_eq!(denied.status(), 429);
    assert!(start.elapsed() > max - Duration::from_millis(100), "{:?}", start.elapsed());
    kept.abort();
}

#[tokio::test]
async fn what_waits_in_a_queue_or_leaves_it_holds_its_place_once() {
    let (_, store) = memory();
    let queue = Policy::leaky_bucket("queue", Quota::per_minute(60)).unwrap();
    let limits = [Limit::global(queue), Limit::global(at_once(3))];
    let service = limited(&store, limits);
    let held = ask(&service, get()).await;
    let queued = tokio::spawn(service.clone().oneshot(get()));
    settle_down().await;
    assert_eq!(left(&store, &at_once(3)).await, 1);
    queued.abort();
    assert!(queued.await.unwrap_err().is_cancelled());
    assert_eq!(left(&store, &at_once(3)).await, 2, "that of the other is not given back too");
    drop(held);
    assert_eq!(left(&store, &at_once(3)).await, 3);
}

#[tokio::test]
async fn a_request_counts_once_whatever_it_costs_elsewhere() {
    let (_, store) = memory();
    let limits = [Limit::global(at_once(3)), Limit::global(log("all", 100))];
    let service = limited(&store, limits);
    let held = ask(&service, request(Method::DELETE, "/")).await;
    assert_eq!(left(&store, &at_once(3)).await, 2);
    assert_eq!(left(&store, &log("all", 100)).await, 90);
    drop(held);
    assert_eq!(left(&store, &at_once(3)).await, 3);
    assert_eq!(left(&store, &log("all", 100)).await, 90);
    let heavy = Limit::global(at_once(3)).costs(Costs::flat(Cost::new(2))).shadow();
    let held = ask(&limited(&store, [heavy]), get()).await;
    assert_eq!(left(&store, &at_once(3)).await, 1, "who only watches counts as well");
    drop(held);
    assert_eq!(left(&store, &at_once(3)).await, 3);
}

#[tokio::test]
async fn a_client_is_told_to_come_back_soon_and_why() {
    let (_, store) = memory();
    let service = limited(&store, [Limit::global(at_once(1)), Limit::global(log("all", 100))]);
    let held = ask(&service, get()).await;
    assert_eq!(
        rate_fields(held.headers()),
        [
            "ratelimit: \"at-once\";r=0, \"all\";r=99;t=60",
            "ratelimit-policy: \"at-once\";q=1;qu=\"concurrent-requests\", \"all\";q=100;w=60",
            "x-ratelimit-limit: 1",
            "x-ratelimit-remaining: 0",
            &format!("x-ratelimit-reset: {}", START + 1),
        ]
    );
    let denied = ask(&service, get()).await;
    assert_eq!(denied.status(), 429);
    assert_eq!(field(denied.headers(), "retry-after").as_deref(), Some("1"));
    let limits = "\"at-once\";r=0;t=1, \"all\";r=99;t=60";
    assert_eq!(field(denied.headers(), "ratelimit").as_deref(), Some(limits));
    let body = json(denied).await;
    let detail = "The quota is 1 unit at a time, of which 0 are left. Retry in 1 second.";
    for (member, value) in [
        ("code", json!("quota-exceeded")),
        ("detail", json!(detail)),
        ("limit", json!(1)),
        ("quota_unit", json!("concurrent-requests")),
        ("retry_after", json!(1)),
        ("violated-policies", json!(["at-once"])),
    ] {
        assert_eq!(body[member], value, "{member}");
    }
    assert!(body.get("window").is_none());
    // Where a rate denies too, its wait is the longer one, though no lease has ended then.
    let minute = log("minute", 1);
    let both = limited(&store, [Limit::global(at_once(1)), Limit::global(minute.clone())]);
    store.charge(&minute, &Key::GLOBAL, Cost::ONE).await.unwrap();
    let denied = ask(&both, get()).await;
    assert_eq!(field(denied.headers(), "retry-after").as_deref(), Some("60"));
    drop(held);
}

#[tokio::test]
async fn while_the_store_is_away_each_process_counts_for_itself() {
    let (_, memory) = memory();
    let store = Staged::new(memory.clone());
    store.fail(Fault::NotCharged);
    let policy = at_once(4).with_on_store_error(OnStoreError::Local);
    let service = limited(&Fallback::new(store.clone(), memory), [Limit::global(policy)]);
    let held = [ask(&service, get()).await, ask(&service, get()).await];
    assert!(held.iter().all(|held| held.status() == 200));
    assert_eq!(status(&service).await, 429, "half of four");
    drop(held);
    assert_eq!(status(&service).await, 200);
    for (on_store_error, expected) in [(OnStoreError::Open, 200), (OnStoreError::Closed, 503)] {
        let policy = at_once(1).with_on_store_error(on_store_error);
        let service = limited(&store, [Limit::global(policy)]);
        let held = [ask(&service, get()).await, ask(&service, get()).await];
        assert!(held.iter().all(|held| held.status() == expected), "{on_store_error:?}");
    }
}

#[tokio::test]
async fn what_was_held_locally_is_renewed_and_given_back_there() {
    let (_, memory) = memory();
    let store = Staged::new(memory.clone());
    let fallback = Fallback::new(store.clone(), memory.clone());
    let policy = at_once(4).with_on_store_error(OnStoreError::Local);
    store.fail(Fault::NotCharged);
    let charges = [tollgate::Charge::new(&policy, &Key::GLOBAL, Cost::ONE)];
    let verdict = fallback.decide(&charges).await.unwrap();
    let receipt = verdict.receipts(&charges, || tollgate::ReceiptId(1)).next().unwrap();
    store.recover();
    let renewed = fallback.renew(&receipt).await.unwrap().unwrap();
    assert_eq!((renewed.policy.capacity(), renewed.source), (4, receipt.source));
    let back = fallback.settle(&renewed, Cost::ZERO).await.unwrap();
    assert_eq!(back, tollgate::Settlement::Returned { units: 1 });
    assert_eq!(fallback.renew(&renewed).await.unwrap(), None);
}

#[test]
fn there_is_nothing_to_correct_of_what_is_in_flight() {
    let (_, store) = memory();
    let limit = || Limit::global(at_once(1));
    for limit in [limit().count_only(|_| true), limit().reserve(Reserve::by_handler())] {
        let error = builder(&store, [limit]).build().unwrap_err();
        assert_eq!(error, LayerError::SettlesInFlight { name: "at-once".into() });
        assert!(error.to_string().ends_with("put them on a limit of its own"), "{error}");
    }
}
