//! `Permit::retry`: calls that the service has denied queue again, within a budget of all processes.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::time::{Instant, advance};
use tollgate::feedback::Feedback;
use tollgate::key::Key;
use tollgate::limiter::{AcquireError, LimiterBuilder, Permit};
use tollgate::{Limiter, Policy, Quota, Store};

use crate::stage::{Fault, Staged};
use crate::support::*;

const MINUTE: Duration = Duration::from_secs(60);

/// A process's limiter, with a budget of 2 retries.
fn process<St: Store>(store: &St) -> LimiterBuilder<St> {
    let limiter = Limiter::builder(store.clone()).policy(log("partner", 20)).queue(2 * MINUTE);
    limiter.pausable(5 * MINUTE).retries(10)
}

fn key() -> Key {
    Key::from("account")
}

fn denial(retry_after: u64) -> Feedback {
    let headers =
        HeaderMap::from_iter([("retry-after", retry_after)].map(|(name, seconds)| {
            (http::HeaderName::from_static(name), HeaderValue::from(seconds))
        }));
    Feedback::read(StatusCode::TOO_MANY_REQUESTS, &headers, SystemTime::UNIX_EPOCH)
}

async fn remaining<St: Store>(limiter: &Limiter<St>, policy: &str) -> u64 {
    limiter.peek(&key()).await.unwrap().get(policy).unwrap().decision().remaining
}

async fn call<St: Store>(limiter: &Limiter<St>) -> Permit<St> {
    limiter.acquire(&key(), 1).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn retry_leaves_after_the_pause() {
    let limiter = process(&on_tokio_time()).build().unwrap();
    let start = Instant::now();
    let permit = call(&limiter).await;
    permit.learn(&denial(30)).await.unwrap();
    let permit = permit.retry().await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 30);
    // Both attempts are charged, because the service may have counted both.
    assert_eq!(remaining(&limiter, "partner").await, 18);
    drop(permit);
}

#[tokio::test(start_paused = true)]
async fn processes_share_the_budget() {
    let store = on_tokio_time();
    let (one, two) = (process(&store).build().unwrap(), process(&store).build().unwrap());
    let permit = call(&one).await.retry().await.unwrap();
    drop(call(&two).await.retry().await.unwrap());
    let spent = permit.retry().await.unwrap_err();
    assert!(matches!(spent, AcquireError::RetryBudget(_)), "{spent}");
    assert_eq!(
        spent.to_string(),
        "the retry budget is used up: denied by `partner-retries`, retry after 30 seconds",
    );
    assert_eq!(spent.retry_after(), Some(MINUTE / 2));
    // A denied retry is not charged.
    assert_eq!(remaining(&one, "partner").await, 16);
    advance(MINUTE / 2).await;
    drop(call(&two).await.retry().await.unwrap());
    assert!(call(&one).await.retry().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn spent_budget_denies_before_the_wait() {
    let waiting = Limiter::builder(on_tokio_time()).policy(log("partner", 3)).wait(2 * MINUTE);
    let queueing = Limiter::builder(on_tokio_time()).policy(log("partner", 3)).queue(2 * MINUTE);
    for limiter in [waiting, queueing] {
        let limiter = limiter.retries(10).build().unwrap();
        // A tenth is less than 1 unit, and the budget has at least 1.
        drop(call(&limiter).await.retry().await.unwrap());
        let last = call(&limiter).await;
        let start = Instant::now();
        // The retry would have to wait for the policy, too.
        assert!(matches!(last.retry().await, Err(AcquireError::RetryBudget(_))));
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn retry_keeps_the_deadline() {
    let limiter = process(&on_tokio_time()).build().unwrap();
    let request = || limiter.request().all(&key(), 1).within(MINUTE).acquire();
    let permit = request().await.unwrap();
    advance(MINUTE / 2).await;
    permit.learn(&denial(29)).await.unwrap();
    let permit = permit.retry().await.unwrap();
    permit.learn(&denial(2)).await.unwrap();
    let late = permit.retry().await.unwrap_err();
    assert!(matches!(late, AcquireError::TooLate(_)), "{late}");
}

#[tokio::test(start_paused = true)]
async fn retry_needs_a_budget() {
    let limiter = Limiter::builder(on_tokio_time()).policy(log("partner", 20)).build().unwrap();
    let error = call(&limiter).await.retry().await.unwrap_err();
    assert!(matches!(error, AcquireError::NoRetryBudget));
    assert_eq!(error.retry_after(), None);
}

#[tokio::test(start_paused = true)]
async fn retry_frees_the_first_attempt() {
    let policy = Policy::concurrent_requests("partner", 1, MINUTE).unwrap();
    let limiter = Limiter::builder(on_tokio_time()).policy(policy).wait(MINUTE);
    let limiter = limiter.retries(10).build().unwrap();
    let start = Instant::now();
    let _permit = call(&limiter).await.retry().await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(remaining(&limiter, "partner").await, 0);
}

#[tokio::test(start_paused = true)]
async fn corrections_know_the_budget() {
    let limiter = process(&on_tokio_time()).build().unwrap();
    // A call that costs more than the budget's capacity takes all of it.
    let permit = limiter.acquire(&key(), 5).await.unwrap().retry().await.unwrap();
    assert_eq!(remaining(&limiter, "partner-retries").await, 0);
    // The budget counts retries, regardless of their actual cost.
    permit.settle(1).await.unwrap();
    assert_eq!(remaining(&limiter, "partner-retries").await, 0);
    assert_eq!(remaining(&limiter, "partner").await, 14);
    advance(MINUTE).await;
    let permit = call(&limiter).await.retry().await.unwrap();
    assert_eq!(remaining(&limiter, "partner-retries").await, 1);
    // The service's numbers are about the policy, also for a retry.
    let headers = HeaderMap::from_iter(
        [("x-ratelimit-limit", 20), ("x-ratelimit-remaining", 7)]
            .map(|(name, number)| (http::HeaderName::from_static(name), HeaderValue::from(number))),
    );
    let feedback = Feedback::read(StatusCode::OK, &headers, SystemTime::UNIX_EPOCH);
    permit.learn(&feedback).await.unwrap();
    assert_eq!(remaining(&limiter, "partner").await, 7);
    permit.cancel().await.unwrap();
    assert_eq!(remaining(&limiter, "partner-retries").await, 2);
}

#[tokio::test(start_paused = true)]
async fn retry_that_is_paused_again_costs_once() {
    let store = on_tokio_time();
    let limiter = process(&store).build().unwrap();
    let start = Instant::now();
    let permit = call(&limiter).await;
    permit.learn(&denial(30)).await.unwrap();
    let retry = tokio::spawn(permit.retry());
    settle_down().await;
    advance(MINUTE / 4).await;
    // The retry sleeps, and another process hears of a longer pause.
    limiter.pause(&key(), MINUTE).await.unwrap();
    let permit = retry.await.unwrap().unwrap();
    assert_eq!(start.elapsed().as_secs(), 75);
    // It was charged 45 s ago at the latest, so the budget would have refilled.
    assert_eq!(remaining(&limiter, "partner-retries").await, 2);
    drop(permit);
}

#[tokio::test(start_paused = true)]
async fn outage_repeats_no_calls() {
    let store = Staged::new(on_tokio_time());
    let limiter = process(&store).build().unwrap();
    let permit = call(&limiter).await;
    store.fail(Fault::NotCharged);
    // Calls that queue fail closed, and so do their retries.
    let denied = limiter.acquire(&key(), 1).await;
    assert!(matches!(denied, Err(AcquireError::Store(_))));
    assert!(matches!(permit.retry().await, Err(AcquireError::Store(_))));
}

/// A turn that passes unused repeats no call.
#[tokio::test(start_paused = true)]
async fn unused_turns_cost_no_retries() {
    let builder = Limiter::builder(on_tokio_time()).policy(log("partner", 20)).retries(10);
    let limiter = builder.adaptive(60 * MINUTE).build().unwrap();
    let unnamed =
        Feedback::read(StatusCode::TOO_MANY_REQUESTS, &HeaderMap::new(), SystemTime::UNIX_EPOCH);
    for _ in 0..2 {
        call(&limiter).await.learn(&unnamed).await.unwrap();
    }
    let permit = call(&limiter).await;
    let before = remaining(&limiter, "partner").await;
    drop(permit.retry().await.unwrap());
    assert_eq!(remaining(&limiter, "partner").await, before - 4, "a quarter of the rate");
    assert_eq!(remaining(&limiter, "partner-retries").await, 1);
}

/// The budget counts the first policy's units, even if a call charges another policy first.
#[tokio::test(start_paused = true)]
async fn retry_costs_what_the_first_policy_charges() {
    let tokens = Policy::token_bucket("tokens", Quota::per_minute(1_000)).unwrap();
    let requests = Policy::token_bucket("requests", Quota::per_minute(100)).unwrap();
    let builder = Limiter::builder(on_tokio_time()).policy(tokens).policy(requests);
    let limiter = builder.retries(10).build().unwrap();
    let call = limiter.request().policy("requests", &key(), 1).policy("tokens", &key(), 90);
    drop(call.acquire().await.unwrap().retry().await.unwrap());
    assert_eq!(remaining(&limiter, "tokens-retries").await, 10);
}
