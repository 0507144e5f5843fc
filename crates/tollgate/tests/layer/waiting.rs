//! Requests that wait for units, or for their turn in a leaky bucket: timers, headers, departures,
//! and the inner service. The tables of `tollgate-engine` test which requests wait, and how long.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use tokio::task::JoinHandle;
use tokio::time::{Instant, advance, timeout};
use tollgate::headers::HeaderOptions;
use tollgate::layer::{RateLimit, WaitQueue};
use tollgate::limit::Mode;
use tollgate::policy::Cost;
use tollgate::{Costs, Limit, Policy, Quota, Store};
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, Service, ServiceExt};
use tower_test::mock;

use crate::stage::Staged;
use crate::support::*;

/// One request in any ten seconds. Others wait for up to 25 seconds.
fn patient() -> Limit {
    Limit::global(slow()).costs(Costs::flat(Cost::ONE)).mode(Mode::Wait(Duration::from_secs(25)))
}

fn slow() -> Policy {
    Policy::sliding_window_log("slow", Quota::every(Duration::from_secs(10))).unwrap()
}

/// Ten requests per second and up to five in the bucket: one leaves every 100 ms.
fn delaying() -> Policy {
    Policy::leaky_bucket("delaying", Quota::per_second(10).burst(5)).unwrap()
}

/// Sends `count` requests one after the other, without any time passing.
async fn crowd<St: Store>(
    service: &RateLimit<Hello, St>,
    count: usize,
) -> Vec<JoinHandle<Result<Answer, Infallible>>> {
    let mut tasks = Vec::new();
    for _ in 0..count {
        tasks.push(tokio::spawn(service.clone().oneshot(get())));
        settle_down().await;
    }
    tasks
}

#[tokio::test(start_paused = true)]
async fn requests_pass_when_their_time_has_come() {
    for (limit, between, late) in
        [(patient(), 10_000, Some("30")), (Limit::global(delaying()), 100, None)]
    {
        let service = limited(&on_tokio_time(), [limit]);
        let start = Instant::now();
        let tasks = crowd(&service, 3).await;
        if late.is_some() {
            let answer = ask(&service, get()).await;
            assert_eq!((answer.status().as_u16(), start.elapsed()), (429, Duration::ZERO));
            assert_eq!(field(answer.headers(), "retry-after").as_deref(), late);
        }
        for (number, task) in (0..).zip(tasks) {
            let answer = task.await.unwrap().unwrap();
            assert_eq!(answer.status(), 200);
            assert_eq!(field(answer.headers(), "retry-after"), None);
            // Tokio timers have a resolution of one millisecond and never fire early.
            let waited = start.elapsed().as_millis() - number * between;
            assert!(waited <= 2, "request {number} is {waited} ms late");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn full_queues_reject_requests() {
    let roomy = Limit::global(log("roomy", 9));
    let layer = builder(&on_tokio_time(), [roomy, patient()]).max_waiting(1).build().unwrap();
    let service = layer.layer(hello());
    let waiting = crowd(&service, 2).await;
    let rejected = ask(&service, get()).await;
    assert_eq!(rejected.status(), 429);
    assert_eq!(field(rejected.headers(), "retry-after").as_deref(), Some("10"));
    let shown = field(rejected.headers(), "ratelimit").unwrap();
    assert!(shown.contains(r#""roomy";r=8"#), "{shown}");
    assert_eq!(json(rejected).await["violated-policies"], serde_json::json!(["slow"]));
    drop(waiting);
}

#[tokio::test(start_paused = true)]
async fn shared_queues_share_bounds_and_order() {
    let store = on_tokio_time();
    let queue = WaitQueue::new().max_bytes(3 * 1_024);
    let layer =
        |name: &str| builder(&store, [patient(), Limit::global(log(name, 9))]).wait_queue(&queue);
    let [one, other] = ["one", "other"].map(|name| layer(name).build().unwrap().layer(hello()));
    let mut waiting = crowd(&one, 2).await;
    waiting.extend(crowd(&other, 1).await);
    // The estimate counts the requests of both layers.
    assert_eq!(field(ask(&one, get()).await.headers(), "retry-after").as_deref(), Some("30"));
    // `max_waiting` bounds the given queue, and a queue that is given later replaces it.
    let bounded = layer("one").max_waiting(2).build().unwrap().layer(hello());
    assert_eq!([status(&bounded).await, status(&other).await], [429, 429]);
    let unbounded = layer("one").max_waiting(0).wait_queue(&WaitQueue::new());
    let waits = crowd(&unbounded.build().unwrap().layer(hello()), 1).await;
    assert!(!waits[0].is_finished());
}

#[tokio::test(start_paused = true)]
async fn departed_requests_leave_the_queue() {
    let queue = WaitQueue::new();
    let layer = builder(&on_tokio_time(), [patient()]).wait_queue(&queue).build().unwrap();
    let service = layer.layer(hello());
    let mut waiting = crowd(&service, 3).await;
    assert!(format!("{queue:?}").contains("waiting: 2, lanes: 1"), "{queue:?}");
    waiting.remove(1).abort();
    let start = Instant::now();
    assert_eq!(waiting.pop().unwrap().await.unwrap().unwrap().status(), 200);
    assert_eq!(start.elapsed().as_secs(), 10);
    assert!(format!("{queue:?}").contains("waiting: 0, lanes: 0"), "{queue:?}");
}

/// The request is gone when the store replies.
#[tokio::test(start_paused = true)]
async fn departed_requests_are_refunded() {
    for (limit, policy, until_call) in
        [(patient(), slow(), 11), (Limit::global(delaying()), delaying(), 0)]
    {
        let memory = on_tokio_time();
        let store = Staged::new(memory.clone());
        let service = limited(&store, [limit]);
        let tasks = crowd(&service, 2).await;
        store.hold();
        advance(Duration::from_secs(until_call)).await;
        settle_down().await;
        tasks[1].abort();
        settle_down().await;
        assert_eq!(store.settled(), 0);
        store.release();
        settle_down().await;
        assert_eq!(store.settled(), 1);
        assert_eq!(left(&memory, &policy).await, policy.capacity() - u64::from(until_call == 0));
    }
}

#[tokio::test(start_paused = true)]
async fn unpolled_requests_are_refunded_and_served_ones_are_not() {
    let memory = on_tokio_time();
    let store = Staged::new(memory.clone());
    let mut service = limited(&memory, [Limit::global(delaying())]);
    assert_eq!(status(&service).await, 200);
    drop(service.ready().await.unwrap().call(get()));
    settle_down().await;
    assert_eq!(left(&memory, &delaying()).await, 4);
    for task in crowd(&limited(&store, [Limit::global(delaying())]), 3).await {
        assert_eq!(task.await.unwrap().unwrap().status(), 200);
    }
    assert_eq!(store.settled(), 0);
}

#[tokio::test(start_paused = true)]
async fn waiting_requests_hold_no_service_permit() {
    for limit in [patient(), Limit::global(delaying())] {
        for late in [false, true] {
            let store = Staged::new(on_tokio_time());
            let limit = limit.clone().when(|head| head.uri.path() == "/waits");
            let inner = ConcurrencyLimitLayer::new(1).layer(hello());
            let service = layer(&store, [limit, Limit::global(log("all", 100))]).layer(inner);
            let waits = || service.clone().oneshot(request(Method::GET, "/waits"));
            assert_eq!(waits().await.unwrap().status(), 200);
            if late {
                store.hold();
            }
            let mut waiting = Vec::new();
            for _ in 0..2 {
                waiting.push(tokio::spawn(waits()));
                settle_down().await;
                store.release();
                settle_down().await;
            }
            // No time passes here: the permit is free although two requests wait.
            let other = timeout(Duration::from_millis(1), service.clone().oneshot(get())).await;
            assert_eq!(other.expect("the permit is free").unwrap().status(), 200);
            for waiting in waiting {
                assert!(!waiting.is_finished());
                assert_eq!(waiting.await.unwrap().unwrap().status(), 200);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn service_is_reusable_while_requests_wait() {
    let inner = ConcurrencyLimitLayer::new(1).layer(hello());
    let mut service = layer(&on_tokio_time(), [Limit::global(delaying())]).layer(inner);
    let mut answers = Vec::new();
    for _ in 0..3 {
        answers.push(tokio::spawn(service.ready().await.unwrap().call(get())));
    }
    for answer in answers {
        assert_eq!(answer.await.unwrap().unwrap().status(), 200);
    }
}

type Handle = mock::Handle<Request<()>, Response<Full<Bytes>>>;
type Second = JoinHandle<Result<Answer, tower::BoxError>>;

async fn respond(handle: &mut Handle) {
    handle.next_request().await.unwrap().1.send_response(Response::new(Full::default()));
}

/// Sends two requests. The second one has waited, but the service is not ready for it.
async fn second_is_unready<St: Store>(
    store: &St,
    limits: Vec<Limit>,
    headers: HeaderOptions,
) -> (Handle, Second) {
    let (inner, mut handle) = mock::pair::<Request<()>, Response<Full<Bytes>>>();
    handle.allow(2);
    let service = builder(store, limits).headers(headers).build().unwrap().layer(inner);
    let first = tokio::spawn(service.clone().oneshot(get()));
    respond(&mut handle).await;
    assert_eq!(first.await.unwrap().unwrap().status(), 200);
    let second = tokio::spawn(service.oneshot(get()));
    settle_down().await;
    handle.allow(0);
    advance(Duration::from_secs(11)).await;
    settle_down().await;
    assert!(!second.is_finished());
    (handle, second)
}

#[tokio::test(start_paused = true)]
async fn requests_that_waited_wait_for_the_service() {
    for limit in [patient(), Limit::global(delaying())] {
        let all = HeaderOptions::all();
        let (mut handle, second) = second_is_unready(&on_tokio_time(), vec![limit], all).await;
        handle.allow(1);
        respond(&mut handle).await;
        assert_eq!(second.await.unwrap().unwrap().status(), 200);
    }
}

/// With and without headers, because a layer on the client side sends none.
#[tokio::test(start_paused = true)]
async fn requests_that_never_reach_the_service_are_refunded() {
    let all = HeaderOptions::all();
    let permits = Policy::concurrent_requests("at-once", 1, Duration::from_secs(30)).unwrap();
    let others = [log("all", 9), permits];
    for headers in [all, all.ratelimit(false).x_ratelimit(false)] {
        for (limit, fails) in [(patient(), true), (patient(), false)]
            .into_iter()
            .chain([true, false].map(|fails| (Limit::global(delaying()), fails)))
        {
            let store = on_tokio_time();
            let limits = [vec![limit], others.clone().map(Limit::global).to_vec()].concat();
            let (mut handle, second) = second_is_unready(&store, limits, headers).await;
            assert_eq!(left(&store, &others[0]).await, 7);
            assert_eq!(left(&store, &others[1]).await, 0);
            if fails {
                handle.send_error("worn out");
                assert_eq!(second.await.unwrap().err().unwrap().to_string(), "worn out");
            } else {
                second.abort();
                assert!(second.await.unwrap_err().is_cancelled());
            }
            settle_down().await;
            assert_eq!(left(&store, &others[0]).await, 8);
            assert_eq!(left(&store, &others[1]).await, 1);
        }
    }
}

/// The permit returns although the future is not dropped.
#[tokio::test(start_paused = true)]
async fn failed_readiness_returns_permits() {
    let store = on_tokio_time();
    let (inner, mut handle) = mock::pair::<Request<()>, Response<Full<Bytes>>>();
    let permits = Policy::concurrent_requests("at-once", 1, Duration::from_secs(30)).unwrap();
    let limits = [Limit::global(delaying()), Limit::global(permits.clone())];
    let service = layer(&store, limits).layer(inner);
    let first = tokio::spawn(service.clone().oneshot(get()));
    respond(&mut handle).await;
    drop(first.await.unwrap().unwrap());
    let mut second = Box::pin(service.oneshot(get()));
    let until_error = std::future::poll_fn(|cx| second.as_mut().poll(cx));
    let fail = async {
        settle_down().await;
        handle.allow(0);
        advance(Duration::from_secs(1)).await;
        handle.send_error("worn out");
    };
    assert!(tokio::join!(until_error, fail).0.is_err());
    assert_eq!(left(&store, &permits).await, 1);
    drop(second);
}
