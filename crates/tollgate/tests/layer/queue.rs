//! A leaky bucket in queue mode: requests wait, in order, at an even rate.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, advance, timeout};
use tollgate::key::Key;
use tollgate::policy::{Algorithm, LeakyMode};
use tollgate::store::Micros;
use tollgate::{Limit, Policy, Quota, StoreExt};
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, Service, ServiceExt};

use crate::stage::Staged;
use crate::support::*;

/// Ten a second, up to five in the bucket: one leaves every 100 ms.
fn queue() -> Policy {
    Policy::leaky_bucket("queue", Quota::per_second(10).burst(5)).unwrap()
}

/// Runs everything that can run without time passing.
async fn settle_down() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

/// A service that notes when which request reached it.
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
        // Timers of tokio have a grain of a millisecond, and never ring early.
        assert_eq!(noted.0, expected.0);
        assert!((expected.1..=expected.1 + 1).contains(&noted.1), "{noted:?} {expected:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_would_wait_too_long_is_denied_by_the_store_at_once() {
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
async fn a_waiting_request_shows_the_fields_of_its_decision() {
    let service = limited(&on_tokio_time(), [Limit::global(queue())]);
    assert_eq!(status(&service).await, 200);
    let response = ask(&service, get()).await;
    assert_eq!(field(response.headers(), "x-ratelimit-limit").as_deref(), Some("5"));
    assert_eq!(field(response.headers(), "x-ratelimit-remaining").as_deref(), Some("3"));
    assert_eq!(field(response.headers(), "retry-after"), None);
}

/// `count` requests that wait, after one that went at once.
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
async fn a_client_that_leaves_the_end_of_the_queue_gives_its_place_back() {
    let store = on_tokio_time();
    let policy = queue();
    let service = limited(&store, [Limit::global(policy.clone())]);
    let tasks = crowd(&service, 4).await;
    assert_eq!(status(&service).await, 429, "the bucket is full");
    tasks[3].abort();
    settle_down().await;
    let left = store.peek(&policy, &Key::GLOBAL).await.unwrap();
    assert_eq!(left.decisions()[0].remaining, 1);
    let start = Instant::now();
    assert_eq!(status(&service).await, 200);
    let waited = start.elapsed();
    assert!((400..=401).contains(&waited.as_millis()), "the place of the one who left: {waited:?}");
}

#[tokio::test(start_paused = true)]
async fn an_unpolled_request_refunds_its_charge() {
    let store = on_tokio_time();
    let policy = queue();
    let mut service = limited(&store, [Limit::global(policy.clone())]);
    assert_eq!(status(&service).await, 200);
    drop(service.ready().await.unwrap().call(get()));
    settle_down().await;
    let left = store.peek(&policy, &Key::GLOBAL).await.unwrap();
    assert_eq!(left.decisions()[0].remaining, 4);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_the_middle_of_the_queue_leaves_a_gap() {
    let store = on_tokio_time();
    let policy = queue();
    let service = limited(&store, [Limit::global(policy.clone())]);
    let tasks = crowd(&service, 4).await;
    tasks[1].abort();
    settle_down().await;
    let left = store.peek(&policy, &Key::GLOBAL).await.unwrap();
    assert_eq!(left.decisions()[0].remaining, 0, "others are scheduled after it");
    assert_eq!(status(&service).await, 429);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_gives_back_what_the_other_policies_took() {
    let store = on_tokio_time();
    let hourly = log("log", 100);
    let limits = [Limit::global(queue()), Limit::global(hourly.clone())];
    let service = limited(&store, limits);
    let tasks = crowd(&service, 1).await;
    tasks[0].abort();
    settle_down().await;
    let left = store.peek(&hourly, &Key::GLOBAL).await.unwrap();
    assert_eq!(left.decisions()[0].remaining, 99, "only the first one counts");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_had_its_turn_gives_nothing_back() {
    let store = Staged::new(on_tokio_time());
    let service = limited(&store, [Limit::global(queue())]);
    for task in crowd(&service, 3).await {
        assert_eq!(task.await.unwrap().unwrap().status(), 200);
    }
    settle_down().await;
    assert_eq!(store.settled(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_place_is_given_back_over_a_store_that_answers_later() {
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
    assert_eq!(store.settled(), 1, "although the request that asked for it is gone");
    let left = store.peek(&policy, &Key::GLOBAL).await.unwrap();
    assert_eq!(left.decisions()[0].remaining, 3);
}

#[tokio::test(start_paused = true)]
async fn who_waits_holds_no_permit_of_the_service() {
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
        // No time passes here: the permit is free although one waits.
        let other = timeout(Duration::from_millis(1), service.clone().oneshot(get())).await;
        assert_eq!(other.expect("the permit is free").unwrap().status(), 200);
        assert!(!waiting.is_finished());
        assert_eq!(waiting.await.unwrap().unwrap().status(), 200);
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_made_a_request_wait_can_be_used_again() {
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
async fn after_its_turn_a_request_waits_until_the_service_is_ready() {
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
async fn an_error_of_readiness_after_the_turn_passes_through() {
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
async fn a_shadow_queue_holds_nobody_back() {
    let service = limited(&on_tokio_time(), [Limit::global(queue()).shadow()]);
    let start = Instant::now();
    for _ in 0..10 {
        assert_eq!(status(&service).await, 200);
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
}
