//! Permits are renewed while a request runs, and returned when it finishes.

use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::StatusCode;
use tokio::time::{advance, sleep};
use tollgate::{Limit, Policy};
use tower::{Layer, Service, ServiceExt};

use super::{LEASE, Slow, at_once, limited};
use crate::stage::{Fault, Staged};
use crate::support::*;

#[tokio::test(start_paused = true)]
async fn long_requests_renew_their_permits() {
    let store = on_tokio_time();
    let slow = Slow::default();
    let service = layer(&store, [Limit::global(at_once(2))]).any_body().layer(slow.service());
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

/// The limits are renewed together, so the shorter time to live sets the pace.
#[tokio::test(start_paused = true)]
async fn shortest_life_paces_renewals() {
    let brief = Policy::concurrent_requests("brief", 2, LEASE / 10).unwrap();
    for policies in [[at_once(2), brief.clone()], [brief.clone(), at_once(2)]] {
        let (store, slow) = (on_tokio_time(), Slow::default());
        let service = layer(&store, policies.clone().map(Limit::global)).any_body();
        let request = tokio::spawn(service.layer(slow.service()).oneshot(get()));
        settle_down().await;
        for _ in 0..40 {
            advance(LEASE / 30).await;
            settle_down().await;
            for policy in &policies {
                assert_eq!(left(&store, policy).await, 1, "{policy}");
            }
        }
        slow.go.notify_waiters();
        assert_eq!(request.await.unwrap().unwrap().status(), 200);
        for policy in &policies {
            assert_eq!(left(&store, policy).await, 2, "{policy}");
        }
    }
}

#[test]
fn ended_runtime_takes_no_renewal_task() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let handle = runtime.handle().clone();
    runtime.shutdown_background();
    let (sender, receiver) = std::sync::mpsc::channel();
    // A separate thread, because a deadlock would block the test forever.
    std::thread::spawn(move || {
        let _entered = handle.enter();
        let (_, store) = memory();
        let mut service = limited(&store, [Limit::global(at_once(1))]);
        let response = std::pin::pin!(service.call(get()));
        let response = response.poll(&mut Context::from_waker(Waker::noop()));
        sender.send(response.map(|response| response.unwrap().status())).unwrap();
    });
    let status = receiver.recv_timeout(Duration::from_secs(30)).unwrap();
    assert_eq!(status, Poll::Ready(StatusCode::OK));
}

#[tokio::test(start_paused = true)]
async fn permit_survives_short_outage() {
    let memory = on_tokio_time();
    let store = Staged::new(memory.clone());
    let slow = Slow::default();
    let service = layer(&store, [Limit::global(at_once(1))]).any_body().layer(slow.service());
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

/// A server that is frozen for longer than a permit's time to live receives no renewals. The request
/// continues, and when the server continues, its permit has expired.
#[tokio::test(start_paused = true)]
async fn long_freeze_admits_requests_beside_running_ones() {
    let memory = on_tokio_time();
    let store = Staged::new(memory.clone());
    let slow = Slow::default();
    let service = layer(&store, [Limit::global(at_once(1))]).any_body().layer(slow.service());
    let running = tokio::spawn(service.clone().oneshot(get()));
    settle_down().await;
    store.fail(Fault::NotCharged);
    advance(LEASE - Duration::from_millis(1)).await;
    settle_down().await;
    assert_eq!(left(&memory, &at_once(1)).await, 0);
    advance(Duration::from_millis(1)).await;
    store.recover();
    let beside = tokio::spawn(service.clone().oneshot(get()));
    settle_down().await;
    assert_eq!(slow.most.load(Ordering::SeqCst), 2, "both run");
    slow.go.notify_waiters();
    for request in [running, beside] {
        assert_eq!(request.await.unwrap().unwrap().status(), 200);
    }
}

#[tokio::test(start_paused = true)]
async fn failed_permit_return_is_retried() {
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
    // The permit was returned twice, which must not return another request's permit.
    let held = ask(&service, get()).await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(left(&memory, &at_once(1)).await, 0);
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn finished_request_cancels_pending_renewal() {
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
    assert_eq!(left(&memory, &at_once(1)).await, 0, "the renewal is still waiting");
    store.release();
    settle_down().await;
    assert_eq!(left(&memory, &at_once(1)).await, 1);
}
