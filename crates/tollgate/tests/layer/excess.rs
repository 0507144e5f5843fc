//! `Mode::Wait`: requests beyond a limit wait for units.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, advance, timeout};
use tollgate::key::Key;
use tollgate::layer::{RateLimit, WaitQueue};
use tollgate::limit::Mode;
use tollgate::policy::{Algorithm, Cost, LeakyMode, OnStoreError};
use tollgate::{Costs, Limit, Policy, Quota, Store, StoreExt};
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, ServiceExt, service_fn};

use crate::stage::{Fault, Staged};
use crate::support::*;

const MINUTE: Duration = Duration::from_secs(60);

/// One request in any ten seconds.
fn slow() -> Policy {
    Policy::sliding_window_log("slow", Quota::every(Duration::from_secs(10))).unwrap()
}

fn patient(policy: Policy, max: Duration) -> Limit {
    Limit::global(policy).costs(Costs::flat(Cost::ONE)).mode(Mode::Wait(max))
}

type Waiting = JoinHandle<Result<Answer, Infallible>>;

/// Sends `count` requests one after the other, without any time passing.
async fn crowd<St: Store>(service: &RateLimit<Hello, St>, count: usize) -> Vec<Waiting> {
    let mut tasks = Vec::new();
    for _ in 0..count {
        tasks.push(tokio::spawn(service.clone().oneshot(get())));
        settle_down().await;
    }
    tasks
}

/// The status of each response, and the second at which it arrived.
async fn outcomes(start: Instant, tasks: Vec<Waiting>) -> Vec<(u16, u64)> {
    let mut outcomes = Vec::new();
    for task in tasks {
        let answer = task.await.unwrap().unwrap();
        outcomes.push((answer.status().as_u16(), start.elapsed().as_secs()));
    }
    outcomes
}

#[tokio::test(start_paused = true)]
async fn excess_waits_exactly_retry_after() {
    for algorithm in Algorithm::ALL {
        // In queue mode, the bucket schedules its own waits.
        let algorithm = match algorithm {
            Algorithm::LeakyBucket { .. } => Algorithm::LeakyBucket { mode: LeakyMode::Meter },
            other => other,
        };
        let store = on_tokio_time();
        let policy = Policy::new("p", Quota::per_minute(2), algorithm).unwrap();
        let service = limited(&store, [patient(policy.clone(), 3 * MINUTE)]);
        assert_eq!([status(&service).await, status(&service).await], [200, 200]);
        let denied = store.charge(&policy, &Key::GLOBAL, Cost::ONE).await.unwrap();
        let wait = Duration::from(denied.decisions()[0].retry_after().unwrap());
        let start = Instant::now();
        let answer = ask(&service, get()).await;
        assert_eq!(answer.status(), 200, "{algorithm}");
        assert_eq!(field(answer.headers(), "retry-after"), None);
        let over = start.elapsed() - wait;
        // Tokio timers have a resolution of one millisecond.
        assert!(over <= Duration::from_millis(2), "{algorithm}: {over:?} too long");
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_pass_in_order_of_arrival() {
    let noted = Arc::<Mutex<Vec<_>>>::default();
    let note = Arc::clone(&noted);
    let start = Instant::now();
    let service = layer(&on_tokio_time(), [patient(slow(), 20 * MINUTE)]).layer(service_fn(
        move |request: Request<()>| {
            note.lock().push((request.uri().path().to_owned(), start.elapsed().as_secs()));
            std::future::ready(Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())))
        },
    ));
    let mut tasks = Vec::new();
    for n in 0..8 {
        let request = request(Method::GET, &format!("/{n}"));
        tasks.push(tokio::spawn(service.clone().oneshot(request)));
        settle_down().await;
        // Some requests arrive just before a unit is refilled for the first waiter.
        advance(Duration::from_millis(if n % 2 == 0 { 9_999 } else { 1 })).await;
    }
    for task in tasks {
        assert_eq!(task.await.unwrap().unwrap().status(), 200);
    }
    let expected: Vec<_> = (0..8).map(|n| (format!("/{n}"), n * 10)).collect();
    assert_eq!(*noted.lock(), expected);
}

#[tokio::test(start_paused = true)]
async fn hopeless_waits_are_rejected_immediately() {
    let store = Staged::new(on_tokio_time());
    let max = Duration::from_secs(25);
    let service = limited(&store, [patient(slow(), max)]);
    let start = Instant::now();
    let mut tasks = crowd(&service, 5).await;
    let late = tasks.split_off(3);
    assert_eq!(outcomes(start, late).await, [(429, 0), (429, 0)]);
    assert_eq!(outcomes(start, tasks).await, [(200, 0), (200, 10), (200, 20)]);
    // A newcomer behind waiters first calls the store for its wait time. Each request then calls it
    // for units when it is at the front, and again after its wait.
    assert_eq!(store.calls(), 1 + 2 + (1 + 2) + 1 + 1);

    let impatient = limited(&store, [patient(slow(), Duration::from_secs(9))]);
    let start = Instant::now();
    let denied = ask(&impatient, get()).await;
    assert_eq!((denied.status().as_u16(), start.elapsed()), (429, Duration::ZERO));
    assert_eq!(field(denied.headers(), "retry-after").as_deref(), Some("10"));
}

#[tokio::test(start_paused = true)]
async fn waiters_ahead_count_toward_max_wait() {
    let max = Duration::from_millis(5_500);
    let every_second = Quota::every(Duration::from_secs(1));
    let meter = Algorithm::LeakyBucket { mode: LeakyMode::Meter };
    for (policy, passes) in [
        (Policy::token_bucket("bucket", Quota::per_second(5).burst(2)), 2 + 27),
        (Policy::new("meter", Quota::per_second(5).burst(2), meter), 2 + 27),
        (Policy::sliding_window_log("log", every_second), 1 + 5),
        (Policy::fixed_window_counter("window", Quota::per_second(5)), 5 + 25),
    ] {
        let policy = policy.unwrap();
        let name = policy.name().to_owned();
        let service = limited(&on_tokio_time(), [patient(policy, max)]);
        let start = Instant::now();
        let mut tasks = crowd(&service, passes + 10).await;
        let late = tasks.split_off(passes);
        for late in late {
            let answer = late.await.unwrap().unwrap();
            assert_eq!(
                (answer.status().as_u16(), start.elapsed()),
                (429, Duration::ZERO),
                "{name}"
            );
            let wait: u64 = field(answer.headers(), "retry-after").unwrap().parse().unwrap();
            assert!(wait > 5, "{name}: {wait}");
        }
        for (status, seconds) in outcomes(start, tasks).await {
            assert!(status == 200 && seconds <= 5, "{name}: {status} after {seconds} s");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn full_queue_rejects_without_charging() {
    let (clock, store) = memory();
    let service = builder(&store, [patient(slow(), 10 * MINUTE)])
        .max_waiting(2)
        .build()
        .unwrap()
        .layer(hello());
    let mut tasks = crowd(&service, 3).await;
    let refused = ask(&service, get()).await;
    assert_eq!(refused.status(), 429);
    assert_eq!(field(refused.headers(), "retry-after").as_deref(), Some("10"));
    // A unit is available again, but the first waiter's timer has not fired yet.
    clock.advance(seconds(10));
    for task in crowd(&service, 20).await {
        assert_eq!(task.await.unwrap().unwrap().status(), 429);
    }
    assert_eq!(tasks.iter().filter(|task| task.is_finished()).count(), 1);
    assert_eq!(left(&store, &slow()).await, 1);
    // The timer fires, and the queue has space for another waiter.
    advance(Duration::from_secs(10)).await;
    settle_down().await;
    tasks.extend(crowd(&service, 1).await);
    for _ in 0..2 {
        clock.advance(seconds(10));
        advance(Duration::from_secs(11)).await;
        settle_down().await;
    }
    for task in tasks {
        assert_eq!(task.await.unwrap().unwrap().status(), 200);
    }
}

#[tokio::test(start_paused = true)]
async fn full_queue_names_all_denying_limits() {
    let store = on_tokio_time();
    let dear = log("dear", 5);
    let limits = [
        patient(slow(), 10 * MINUTE),
        Limit::global(dear.clone()).cost(3),
        Limit::global(log("roomy", 9)),
        Limit::global(log("shadow", 1)).shadow(),
    ];
    let service = builder(&store, limits).max_waiting(1).build().unwrap().layer(hello());
    let mut tasks = crowd(&service, 1).await;
    // A second request waits, because another client uses the unit that it would take.
    store.reset(&dear, &Key::GLOBAL).await.unwrap();
    tasks.extend(crowd(&service, 1).await);
    assert!(!tasks[1].is_finished());
    store.charge(&dear, &Key::GLOBAL, Cost::new(3)).await.unwrap();
    let rejected = ask(&service, get()).await;
    assert_eq!(rejected.status(), 429);
    let members = field(rejected.headers(), "ratelimit").unwrap();
    assert!(members.contains(r#""dear";r=2;t=60, "roomy";r=8"#), "{members}");
    // The longest wait counts.
    assert_eq!(field(rejected.headers(), "retry-after").as_deref(), Some("60"));
    let problem = json(rejected).await;
    assert_eq!(problem["violated-policies"], serde_json::json!(["slow", "dear"]));
    assert_eq!(left(&store, &dear).await, 2, "the rejected request is not charged");
    tasks[1].abort();
}

/// While the store fails, the local store decides with half of the quota.
#[tokio::test(start_paused = true)]
async fn full_queue_denies_costs_above_the_local_share() {
    let store = Staged::new(on_tokio_time());
    let fallback = store.clone().or_local(on_tokio_time());
    let costs = Costs::default().method(Method::POST, 6);
    let limits = [patient(slow(), MINUTE), Limit::global(log("p", 10)).costs(costs)];
    let service = builder(&fallback, limits).max_waiting(1).build().unwrap().layer(hello());
    store.fail(Fault::NotCharged);
    let waiting = crowd(&service, 2).await;
    assert!(!waiting[1].is_finished());
    let rejected = ask(&service, request(Method::POST, "/")).await;
    assert_eq!(rejected.status(), 429, "the primary store may allow it later");
    assert!(field(rejected.headers(), "retry-after").is_some());
}

#[tokio::test(start_paused = true)]
async fn max_waiting_zero_rejects() {
    let service = builder(&on_tokio_time(), [patient(slow(), MINUTE)])
        .max_waiting(0)
        .build()
        .unwrap()
        .layer(hello());
    assert_eq!([status(&service).await, status(&service).await], [200, 429]);
}

#[tokio::test(start_paused = true)]
async fn cancelled_store_call_is_refunded() {
    let memory = on_tokio_time();
    let store = Staged::new(memory.clone());
    let service = limited(&store, [patient(slow(), MINUTE)]);
    let tasks = crowd(&service, 2).await;
    store.hold();
    advance(Duration::from_secs(11)).await;
    settle_down().await;
    tasks[1].abort();
    settle_down().await;
    store.release();
    settle_down().await;
    assert_eq!((store.settled(), left(&memory, &slow()).await), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn expired_waiters_consume_nothing() {
    let (clock, memory) = memory();
    let store = Staged::new(memory.clone());
    let service = limited(&store, [patient(slow(), Duration::from_secs(15))]);
    let mut tasks = crowd(&service, 3).await;
    // The first waiter calls the store, which responds late.
    store.hold();
    clock.advance(seconds(10));
    advance(Duration::from_secs(11)).await;
    settle_down().await;
    // The last waiter's deadline passes before its turn, so it must not take the refilled unit.
    clock.advance(seconds(10));
    advance(Duration::from_secs(6)).await;
    settle_down().await;
    store.release();
    let last = tasks.pop().unwrap().await.unwrap().unwrap();
    assert_eq!(last.status(), 429);
    assert!(field(last.headers(), "retry-after").is_some());
    assert_eq!(left(&memory, &slow()).await, 1);
    for task in tasks {
        assert_eq!(task.await.unwrap().unwrap().status(), 200);
    }
}

#[tokio::test(start_paused = true)]
async fn non_waiting_limit_rejects_immediately() {
    let store = on_tokio_time();
    let strict = Limit::global(log("strict", 2)).costs(Costs::flat(Cost::ONE));
    let service = limited(&store, [patient(slow(), 10 * MINUTE), strict]);
    let start = Instant::now();
    let tasks = crowd(&service, 2).await;
    assert_eq!(outcomes(start, tasks).await, [(200, 0), (200, 10)]);
    let denied = ask(&service, get()).await;
    assert_eq!((denied.status().as_u16(), start.elapsed().as_secs()), (429, 10));
    assert_eq!(left(&store, &slow()).await, 0);
}

#[tokio::test(start_paused = true)]
async fn free_requests_do_not_wait() {
    let costs = Costs::flat(Cost::ONE).method(Method::HEAD, Cost::ZERO);
    let service = limited(&on_tokio_time(), [patient(slow(), 10 * MINUTE).costs(costs)]);
    let start = Instant::now();
    let tasks = crowd(&service, 3).await;
    assert_eq!(ask(&service, request(Method::HEAD, "/")).await.status(), 200);
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(outcomes(start, tasks).await, [(200, 0), (200, 10), (200, 20)]);
}

#[tokio::test(start_paused = true)]
async fn waiters_hold_no_service_permit() {
    for late in [false, true] {
        let store = Staged::new(on_tokio_time());
        let limit = patient(slow(), MINUTE).when(|head| head.uri.path() == "/slow");
        let inner = ConcurrencyLimitLayer::new(1).layer(hello());
        let service = layer(&store, [limit, Limit::global(log("all", 100))]).layer(inner);
        let slowly = || request(Method::GET, "/slow");
        assert_eq!(service.clone().oneshot(slowly()).await.unwrap().status(), 200);
        if late {
            store.hold();
        }
        let mut waiting = Vec::new();
        for _ in 0..2 {
            waiting.push(tokio::spawn(service.clone().oneshot(slowly())));
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

#[tokio::test(start_paused = true)]
async fn store_failure_applies_policy_to_waiters() {
    for (on_store_error, expected) in [(OnStoreError::Open, 200), (OnStoreError::Closed, 503)] {
        let store = Staged::new(on_tokio_time());
        let policy = slow().with_on_store_error(on_store_error);
        let service = limited(&store, [patient(policy, MINUTE)]);
        let tasks = crowd(&service, 3).await;
        store.fail(Fault::NotCharged);
        for (task, expected) in tasks.into_iter().zip([200, expected, expected]) {
            assert_eq!(task.await.unwrap().unwrap().status(), expected);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn shadow_never_waits() {
    let service = limited(&on_tokio_time(), [patient(slow(), MINUTE).shadow()]);
    let start = Instant::now();
    for _ in 0..10 {
        assert_eq!(status(&service).await, 200);
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn unbounded_wait_does_not_overflow() {
    let service = limited(&on_tokio_time(), [patient(slow(), Duration::MAX)]);
    let start = Instant::now();
    let tasks = crowd(&service, 2).await;
    assert_eq!(outcomes(start, tasks).await, [(200, 0), (200, 10)]);
}

#[tokio::test(start_paused = true)]
async fn shared_wait_queue_shares_bounds_and_order() {
    let store = on_tokio_time();
    let queue = WaitQueue::new().max_bytes(3 * 1_024);
    let layer = |name: &str| {
        let others = Limit::global(log(name, 100));
        builder(&store, [patient(slow(), MINUTE), others]).wait_queue(&queue).build().unwrap()
    };
    let [one, other] = ["one", "other"].map(|name| layer(name).layer(hello()));
    let start = Instant::now();
    assert_eq!(status(&one).await, 200);
    let first = crowd(&one, 1).await;
    let second = crowd(&other, 1).await;
    let third = crowd(&one, 1).await;
    // The queue counts one KiB for a request without a body, so a fourth does not fit.
    assert_eq!(status(&other).await, 429);
    // The layers share the queue: requests leave in order of arrival.
    let mut waited = outcomes(start, first).await;
    waited.extend(outcomes(start, second).await);
    waited.extend(outcomes(start, third).await);
    assert_eq!(waited, [(200, 10), (200, 20), (200, 30)]);
}

#[tokio::test(start_paused = true)]
async fn cost_above_capacity_is_forbidden_immediately() {
    let store = on_tokio_time();
    let costs = Costs::default().from_fn(|head| (*head.method == Method::DELETE).then_some(6));
    let dear = || request(Method::DELETE, "/");
    let limits = [
        vec![patient(slow(), 10 * MINUTE).costs(costs.clone())],
        // The request can never pass the second limit, while other requests wait for the first.
        vec![patient(slow(), 10 * MINUTE), Limit::global(log("strict", 5)).costs(costs)],
    ];
    for (limits, max_waiting) in limits.iter().flat_map(|limits| [(limits, 9), (limits, 1)]) {
        store.reset(&slow(), &Key::GLOBAL).await.unwrap();
        store.reset(&log("strict", 5), &Key::GLOBAL).await.unwrap();
        let layer = builder(&store, limits.clone()).max_waiting(max_waiting).build().unwrap();
        let service = layer.layer(hello());
        let start = Instant::now();
        let tasks = crowd(&service, 2).await;
        let forbidden = ask(&service, dear()).await;
        assert_eq!((forbidden.status().as_u16(), start.elapsed()), (403, Duration::ZERO));
        assert_eq!(field(forbidden.headers(), "retry-after"), None);
        for task in tasks {
            task.abort();
            let _ = task.await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn max_waiting_applies_to_the_given_queue() {
    let store = on_tokio_time();
    let queue = WaitQueue::new();
    let layer = || builder(&store, [patient(slow(), MINUTE)]);
    let bounded = layer().wait_queue(&queue).max_waiting(1).build().unwrap().layer(hello());
    let other = layer().wait_queue(&queue).build().unwrap().layer(hello());
    assert_eq!(status(&bounded).await, 200);
    let waiting = crowd(&other, 1).await;
    // The request of the other layer is in the same queue, and the bound holds for both.
    assert_eq!([status(&bounded).await, status(&other).await], [429, 429]);
    drop(waiting);

    // A queue that is set later replaces the bounded queue.
    let queue = WaitQueue::new();
    let unbounded = layer().max_waiting(0).wait_queue(&queue).build().unwrap().layer(hello());
    let waiting = crowd(&unbounded, 1).await;
    assert!(!waiting[0].is_finished());
}

/// Requests are waiting for a fail-open policy when the store fails. The local store decides only
/// the other policy, so no limit remains to wait for.
#[tokio::test(start_paused = true)]
async fn fail_open_waiters_pass_beside_local_policy() {
    let store = Staged::new(on_tokio_time());
    let fallback = store.clone().or_local(on_tokio_time());
    let limits = [
        patient(slow().with_on_store_error(OnStoreError::Open), Duration::from_secs(25)),
        Limit::global(log("local", 10).with_on_store_error(OnStoreError::Local)),
    ];
    let queue = WaitQueue::new().max_requests(1);
    let layer = builder(&fallback, limits).wait_queue(&queue).build().unwrap();
    let service = layer.layer(hello());
    let tasks = crowd(&service, 2).await;
    store.fail(Fault::NotCharged);
    // The queue has no space for this request.
    let answer = ask(&service, get()).await;
    assert_eq!(answer.status(), 200, "{:?}", rate_fields(answer.headers()));
    let shown = field(answer.headers(), "ratelimit").unwrap();
    assert!(shown.contains(r#""local";r=4"#), "the local policy charges it: {shown}");
    for task in tasks {
        assert_eq!(task.await.unwrap().unwrap().status(), 200);
    }
}

/// While the store fails, the local store decides with half of the quota.
#[tokio::test(start_paused = true)]
async fn cost_above_the_local_share_is_no_final_denial() {
    let store = Staged::new(on_tokio_time());
    let fallback = store.clone().or_local(on_tokio_time());
    let costs = Costs::default().method(Method::POST, 6);
    let service = limited(&fallback, [patient(log("p", 10), 2 * MINUTE).costs(costs)]);
    store.fail(Fault::NotCharged);
    assert_eq!(ask(&service, request(Method::POST, "/")).await.status(), 503);
    let waiting = crowd(&service, 6).await;
    assert!(!waiting[5].is_finished());
    assert_eq!(ask(&service, request(Method::POST, "/")).await.status(), 503);
}

#[tokio::test(start_paused = true)]
async fn shortest_maximum_wait_counts() {
    let roomy = patient(log("roomy", 100), Duration::from_secs(1));
    let service = limited(&on_tokio_time(), [patient(slow(), MINUTE), roomy]);
    assert_eq!([status(&service).await, status(&service).await], [200, 429]);
}
