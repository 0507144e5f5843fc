//! `Limiter` in several processes: calls that queue in the store, pauses, and what a service says.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use tollgate::feedback::Feedback;
use tollgate::key::Key;
use tollgate::limiter::{AcquireError, LimiterBuilder, Permit};
use tollgate::{Limiter, Policy, Quota, Store};

use crate::stage::Staged;
use crate::support::*;

const MINUTE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

fn each_second() -> Policy {
    Policy::token_bucket("partner", Quota::per_second(1).burst(1)).unwrap()
}

/// A process's limiter.
fn process<St: Store>(store: &St) -> LimiterBuilder<St> {
    Limiter::builder(store.clone()).policy(each_second()).queue(MINUTE).pausable(5 * MINUTE)
}

fn key() -> Key {
    Key::from("account")
}

/// Starts a call, and returns its permit and when it left, in milliseconds.
fn call<St: Store>(
    limiter: &Limiter<St>,
    start: Instant,
) -> JoinHandle<(Result<Permit<St>, AcquireError>, u128)> {
    let limiter = limiter.clone();
    tokio::spawn(async move {
        let permit = limiter.acquire(&key(), 1).await;
        (permit, start.elapsed().as_millis())
    })
}

fn denial(headers: &[(&'static str, &str)]) -> Feedback {
    response(StatusCode::TOO_MANY_REQUESTS, headers)
}

fn response(status: StatusCode, headers: &[(&'static str, &str)]) -> Feedback {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.insert(*name, HeaderValue::from_str(value).unwrap());
    }
    Feedback::read(status, &map, SystemTime::UNIX_EPOCH)
}

#[tokio::test(start_paused = true)]
async fn processes_share_one_order_with_one_call_each() {
    let store = Staged::new(on_tokio_time());
    let (one, two) = (process(&store).build().unwrap(), process(&store).build().unwrap());
    let start = Instant::now();
    let mut calls = Vec::new();
    for limiter in [&one, &two, &two, &one] {
        calls.push(call(limiter, start));
        settle_down().await;
    }
    let mut left = Vec::new();
    for call in calls {
        let (permit, at) = call.await.unwrap();
        assert!(permit.is_ok());
        left.push(at / 1000);
    }
    assert_eq!(left, [0, 1, 2, 3]);
    // A call that has queued for a second asks again whether its key is paused.
    assert_eq!(store.calls(), 4 + 3);
}

#[tokio::test(start_paused = true)]
async fn place_of_last_call_that_leaves_goes_to_the_next() {
    let store = on_tokio_time();
    let limiter = process(&store).build().unwrap();
    let start = Instant::now();
    let first = call(&limiter, start);
    settle_down().await;
    let [second, third] = [(); 2].map(|()| call(&limiter, start));
    settle_down().await;
    third.abort();
    settle_down().await;
    let fourth = call(&limiter, start);
    for (call, seconds) in [(first, 0), (second, 1), (fourth, 2)] {
        assert_eq!(call.await.unwrap().1 / 1000, seconds);
    }
}

#[tokio::test(start_paused = true)]
async fn call_whose_place_is_too_late_fails_at_once() {
    let store = on_tokio_time();
    let limiter = process(&store).build().unwrap();
    let start = Instant::now();
    drop(limiter.acquire(&key(), 1).await.unwrap());
    let late = limiter.request().all(&key(), 1).within(SECOND / 4).acquire().await.unwrap_err();
    assert!(matches!(late, AcquireError::TooLate(_)), "{late}");
    assert_eq!(late.retry_after(), Some(SECOND * 3 / 4));
    assert!(limiter.try_acquire(&key(), 1).await.unwrap().is_none());
    assert_eq!(start.elapsed(), Duration::ZERO);
    // Neither has taken a place.
    assert_eq!(call(&limiter, start).await.unwrap().1, 1000);
}

#[tokio::test(start_paused = true)]
async fn denial_pauses_all_processes_once() {
    let store = on_tokio_time();
    let (one, two) = (process(&store).build().unwrap(), process(&store).build().unwrap());
    let start = Instant::now();
    let first = one.acquire(&key(), 1).await.unwrap();
    let asleep = call(&two, start);
    let second = call(&one, start);
    settle_down().await;
    let pause = first.learn(&denial(&[("retry-after", "30")])).await.unwrap();
    assert_eq!(pause, Some(30 * SECOND));
    // The calls that were asleep do not run into the pause, and a new call queues behind it.
    let new = call(&two, start);
    let mut left = Vec::new();
    for call in [asleep, second, new] {
        let (permit, at) = call.await.unwrap();
        left.push(at / 1000);
        assert!(permit.is_ok());
    }
    left.sort_unstable();
    assert_eq!(left, [30, 31, 32]);
    // An answer to a call from before the pause is old news.
    assert_eq!(first.learn(&denial(&[("retry-after", "200")])).await.unwrap(), None);
    assert_eq!(call(&one, start).await.unwrap().1 / 1000, 33);
}

#[tokio::test(start_paused = true)]
async fn denials_without_a_wait_pause_ever_longer() {
    let store = on_tokio_time();
    let limiter = process(&store).build().unwrap();
    let mut gaps = Vec::new();
    for _ in 0..4 {
        let permit = limiter.acquire(&key(), 1).await.unwrap();
        permit.learn(&denial(&[])).await.unwrap();
        let start = Instant::now();
        drop(limiter.acquire(&key(), 1).await.unwrap().cancel().await);
        gaps.push(start.elapsed().as_secs());
    }
    assert_eq!(gaps, [1, 2, 4, 8]);
}

/// The service names no wait, so each denial halves the rate of all processes, once for all calls that
/// were on their way.
#[tokio::test(start_paused = true)]
async fn adaptive_rate_falls_at_denials_and_rises_evenly() {
    let store = on_tokio_time();
    let adaptive = || process(&store).adaptive(100 * SECOND).build().unwrap();
    let (one, two) = (adaptive(), adaptive());
    // How many seconds five calls take, with a place each second.
    let five_calls = async |limiter: &Limiter<_>| {
        let start = Instant::now();
        for _ in 0..5 {
            drop(limiter.acquire(&key(), 1).await.unwrap());
        }
        start.elapsed().as_secs()
    };
    let early = one.acquire(&key(), 1).await.unwrap();
    let late = two.acquire(&key(), 1).await.unwrap();
    // Both left at the full rate.
    early.learn(&denial(&[])).await.unwrap();
    late.learn(&denial(&[])).await.unwrap();
    let slow = five_calls(&two).await;
    assert!((9..=10).contains(&slow), "half of the rate: {slow}");
    let permit = one.acquire(&key(), 1).await.unwrap();
    permit.learn(&denial(&[])).await.unwrap();
    let slow = five_calls(&one).await;
    assert!((14..=16).contains(&slow), "a third of the rate: {slow}");
    // A named wait needs no guess.
    let permit = one.acquire(&key(), 1).await.unwrap();
    permit.learn(&denial(&[("retry-after", "1")])).await.unwrap();
    tokio::time::advance(100 * SECOND).await;
    assert_eq!(five_calls(&one).await, 4, "the whole rate");
}

#[tokio::test(start_paused = true)]
async fn units_that_others_used_are_charged() {
    let policy = Policy::sliding_window_log("partner", Quota::per_minute(100)).unwrap();
    let limiter = Limiter::builder(on_tokio_time()).policy(policy).queue(MINUTE).build().unwrap();
    let permit = limiter.acquire(&key(), 10).await.unwrap();
    let remaining =
        async || limiter.peek(&key()).await.unwrap().iter().next().unwrap().decision().remaining;
    let says = |remaining| {
        let headers = [("x-ratelimit-limit", "100"), ("x-ratelimit-remaining", remaining)];
        response(StatusCode::OK, &headers)
    };
    // More than here: other calls of ours are still on their way.
    permit.learn(&says("95")).await.unwrap();
    assert_eq!(remaining().await, 90);
    permit.learn(&says("60")).await.unwrap();
    assert_eq!(remaining().await, 60);
    // A later call of ours was charged, and the answer does not know it.
    let later = limiter.acquire(&key(), 20).await.unwrap();
    permit.learn(&says("60")).await.unwrap();
    assert_eq!(remaining().await, 40);
    drop(later);
}

#[tokio::test(start_paused = true)]
async fn low_priority_leaves_units_to_others() {
    let store = on_tokio_time();
    let policy = Policy::sliding_window_log("partner", Quota::per_minute(10)).unwrap();
    let interactive = Limiter::builder(store.clone()).policy(policy.clone()).queue(2 * MINUTE);
    let (interactive, batch) = (
        interactive.build().unwrap(),
        Limiter::builder(store)
            .policy(policy)
            .leaving_percent(30)
            .wait(5 * MINUTE)
            .build()
            .unwrap(),
    );
    let start = Instant::now();
    let backlog: Vec<_> = (0..10).map(|_| call(&batch, start)).collect();
    settle_down().await;
    let finished = || backlog.iter().filter(|call| call.is_finished()).count();
    for _ in 0..3 {
        assert_eq!(call(&interactive, start).await.unwrap().1, 0);
    }
    assert_eq!(finished(), 7);
    // While interactive calls queue for the next minute, the backlog takes nothing.
    let queued: Vec<_> = (0..4).map(|_| call(&interactive, start)).collect();
    tokio::time::sleep(MINUTE / 2).await;
    assert_eq!(finished(), 7);
    backlog.iter().for_each(JoinHandle::abort);
    for call in queued {
        assert_eq!(call.await.unwrap().1, 60_000);
    }
}

#[tokio::test(start_paused = true)]
async fn call_that_costs_nothing_passes_a_queue_and_a_pause() {
    let limiter = process(&on_tokio_time()).build().unwrap();
    drop(limiter.acquire(&key(), 1).await.unwrap());
    limiter.pause(&key(), MINUTE).await.unwrap();
    let behind = call(&limiter, Instant::now());
    settle_down().await;
    let start = Instant::now();
    drop(limiter.acquire(&key(), 0).await.unwrap());
    assert_eq!(start.elapsed(), Duration::ZERO);
    behind.abort();
}

#[tokio::test(start_paused = true)]
async fn call_dropped_while_it_asks_for_a_pause_is_refunded() {
    let store = Staged::new(on_tokio_time());
    let policy = Policy::sliding_window_log("partner", Quota::new(1, SECOND)).unwrap();
    let limiter = Limiter::builder(store.clone()).policy(policy).queue(MINUTE).pausable(MINUTE);
    let limiter = limiter.build().unwrap();
    let start = Instant::now();
    drop(limiter.acquire(&key(), 1).await.unwrap());
    let second = call(&limiter, start);
    settle_down().await;
    store.hold();
    tokio::time::sleep(SECOND + SECOND / 10).await;
    second.abort();
    settle_down().await;
    store.release();
    settle_down().await;
    assert!(limiter.try_acquire(&key(), 1).await.unwrap().is_some(), "the place was given back");
}

#[tokio::test(start_paused = true)]
async fn waits_and_pauses_together_are_bounded() {
    let limiter = process(&on_tokio_time()).build().unwrap();
    limiter.pause(&key(), MINUTE - SECOND).await.unwrap();
    let start = Instant::now();
    let waiting = call(&limiter, start);
    settle_down().await;
    limiter.pause(&key(), 4 * MINUTE).await.unwrap();
    let (result, at) = waiting.await.unwrap();
    assert!(matches!(result, Err(AcquireError::TooLate(_))));
    assert!(at <= 60_000, "{at}");
}

/// A combination in which a call could not be counted when it leaves.
#[test]
fn builder_refuses_what_cannot_queue() {
    let build = |policy: Policy| {
        let limiter = Limiter::builder(on_tokio_time()).policy(each_second()).policy(policy);
        limiter.queue(MINUTE).build().map(drop).map_err(|error| error.to_string())
    };
    let permits = Policy::concurrent_requests("permits", 5, MINUTE).unwrap();
    let leaky = Policy::leaky_bucket("leaky", Quota::per_second(1)).unwrap();
    for (policy, cure) in [(permits, "from a limiter of their own"), (leaky, "max_wait")] {
        let error = build(policy).unwrap_err();
        assert!(error.contains(cure), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn paused_calls_that_wait_in_the_process_keep_the_quota() {
    let store = on_tokio_time();
    let limiter = Limiter::builder(store).policy(log("partner", 2)).wait(2 * MINUTE);
    let limiter = limiter.pausable(5 * MINUTE).build().unwrap();
    let start = Instant::now();
    let first = limiter.acquire(&key(), 1).await.unwrap();
    first.learn(&denial(&[("retry-after", "30")])).await.unwrap();
    let calls: Vec<_> = (0..4).map(|_| call(&limiter, start)).collect();
    let mut left = Vec::new();
    for call in calls {
        left.push(call.await.unwrap().1 / 1000);
    }
    assert_eq!(left, [30, 60, 90, 120]);
    // A limiter whose calls do not wait does not wait for a pause either.
    let limiter = Limiter::builder(on_tokio_time()).policy(log("partner", 2)).pausable(MINUTE);
    let limiter = limiter.build().unwrap();
    limiter.pause(&key(), SECOND).await.unwrap();
    let start = Instant::now();
    assert!(limiter.acquire(&key(), 1).await.is_err());
    assert_eq!(start.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn calls_queue_for_longer_than_a_pause_lasts() {
    let store = on_tokio_time();
    let limiter = process(&store).pausable(SECOND).build().unwrap();
    let start = Instant::now();
    let calls: Vec<_> = (0..5).map(|_| call(&limiter, start)).collect();
    for (seconds, call) in calls.into_iter().enumerate() {
        let (permit, at) = call.await.unwrap();
        assert!(permit.is_ok(), "{permit:?}");
        assert_eq!(at / 1000, seconds as u128);
    }
}

/// The entire backlog has entered at the full rate, and each denial still halves the current rate.
#[tokio::test(start_paused = true)]
async fn denials_in_a_backlog_halve_the_rate_again() {
    let limiter = process(&on_tokio_time()).adaptive(100_000 * SECOND).build().unwrap();
    let mut calls = JoinSet::new();
    for _ in 0..30 {
        let limiter = limiter.clone();
        calls.spawn(async move { limiter.acquire(&key(), 1).await.unwrap() });
    }
    for expected in [500, 250, 125] {
        let permit = calls.join_next().await.unwrap().unwrap();
        permit.learn(&denial(&[])).await.unwrap();
        let verdicts = limiter.peek(&key()).await.unwrap();
        assert_eq!(verdicts.get("partner-rate").unwrap().decision().remaining, expected);
    }
}

/// Turns that pass unused do not lengthen the wait.
#[tokio::test(start_paused = true)]
async fn waits_of_unused_turns_are_bounded_together() {
    let policy = Policy::token_bucket("partner", Quota::per_second(1).burst(1)).unwrap();
    let builder = Limiter::builder(on_tokio_time()).policy(policy).wait(3 * SECOND);
    let limiter = builder.adaptive(100_000 * SECOND).build().unwrap();
    let late = loop {
        let start = Instant::now();
        let acquired = limiter.acquire(&key(), 1).await;
        assert!(start.elapsed() <= 3 * SECOND, "{:?}", start.elapsed());
        match acquired {
            Ok(permit) => permit.learn(&denial(&[])).await.unwrap(),
            Err(late) => break late,
        };
    };
    assert!(matches!(late, AcquireError::TooLate(_) | AcquireError::Denied(_)), "{late}");
}

/// A receipt counts from the call's departure, so it has not lapsed when the call leaves.
#[tokio::test(start_paused = true)]
async fn call_that_queued_for_hours_is_settled() {
    let hour = 3600 * SECOND;
    let policy = Policy::token_bucket("partner", Quota::new(1, 2 * hour)).unwrap();
    let limiter = Limiter::builder(on_tokio_time()).policy(policy).queue(6 * hour).build().unwrap();
    drop(limiter.acquire(&key(), 1).await.unwrap());
    let permit = limiter.acquire(&key(), 1).await.unwrap();
    permit.cancel().await.unwrap();
    let verdicts = limiter.peek(&key()).await.unwrap();
    assert_eq!(verdicts.get("partner").unwrap().decision().remaining, 1);
}
