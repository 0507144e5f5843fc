//! A leaky bucket in queue mode: requests wait, in order, at an even rate.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, advance, timeout};
use tollgate::headers::HeaderOptions;
use tollgate::limit::Mode;
use tollgate::policy::{Algorithm, LeakyMode};
use tollgate::store::Micros;
use tollgate::{Limit, Policy, Quota};
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, Service, ServiceExt};

use crate::stage::Staged;
use crate::support::*;

/// Ten requests per second and up to five in the bucket: one leaves every 100 ms.
fn queue() -> Policy {
    Policy::leaky_bucket("queue", Quota::per_second(10).burst(5)).unwrap()
}

/// A service that logs each request's path and time of arrival.
fn noting(
    log: Arc<Mutex<Vec<(String, u128)>>>,
) -> impl Service<
    Request<()>,
    Response = Response<Full<Bytes>>,
    Error = std::convert::Infallible,
    Future: Send,
> + Clone
+ Send {
    let start = Instant::now();
    tower::service_fn(move |request: Request<()>| {
        log.lock().push((request.uri().path().to_owned(), start.elapsed().as_millis()));
        std::future::ready(Ok(Response::new(Full::from("done"))))
    })
}

#[tokio::test(start_paused = true)]
async fn requests_leave_evenly_and_in_order() {
    let noted = Arc::<Mutex<Vec<_>>>::default();
    let layer = layer(&on_tokio_time(), [Limit::global(queue())]);
    let service = layer.layer(noting(Arc::clone(&noted)));
    let tasks: Vec<_> = (0..7)
        .map(|n| {
            let request = request(http::Method::GET, &format!("/{n}"));
            tokio::spawn(service.clone().oneshot(request))
        })
        .collect();
    let mut statuses = Vec::new();
    for task in tasks {
        statuses.push(task.await.unwrap().unwrap().status().as_u16());
    }
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429]);
    let expected = [0, 100, 200, 300, 400].iter().enumerate();
    let expected: Vec<_> = expected.map(|(n, at)| (format!("/{n}"), *at)).collect();
    let noted = noted.lock();
    assert_eq!(noted.len(), expected.len());
    for (noted, expected) in noted.iter().zip(&expected) {
        // Tokio timers have a resolution of one millisecond and never fire early.
        assert_eq!(noted.0, expected.0);
        assert!((expected.1..=expected.1 + 1).contains(&noted.1), "{noted:?} {expected:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn max_wait_denies_immediately() {
    let max_wait = Some(Micros::new(150_000));
    let algorithm = Algorithm::LeakyBucket { mode: LeakyMode::Queue { max_wait } };
    let policy = Policy::new("queue", Quota::per_second(10), algorithm).unwrap();
    let service = limited(&on_tokio_time(), [Limit::global(policy)]);
    let waiting: Vec<_> = (0..2).map(|_| tokio::spawn(service.clone().oneshot(get()))).collect();
    settle_down().await;
    let start = Instant::now();
    let denied = ask(&service, get()).await;
    assert_eq!((denied.status().as_u16(), start.elapsed()), (429, Duration::ZERO));
    assert_eq!(field(denied.headers(), "retry-after").as_deref(), Some("1"));
    for task in waiting {
        assert_eq!(task.await.unwrap().unwrap().status(), 200);
    }
}

#[tokio::test(start_paused = true)]
async fn queued_response_shows_its_decision() {
    let service = limited(&on_tokio_time(), [Limit::global(queue())]);
    assert_eq!(status(&service).await, 200);
    let response = ask(&service, get()).await;
    assert_eq!(field(response.headers(), "x-ratelimit-limit").as_deref(), Some("5"));
    assert_eq!(field(response.headers(), "x-ratelimit-remaining").as_deref(), Some("3"));
    assert_eq!(field(response.headers(), "retry-after"), None);
}

/// Sends a request that passes immediately, then `count` requests that wait.
async fn crowd<St: tollgate::Store>(
    service: &tollgate::layer::RateLimit<Hello, St>,
    count: usize,
) -> Vec<JoinHandle<Result<Answer, std::convert::Infallible>>> {
    assert_eq!(status(service).await, 200);
    let mut tasks = Vec::new();
    for _ in 0..count {
        tasks.push(tokio::spawn(service.clone().oneshot(get())));
        settle_down().await;
    }
    tasks
}

#[tokio::test(start_paused = true)]
async fn last_waiter_refunds_its_slot() {
    let store = on_tokio_time();
    let policy = queue();
    let service = limited(&store, [Limit::global(policy.clone())]);
    let tasks = crowd(&service, 4).await;
    assert_eq!(status(&service).await, 429, "the bucket is full");
    tasks[3].abort();
    settle_down().await;
    assert_eq!(left(&store, &policy).await, 1);
    let start = Instant::now();
    assert_eq!(status(&service).await, 200);
    let waited = start.elapsed();
    assert!((400..=401).contains(&waited.as_millis()), "it takes the free slot: {waited:?}");
}

#[tokio::test(start_paused = true)]
async fn unpolled_request_is_refunded() {
    let store = on_tokio_time();
    let policy = queue();
    let mut service = limited(&store, [Limit::global(policy.clone())]);
    assert_eq!(status(&service).await, 200);
    drop(service.ready().await.unwrap().call(get()));
    settle_down().await;
    assert_eq!(left(&store, &policy).await, 4);
}

#[tokio::test(start_paused = true)]
async fn middle_waiter_is_not_refunded() {
    let store = on_tokio_time();
    let policy = queue();
    let service = limited(&store, [Limit::global(policy.clone())]);
    let tasks = crowd(&service, 4).await;
    tasks[1].abort();
    settle_down().await;
    assert_eq!(left(&store, &policy).await, 0, "later requests are already scheduled");
    assert_eq!(status(&service).await, 429);
}

#[tokio::test(start_paused = true)]
async fn departed_waiter_refunds_other_policies() {
    let store = on_tokio_time();
    let hourly = log("log", 100);
    let limits = [Limit::global(queue()), Limit::global(hourly.clone())];
    let service = limited(&store, limits);
    let tasks = crowd(&service, 1).await;
    tasks[0].abort();
    settle_down().await;
    assert_eq!(left(&store, &hourly).await, 99, "only the first request counts");
}

#[tokio::test(start_paused = true)]
async fn served_requests_are_not_refunded() {
    let store = Staged::new(on_tokio_time());
    let service = limited(&store, [Limit::global(queue())]);
    for task in crowd(&service, 3).await {
        assert_eq!(task.await.unwrap().unwrap().status(), 200);
    }
    settle_down().await;
    assert_eq!(store.settled(), 0);
}

#[tokio::test(start_paused = true)]
async fn slow_store_still_refunds_departed_waiter() {
    let store = Staged::new(on_tokio_time());
    let policy = queue();
    let service = limited(&store, [Limit::global(policy.clone())]);
    let tasks = crowd(&service, 2).await;
    store.hold();
    tasks[1].abort();
    settle_down().await;
    assert_eq!(store.settled(), 0);
    store.release();
    settle_down().await;
    assert_eq!(store.settled(), 1, "although the request is gone");
    assert_eq!(left(&store, &policy).await, 3);
}

#[tokio::test(start_paused = true)]
async fn waiters_hold_no_service_permit() {
    for late in [false, true] {
        let store = Staged::new(on_tokio_time());
        let queued = Limit::global(queue()).when(|head| head.uri.path() == "/queued");
        let limits = [queued, Limit::global(log("all", 100))];
        let inner = ConcurrencyLimitLayer::new(1).layer(hello());
        let service = layer(&store, limits).layer(inner);
        let queued = || request(http::Method::GET, "/queued");
        assert_eq!(service.clone().oneshot(queued()).await.unwrap().status(), 200);
        if late {
            store.hold();
        }
        let waiting = tokio::spawn(service.clone().oneshot(queued()));
        settle_down().await;
        store.release();
        settle_down().await;
        assert!(!waiting.is_finished());
        // No time passes here: the permit is free although a request waits.
        let other = timeout(Duration::from_millis(1), service.clone().oneshot(get())).await;
        assert_eq!(other.expect("the permit is free").unwrap().status(), 200);
        assert!(!waiting.is_finished());
        assert_eq!(waiting.await.unwrap().unwrap().status(), 200);
    }
}

#[tokio::test(start_paused = true)]
async fn service_is_reusable_after_queueing() {
    let inner = ConcurrencyLimitLayer::new(1).layer(hello());
    let mut service = layer(&on_tokio_time(), [Limit::global(queue())]).layer(inner);
    let mut answers = Vec::new();
    for _ in 0..3 {
        answers.push(tokio::spawn(service.ready().await.unwrap().call(get())));
    }
    for answer in answers {
        assert_eq!(answer.await.unwrap().unwrap().status(), 200);
    }
}

#[tokio::test(start_paused = true)]
async fn queued_request_waits_for_inner_readiness() {
    let (inner, mut handle) = tower_test::mock::pair::<Request<()>, Response<Full<Bytes>>>();
    handle.allow(2);
    let service = layer(&on_tokio_time(), [Limit::global(queue())]).layer(inner);
    let first = tokio::spawn(service.clone().oneshot(get()));
    handle.next_request().await.unwrap().1.send_response(Response::new(Full::default()));
    assert_eq!(first.await.unwrap().unwrap().status(), 200);
    let second = tokio::spawn(service.clone().oneshot(get()));
    settle_down().await;
    handle.allow(0);
    advance(Duration::from_secs(1)).await;
    settle_down().await;
    assert!(!second.is_finished());
    handle.allow(1);
    handle.next_request().await.unwrap().1.send_response(Response::new(Full::default()));
    assert_eq!(second.await.unwrap().unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn readiness_error_after_queueing_propagates() {
    let (inner, mut handle) = tower_test::mock::pair::<Request<()>, Response<Full<Bytes>>>();
    let service = layer(&on_tokio_time(), [Limit::global(queue())]).layer(inner);
    let first = tokio::spawn(service.clone().oneshot(get()));
    handle.next_request().await.unwrap().1.send_response(Response::new(Full::default()));
    assert!(first.await.unwrap().is_ok());
    let second = tokio::spawn(service.clone().oneshot(get()));
    settle_down().await;
    handle.send_error("worn out");
    assert_eq!(second.await.unwrap().err().unwrap().to_string(), "worn out");
}

#[tokio::test(start_paused = true)]
async fn request_that_leaves_before_readiness_is_refunded() {
    for fails in [false, true] {
        let store = on_tokio_time();
        let (inner, mut handle) = tower_test::mock::pair::<Request<()>, Response<Full<Bytes>>>();
        let all = Policy::sliding_window_log("all", Quota::per_minute(9)).unwrap();
        let limits = [Limit::global(queue()), Limit::global(all.clone())];
        let service = layer(&store, limits).layer(inner);
        let first = tokio::spawn(service.clone().oneshot(get()));
        handle.next_request().await.unwrap().1.send_response(Response::new(Full::default()));
        assert!(first.await.unwrap().is_ok());
        let second = tokio::spawn(service.oneshot(get()));
        settle_down().await;
        handle.allow(0);
        advance(Duration::from_secs(1)).await;
        settle_down().await;
        assert_eq!(left(&store, &all).await, 7, "the delay is over, and the service is not ready");
        if fails {
            handle.send_error("worn out");
            assert!(second.await.unwrap().is_err());
        } else {
            second.abort();
            assert!(second.await.unwrap_err().is_cancelled());
        }
        assert_eq!(left(&store, &all).await, 8);
    }
}

/// A layer on the client side sends no headers.
#[tokio::test(start_paused = true)]
async fn departure_without_headers_is_refunded() {
    let store = on_tokio_time();
    let (inner, mut handle) = tower_test::mock::pair::<Request<()>, Response<Full<Bytes>>>();
    let tokens = Policy::token_bucket("tokens", Quota::per_second(1)).unwrap();
    let max = Duration::from_secs(60);
    let limit = Limit::global(tokens.clone()).mode(Mode::Wait(max));
    let none = HeaderOptions::all().ratelimit(false).x_ratelimit(false);
    let service = builder(&store, [limit]).headers(none).build().unwrap().layer(inner);
    let first = tokio::spawn(service.clone().oneshot(get()));
    handle.next_request().await.unwrap().1.send_response(Response::new(Full::default()));
    assert!(first.await.unwrap().is_ok());
    let second = tokio::spawn(service.oneshot(get()));
    settle_down().await;
    handle.allow(0);
    advance(Duration::from_secs(1)).await;
    settle_down().await;
    assert_eq!(left(&store, &tokens).await, 0, "the request has its unit, and cannot run yet");
    second.abort();
    assert!(second.await.unwrap_err().is_cancelled());
    assert_eq!(left(&store, &tokens).await, 1);
}

#[tokio::test(start_paused = true)]
async fn failed_readiness_returns_permits() {
    let store = on_tokio_time();
    let (inner, mut handle) = tower_test::mock::pair::<Request<()>, Response<Full<Bytes>>>();
    let at_once = Policy::concurrent_requests("at-once", 1, Duration::from_secs(30)).unwrap();
    let limits = [Limit::global(queue()), Limit::global(at_once.clone())];
    let service = layer(&store, limits).layer(inner);
    let first = tokio::spawn(service.clone().oneshot(get()));
    handle.next_request().await.unwrap().1.send_response(Response::new(Full::default()));
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
    assert_eq!(left(&store, &at_once).await, 1, "although the future is not dropped");
    drop(second);
}

#[tokio::test(start_paused = true)]
async fn shadow_queue_delays_no_requests() {
    let service = limited(&on_tokio_time(), [Limit::global(queue()).shadow()]);
    let start = Instant::now();
    for _ in 0..10 {
        assert_eq!(status(&service).await, 200);
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
}
