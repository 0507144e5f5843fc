//! `Limiter`: limits for calls that are not HTTP requests.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, advance, sleep, timeout};
use tollgate::key::Key;
use tollgate::layer::{LayerError, WaitQueue};
use tollgate::limiter::{AcquireError, LimiterBuilder, Permit, SettleError};
use tollgate::policy::OnStoreError;
use tollgate::{Limiter, MemoryStore, Policy, Quota, Store, StoreExt};

use crate::stage::{Fault, Staged};
use crate::support::*;

const MINUTE: Duration = Duration::from_secs(60);

/// A unit each second, without a burst.
fn each_second(name: &str) -> Policy {
    Policy::token_bucket(name, Quota::per_second(1).burst(1)).unwrap()
}

fn patient<St: Store>(store: St, policy: Policy) -> LimiterBuilder<St> {
    Limiter::builder(store).policy(policy).wait(MINUTE)
}

fn key() -> Key {
    Key::from("ann")
}

fn spawn<St: Store>(
    limiter: &Limiter<St>,
    cost: u64,
) -> JoinHandle<(Result<Permit<St>, AcquireError>, Instant)> {
    let limiter = limiter.clone();
    tokio::spawn(async move { (limiter.acquire(&key(), cost).await, Instant::now()) })
}

async fn remaining<St: Store>(limiter: &Limiter<St>) -> u64 {
    limiter.peek(&key()).await.unwrap().iter().next().unwrap().decision().remaining
}

#[tokio::test(start_paused = true)]
async fn errors_say_why_and_when() {
    let limiter = patient(on_tokio_time(), each_second("p")).build().unwrap();
    let call = |wait| limiter.request().all(&key(), 1).within(wait).acquire();
    let second = Duration::from_secs(1);
    let denied = limiter.acquire(&key(), 2).await.unwrap_err();
    assert!(matches!(denied, AcquireError::Denied(_)) && denied.retry_after().is_none());
    assert_eq!(denied.to_string(), "denied by `p`, which no wait changes");
    let unfit = limiter.try_acquire(&key(), 2).await.unwrap_err();
    assert!(matches!(unfit, AcquireError::Denied(_)));
    drop(limiter.acquire(&key(), 1).await.unwrap());
    let late = call(second / 2).await.unwrap_err();
    assert!(matches!(late, AcquireError::TooLate(_)));
    assert_eq!(late.retry_after(), Some(second));
    assert_eq!(late.to_string(), "the wait would be too long: denied by `p`, retry after 1 second",);
    let waiting = spawn(&limiter, 1);
    settle_down().await;
    // It also waits for the call ahead.
    assert_eq!(call(second).await.unwrap_err().retry_after(), Some(2 * second));
    assert!(call(2 * second).await.is_ok());
    assert!(waiting.await.unwrap().0.is_ok());
    let unknown = limiter.request().policy("q", &key(), 1).acquire().await.unwrap_err();
    assert!(matches!(unknown, AcquireError::UnknownPolicy(_)));
}

#[tokio::test(start_paused = true)]
async fn limiters_without_a_wait_deny() {
    let limiter = Limiter::builder(on_tokio_time()).policy(each_second("p")).build().unwrap();
    drop(limiter.acquire(&key(), 1).await.unwrap());
    let denied = limiter.acquire(&key(), 1).await.unwrap_err();
    assert!(matches!(denied, AcquireError::Denied(_)));
    assert_eq!(denied.retry_after(), Some(Duration::from_secs(1)));
    assert!(limiter.try_acquire(&key(), 1).await.unwrap().is_none());
    assert!(limiter.acquire(&key(), 0).await.is_ok(), "a call without a cost needs no unit");
}

#[tokio::test(start_paused = true)]
async fn several_keys_are_charged_together_or_not_at_all() {
    let limiter = Limiter::builder(on_tokio_time())
        .policy(log("user", 2))
        .policy(log("connection", 1))
        .global(log("all", 10))
        .build()
        .unwrap();
    let (user, connections) = (Key::from("ann"), ["c1", "c2", "c3"].map(Key::from));
    let call = |connection: &Key| {
        let call = limiter.request().policy("user", &user, 1);
        call.policy("connection", connection, 1).policy("all", &user, 1).try_acquire()
    };
    assert!(call(&connections[0]).await.unwrap().is_some());
    assert!(call(&connections[0]).await.unwrap().is_none());
    assert!(call(&connections[1]).await.unwrap().is_some());
    assert!(call(&connections[2]).await.unwrap().is_none(), "the user has no units");
    let left = limiter.peek(&connections[2]).await.unwrap();
    let left = |name| left.get(name).unwrap().decision().remaining;
    // The denied calls charged neither the third connection nor the shared quota.
    assert_eq!([left("user"), left("connection"), left("all")], [2, 1, 8]);
}

#[tokio::test(start_paused = true)]
async fn permits_settle_cancel_or_stand() {
    let limiter = Limiter::builder(on_tokio_time()).policy(log("p", 10)).build().unwrap();
    limiter.acquire(&key(), 4).await.unwrap().settle(1).await.unwrap();
    assert_eq!(remaining(&limiter).await, 9);
    limiter.acquire(&key(), 4).await.unwrap().cancel().await.unwrap();
    assert_eq!(remaining(&limiter).await, 9);
    drop(limiter.acquire(&key(), 4).await.unwrap());
    assert_eq!(remaining(&limiter).await, 5);
    limiter.acquire(&key(), 1).await.unwrap().settle(3).await.unwrap();
    assert_eq!(remaining(&limiter).await, 2);
    let permit = limiter.acquire(&key(), 2).await.unwrap();
    assert_eq!(permit.receipts().len(), 1);
    permit.settle_policy("q", 0).await.unwrap();
    assert_eq!(remaining(&limiter).await, 0);
    permit.settle_policy("p", 0).await.unwrap();
    assert!(permit.receipts().is_empty());
    // The first settlement counts.
    permit.settle(2).await.unwrap();
    assert_eq!(remaining(&limiter).await, 2);
}

#[tokio::test(start_paused = true)]
async fn late_corrections_are_errors() {
    let limiter = Limiter::builder(on_tokio_time()).policy(log("p", 10)).build().unwrap();
    let permit = limiter.acquire(&key(), 4).await.unwrap();
    advance(5 * MINUTE).await;
    assert!(permit.settle_policy("q", 1).await.is_ok());
    assert!(matches!(permit.settle_policy("p", 1).await, Err(SettleError::Lapsed)));
    let permit = limiter.acquire(&key(), 4).await.unwrap();
    advance(5 * MINUTE).await;
    assert!(matches!(permit.cancel().await, Err(SettleError::Lapsed)));
    // A charge that was settled in time is settled only once, also later.
    let permit = limiter.acquire(&key(), 4).await.unwrap();
    permit.settle_policy("p", 1).await.unwrap();
    advance(5 * MINUTE).await;
    assert!(permit.settle(2).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn dropped_corrections_are_sent() {
    let store = Staged::new(on_tokio_time());
    let limiter = Limiter::builder(store.clone()).policy(log("p", 10)).policy(log("q", 10));
    let limiter = limiter.build().unwrap();
    let permit = limiter.acquire(&key(), 4).await.unwrap();
    store.hold();
    let settled = timeout(Duration::from_millis(500), permit.settle(1)).await;
    assert!(settled.is_err(), "the store has not replied");
    store.release();
    settle_down().await;
    for verdict in limiter.peek(&key()).await.unwrap().iter() {
        assert_eq!(verdict.decision().remaining, 9, "{}", verdict.policy().name());
    }
}

#[tokio::test(start_paused = true)]
async fn calls_have_at_most_64_charges() {
    let limiter = patient(on_tokio_time(), log("p", 1)).build().unwrap();
    let charges = |count: u8| {
        let keys = (0..count).map(|number| Key::new([number]));
        keys.fold(limiter.request(), |call, key| call.policy("p", &key, 1))
    };
    assert!(charges(64).acquire().await.is_ok());
    let error = charges(65).acquire().await.unwrap_err();
    assert!(matches!(error, AcquireError::TooManyCharges) && error.retry_after().is_none());
}

#[tokio::test(start_paused = true)]
async fn concurrent_calls_end_with_their_permits() {
    let policy = Policy::concurrent_requests("p", 2, Duration::from_secs(30)).unwrap();
    let limiter = patient(on_tokio_time(), policy).build().unwrap();
    // Each call is a single one, whatever it costs.
    let first = limiter.acquire(&key(), 5).await.unwrap();
    let second = limiter.acquire(&key(), 1).await.unwrap();
    let third = spawn(&limiter, 1);
    // A task renews the permits.
    sleep(MINUTE / 2).await;
    assert!(!third.is_finished());
    drop(first);
    let (third, _) = third.await.unwrap();
    assert_eq!(remaining(&limiter).await, 0);
    third.unwrap().cancel().await.unwrap();
    second.settle(7).await.unwrap();
    settle_down().await;
    assert_eq!(remaining(&limiter).await, 2);
}

#[tokio::test(start_paused = true)]
async fn calls_dropped_before_the_reply_are_refunded() {
    let store = Staged::new(on_tokio_time());
    let limiter = patient(store.clone(), log("p", 3)).build().unwrap();
    store.hold();
    let call = spawn(&limiter, 2);
    settle_down().await;
    call.abort();
    settle_down().await;
    store.release();
    settle_down().await;
    assert_eq!(remaining(&limiter).await, 3);
    assert_eq!(store.settled(), 1);
}

#[tokio::test(start_paused = true)]
async fn leaky_buckets_delay_calls() {
    let policy = Policy::leaky_bucket("p", Quota::per_second(1).burst(3)).unwrap();
    let limiter = Limiter::builder(on_tokio_time()).policy(policy).build().unwrap();
    let start = Instant::now();
    drop(limiter.acquire(&key(), 1).await.unwrap());
    // A call that does not wait must not take a turn.
    assert!(limiter.try_acquire(&key(), 1).await.unwrap().is_none());
    let late = limiter.request().all(&key(), 1).within(Duration::from_millis(500));
    let late = late.acquire().await.unwrap_err();
    assert!(matches!(late, AcquireError::TooLate(_)));
    // A call that waits this long has a turn within its deadline.
    assert_eq!(late.retry_after(), Some(Duration::from_millis(500)));
    let [second, third] = [spawn(&limiter, 1), spawn(&limiter, 1)];
    settle_down().await;
    // The last call gives up, so its turn is free again.
    third.abort();
    settle_down().await;
    assert!(second.await.unwrap().0.is_ok());
    assert_eq!(start.elapsed().as_secs(), 1);
    drop(limiter.acquire(&key(), 1).await.unwrap());
    assert_eq!(start.elapsed().as_secs(), 2);
}

#[tokio::test(start_paused = true)]
async fn calls_that_give_up_return_permits_and_units() {
    let queue = Policy::leaky_bucket("queue", Quota::per_second(1).burst(3)).unwrap();
    let permits = Policy::concurrent_requests("permits", 2, MINUTE).unwrap();
    let limiter = Limiter::builder(on_tokio_time()).policy(queue).policy(permits);
    let limiter = limiter.policy(log("p", 9)).build().unwrap();
    drop(limiter.acquire(&key(), 1).await.unwrap());
    for _ in 0..3 {
        assert!(limiter.try_acquire(&key(), 1).await.unwrap().is_none());
    }
    let verdicts = limiter.peek(&key()).await.unwrap();
    let remaining: Vec<_> = verdicts.iter().map(|it| it.decision().remaining).collect();
    assert_eq!(remaining, [2, 2, 8]);
}

#[tokio::test(start_paused = true)]
async fn closed_limiters_reject_waiting_calls() {
    let limiter = patient(on_tokio_time(), each_second("p")).build().unwrap();
    let permit = limiter.acquire(&key(), 1).await.unwrap();
    let waiting = spawn(&limiter, 1);
    settle_down().await;
    limiter.close();
    let (waiting, at) = waiting.await.unwrap();
    assert!(matches!(waiting, Err(AcquireError::Closed)) && limiter.is_closed());
    assert!(matches!(limiter.try_acquire(&key(), 1).await, Err(AcquireError::Closed)));
    permit.cancel().await.unwrap();
    assert_eq!((remaining(&limiter).await, at), (1, Instant::now()));
}

#[tokio::test(start_paused = true)]
async fn full_queues_reject_calls() {
    let queue = WaitQueue::new().max_requests(2);
    let limiter = patient(on_tokio_time(), each_second("p")).wait_queue(&queue).build().unwrap();
    drop(limiter.acquire(&key(), 1).await.unwrap());
    let waiting = spawn(&limiter, 1);
    settle_down().await;
    let full = limiter.acquire(&key(), 1).await.unwrap_err();
    assert!(matches!(full, AcquireError::QueueFull(_)), "half of the queue per key");
    assert!(limiter.try_acquire(&key(), 1).await.unwrap().is_none());
    assert!(waiting.await.unwrap().0.is_ok());
}

#[tokio::test(start_paused = true)]
async fn failing_stores_follow_the_failure_policy() {
    let store = Staged::new(on_tokio_time());
    store.fail(Fault::NotCharged);
    let open = patient(store.clone(), log("open", 1)).build().unwrap();
    let permit = open.acquire(&key(), 1).await.unwrap();
    assert!(permit.verdicts().iter().next().is_none());
    permit.settle(3).await.unwrap();
    let policy = log("closed", 1).with_on_store_error(OnStoreError::Closed);
    let closed = patient(store.clone(), policy).build().unwrap();
    assert!(matches!(closed.acquire(&key(), 1).await, Err(AcquireError::Store(_))));
    store.recover();
    assert!(closed.try_acquire(&key(), 1).await.unwrap().is_some());
    let permit = open.acquire(&key(), 1).await.unwrap();
    store.fail(Fault::MaybeCharged);
    assert!(permit.settle(0).await.is_err());
}

#[test]
fn invalid_limiters_are_not_built() {
    let builder = || Limiter::builder(MemoryStore::new());
    assert!(matches!(builder().build(), Err(LayerError::NoLimit)));
    let twice = builder().policy(log("p", 1)).global(log("p", 2)).build();
    assert!(matches!(twice, Err(LayerError::SameName(_))));
    let local = log("p", 1).with_on_store_error(OnStoreError::Local);
    assert!(matches!(builder().policy(local).build(), Err(LayerError::NoLocalStore(_))));
}

#[tokio::test(start_paused = true)]
async fn layers_and_limiters_share_quotas_of_a_store() {
    let store = on_tokio_time();
    let limiter = Limiter::builder(store.clone()).global(log("p", 5)).build().unwrap();
    drop(limiter.acquire(&key(), 2).await.unwrap());
    assert_eq!(store.peek(&log("p", 5), &Key::GLOBAL).await.unwrap().decisions()[0].remaining, 3);
}
