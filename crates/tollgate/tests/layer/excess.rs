//! Requests beyond a limit that wait for it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, advance, timeout};
use tollgate::key::{ClientIp, Key};
use tollgate::layer::{RateLimit, WaitQueue};
use tollgate::limit::OnExceeded;
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
    Limit::global(policy).costs(Costs::flat(Cost::ONE)).on_exceeded(OnExceeded::Wait { max })
}

/// Runs everything that can run without time passing.
pub(crate) async fn settle_down() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

type Waiting = JoinHandle<Result<Answer, Infallible>>;

/// `count` requests that come one after the other at the same instant.
async fn crowd<St: Store>(service: &RateLimit<Hello, St>, count: usize) -> Vec<Waiting> {
    let mut tasks = Vec::new();
    for _ in 0..count {
        tasks.push(tokio::spawn(service.clone().oneshot(get())));
        settle_down().await;
    }
    tasks
}

/// The status of each answer, and when it was there.
async fn outcomes(start: Instant, tasks: Vec<Waiting>) -> Vec<(u16, u64)> {
    let mut outcomes = Vec::new();
    for task in tasks {
        let answer = task.await.unwrap().unwrap();
        outcomes.push((answer.status().as_u16(), start.elapsed().as_secs()));
    }
    outcomes
}

#[tokio::test(start_paused = true)]
async fn the_excess_of_any_algorithm_waits_as_long_as_it_must() {
    for algorithm in Algorithm::ALL {
        // A queue has a wait of its own.
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
        // Timers of tokio have a grain of a millisecond.
        assert!(over <= Duration::from_millis(2), "{algorithm}: {over:?} too long");
    }
}

#[tokio::test(start_paused = true)]
async fn who_came_first_goes_first_and_nobody_overtakes() {
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
async fn who_would_wait_too_long_is_refused_as_soon_as_that_is_known() {
    let store = Staged::new(on_tokio_time());
    let max = Duration::from_secs(25);
    let service = limited(&store, [patient(slow(), max)]);
    let start = Instant::now();
    let mut tasks = crowd(&service, 5).await;
    let late = tasks.split_off(3);
    assert_eq!(outcomes(start, late).await, [(429, 0), (429, 0)]);
    assert_eq!(outcomes(start, tasks).await, [(200, 0), (200, 10), (200, 20)]);
    // A request that arrives after others asks when it would pass. Each request asks for units when
    // it is in front, and once more after its wait.
    assert_eq!(store.calls(), 1 + 2 + (1 + 2) + 1 + 1);

    let impatient = limited(&store, [patient(slow(), Duration::from_secs(9))]);
    let start = Instant::now();
    let denied = ask(&impatient, get()).await;
    assert_eq!((denied.status().as_u16(), start.elapsed()), (429, Duration::ZERO));
    assert_eq!(field(denied.headers(), "retry-after").as_deref(), Some("10"));
}

#[tokio::test(start_paused = true)]
async fn a_request_is_rejected_at_once_if_the_units_of_those_before_it_come_too_late() {
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
async fn only_so_many_wait_and_who_finds_no_place_takes_nothing_from_them() {
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
    // A unit is back, and the timer of the one in front has not rung yet.
    clock.advance(seconds(10));
    for task in crowd(&service, 20).await {
        assert_eq!(task.await.unwrap().unwrap().status(), 429);
    }
    assert_eq!(tasks.iter().filter(|task| task.is_finished()).count(), 1);
    assert_eq!(store.peek(&slow(), &Key::GLOBAL).await.unwrap().decisions()[0].remaining, 1);
    // It rings, and there is a place at the end.
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
async fn who_finds_a_place_overtakes_nobody_either() {
    let (clock, store) = memory();
    let service = limited(&store, [patient(slow(), 10 * MINUTE)]);
    let tasks = crowd(&service, 2).await;
    clock.advance(seconds(10));
    let late = crowd(&service, 1).await;
    let finished = |tasks: &[Waiting]| tasks.iter().filter(|task| task.is_finished()).count();
    assert_eq!((finished(&tasks), finished(&late)), (1, 0));
    advance(Duration::from_secs(10)).await;
    settle_down().await;
    assert_eq!((finished(&tasks), finished(&late)), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn a_layer_where_nobody_may_wait_refuses() {
    let service = builder(&on_tokio_time(), [patient(slow(), MINUTE)])
        .max_waiting(0)
        .build()
        .unwrap()
        .layer(hello());
    assert_eq!([status(&service).await, status(&service).await], [200, 429]);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_takes_nothing() {
    let store = on_tokio_time();
    let service = limited(&store, [patient(slow(), 10 * MINUTE)]);
    let start = Instant::now();
    let mut tasks = crowd(&service, 5).await;
    // From the front and from the middle.
    for gone in [3, 1] {
        let task: Waiting = tasks.remove(gone);
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
    }
    assert_eq!(outcomes(start, tasks).await, [(200, 0), (200, 10), (200, 20)]);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_before_the_store_answers_gets_back_what_it_took() {
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
    let left = memory.peek(&slow(), &Key::GLOBAL).await.unwrap();
    assert_eq!((store.settled(), left.decisions()[0].remaining), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn whose_time_is_over_before_the_turn_takes_nothing_from_those_in_front() {
    let (clock, memory) = memory();
    let store = Staged::new(memory.clone());
    let service = limited(&store, [patient(slow(), Duration::from_secs(15))]);
    let mut tasks = crowd(&service, 3).await;
    // The one in front asks, and the store takes its time.
    store.hold();
    clock.advance(seconds(10));
    advance(Duration::from_secs(11)).await;
    settle_down().await;
    // Whatever came back meanwhile is not for who cannot wait for the turn.
    clock.advance(seconds(10));
    advance(Duration::from_secs(6)).await;
    settle_down().await;
    store.release();
    let last = tasks.pop().unwrap().await.unwrap().unwrap();
    assert_eq!(last.status(), 429);
    assert!(field(last.headers(), "retry-after").is_some());
    assert_eq!(memory.peek(&slow(), &Key::GLOBAL).await.unwrap().decisions()[0].remaining, 1);
    for task in tasks {
        assert_eq!(task.await.unwrap().unwrap().status(), 200);
    }
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_does_not_wait_refuses_at_once() {
    let store = on_tokio_time();
    let strict = Limit::global(log("strict", 2)).costs(Costs::flat(Cost::ONE));
    let service = limited(&store, [patient(slow(), 10 * MINUTE), strict]);
    let start = Instant::now();
    let tasks = crowd(&service, 2).await;
    assert_eq!(outcomes(start, tasks).await, [(200, 0), (200, 10)]);
    let denied = ask(&service, get()).await;
    assert_eq!((denied.status().as_u16(), start.elapsed().as_secs()), (429, 10));
    let left = store.peek(&slow(), &Key::GLOBAL).await.unwrap();
    assert_eq!(left.decisions()[0].remaining, 0);
}

#[tokio::test(start_paused = true)]
async fn each_key_has_its_line() {
    let limit =
        Limit::new(slow(), ClientIp::peer()).on_exceeded(OnExceeded::Wait { max: 10 * MINUTE });
    let service = limited(&on_tokio_time(), [limit]);
    let start = Instant::now();
    let tasks = crowd(&service, 3).await;
    assert_eq!(ask(&service, from_peer(2, get())).await.status(), 200);
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(outcomes(start, tasks).await, [(200, 0), (200, 10), (200, 20)]);
}

#[tokio::test(start_paused = true)]
async fn what_costs_nothing_waits_for_nobody() {
    let costs = Costs::flat(Cost::ONE).method(Method::HEAD, Cost::ZERO);
    let service = limited(&on_tokio_time(), [patient(slow(), 10 * MINUTE).costs(costs)]);
    let start = Instant::now();
    let tasks = crowd(&service, 3).await;
    assert_eq!(ask(&service, request(Method::HEAD, "/")).await.status(), 200);
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(outcomes(start, tasks).await.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn who_waits_holds_no_permit_of_the_service() {
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
        // No time passes here: the permit is free although two wait.
        let other = timeout(Duration::from_millis(1), service.clone().oneshot(get())).await;
        assert_eq!(other.expect("the permit is free").unwrap().status(), 200);
        for waiting in waiting {
            assert!(!waiting.is_finished());
            assert_eq!(waiting.await.unwrap().unwrap().status(), 200);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_meanwhile_decides_as_the_policy_says() {
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
async fn a_shadow_lets_nobody_wait() {
    let service = limited(&on_tokio_time(), [patient(slow(), MINUTE).shadow()]);
    let start = Instant::now();
    for _ in 0..10 {
        assert_eq!(status(&service).await, 200);
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn however_long_one_may_wait_nothing_overflows() {
    let service = limited(&on_tokio_time(), [patient(slow(), Duration::MAX)]);
    let start = Instant::now();
    let tasks = crowd(&service, 2).await;
    assert_eq!(outcomes(start, tasks).await, [(200, 0), (200, 10)]);
}

#[tokio::test(start_paused = true)]
async fn layers_that_share_a_room_share_its_bounds_and_its_lines() {
    let store = on_tokio_time();
    let room = WaitQueue::new().max_bytes(3 * 1_024);
    let layer = |name: &str| {
        let others = Limit::global(log(name, 100));
        builder(&store, [patient(slow(), MINUTE), others]).wait_queue(&room).build().unwrap()
    };
    let [one, other] = ["one", "other"].map(|name| layer(name).layer(hello()));
    let start = Instant::now();
    assert_eq!(status(&one).await, 200);
    let first = crowd(&one, 1).await;
    let second = crowd(&other, 1).await;
    let third = crowd(&one, 1).await;
    // Three requests of a kibibyte each, without bodies: no room for a fourth.
    assert_eq!(status(&other).await, 429);
    // The layers share the queue: requests leave in the order of arrival.
    let mut waited = outcomes(start, first).await;
    waited.extend(outcomes(start, second).await);
    waited.extend(outcomes(start, third).await);
    assert_eq!(waited, [(200, 10), (200, 20), (200, 30)]);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_costs_more_than_the_capacity_is_forbidden_at_once() {
    let store = on_tokio_time();
    let costs = Costs::default().from_fn(|head| (*head.method == Method::DELETE).then_some(6));
    let dear = || request(Method::DELETE, "/");
    let limits = [
        vec![patient(slow(), 10 * MINUTE).costs(costs.clone())],
        // The request can never pass one limit, while others wait for another limit.
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
async fn a_bound_of_a_layer_is_set_on_the_room_that_it_was_given() {
    let store = on_tokio_time();
    let room = WaitQueue::new();
    let layer = || builder(&store, [patient(slow(), MINUTE)]);
    let bounded = layer().wait_queue(&room).max_waiting(1).build().unwrap().layer(hello());
    let other = layer().wait_queue(&room).build().unwrap().layer(hello());
    assert_eq!(status(&bounded).await, 200);
    let waiting = crowd(&other, 1).await;
    // The request of the other layer is in the same queue, and the bound holds for both.
    assert_eq!([status(&bounded).await, status(&other).await], [429, 429]);
    drop(waiting);

    // A room that is given later replaces the one with the bound.
    let room = WaitQueue::new();
    let unbounded = layer().max_waiting(0).wait_queue(&room).build().unwrap().layer(hello());
    let waiting = crowd(&unbounded, 1).await;
    assert!(!waiting[0].is_finished());
}

/// Requests wait for an open policy when the store fails. The local store decides for the other
/// policy only, so there is no limit left to wait for.
#[tokio::test(start_paused = true)]
async fn open_waiting_policy_passes_beside_a_local_one() {
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
    // The queue has no place for this request.
    let answer = ask(&service, get()).await;
    assert_eq!(answer.status(), 200, "{:?}", rate_fields(answer.headers()));
    let shown = field(answer.headers(), "ratelimit").unwrap();
    assert!(shown.contains(r#""local";r=4"#), "the local policy charges it: {shown}");
    for task in tasks {
        assert_eq!(task.await.unwrap().unwrap().status(), 200);
    }
}
