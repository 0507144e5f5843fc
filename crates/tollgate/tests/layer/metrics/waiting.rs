//! Metrics of waiters in the wait queue.

use std::time::Duration;

use tollgate::key::Key;
use tollgate::{Limit, Limiter, Policy, Quota};

use super::{Meter, counted};
use crate::support::*;

#[tokio::test(start_paused = true)]
async fn waiting_gauge_follows_the_queue() {
    let meter = Meter::start();
    let store = on_tokio_time();
    let queue = Policy::leaky_bucket("queue", Quota::per_second(1).burst(3)).unwrap();
    let service = limited(&store, [Limit::global(queue)]);
    assert_eq!(status(&service).await, 200);
    let waiting = tokio::spawn({
        let service = service.clone();
        async move { status(&service).await }
    });
    let leaving = tokio::spawn({
        let service = service.clone();
        async move { status(&service).await }
    });
    tokio::task::yield_now().await;
    assert_eq!(meter.sum("tollgate_waiting_requests", &["policy=\"queue\""]), 2.0);
    leaving.abort();
    assert!(leaving.await.is_err());
    assert_eq!(meter.sum("tollgate_waiting_requests", &[]), 1.0);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(waiting.await.unwrap(), 200);
    assert_eq!(meter.sum("tollgate_waiting_requests", &[]), 0.0);
    assert_eq!(meter.sum("tollgate_wait_seconds_count", &[]), 2.0);
}

#[tokio::test(start_paused = true)]
async fn waiting_excess_is_counted_once() {
    let meter = Meter::start();
    let quota = Quota::every(Duration::from_secs(10));
    let policy = Policy::sliding_window_log("patient", quota).unwrap();
    let excess = tollgate::limit::Mode::Wait(Duration::from_secs(60));
    let service = limited(&on_tokio_time(), [Limit::global(policy).mode(excess)]);
    let tasks: Vec<_> = (0..3)
        .map(|_| {
            let service = service.clone();
            tokio::spawn(async move { status(&service).await })
        })
        .collect();
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert_eq!(meter.sum("tollgate_waiting_requests", &["policy=\"patient\""]), 2.0);
    for task in tasks {
        assert_eq!(task.await.unwrap(), 200);
    }
    assert_eq!(meter.sum("tollgate_waiting_requests", &[]), 0.0);
    assert_eq!(meter.sum("tollgate_wait_seconds_count", &[]), 2.0);
    // The store's denials before the wait do not count as decisions, and the wait does not count as
    // store latency.
    assert_eq!(meter.outcomes("patient"), counted(&[("allow", 3.0)]));
    assert_eq!(meter.sum("tollgate_decision_duration_seconds_count", &[]), 1.0);
}

#[tokio::test(start_paused = true)]
async fn calls_without_patience_are_counted_as_denied() {
    let meter = Meter::start();
    let queue = Policy::leaky_bucket("queue", Quota::per_second(1).burst(3)).unwrap();
    let limiter = Limiter::builder(on_tokio_time()).policy(queue).build().unwrap();
    let key = Key::from("ann");
    drop(limiter.acquire(&key, 1).await.unwrap());
    assert!(limiter.try_acquire(&key, 1).await.unwrap().is_none());
    assert_eq!(meter.outcomes("queue"), counted(&[("allow", 1.0), ("deny", 1.0)]));
    assert_eq!(meter.sum("tollgate_units_charged_total", &[]), 1.0);
}
