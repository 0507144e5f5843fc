//! The tower service contract: readiness, errors and cancellation.

use std::task::Poll;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tollgate::Limit;
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, Service, ServiceExt};
use tower_test::mock;

use crate::stage::{Fault, Staged};
use crate::support::*;

type Mock = mock::Mock<Request<()>, Response<Full<Bytes>>>;
type Handle = mock::Handle<Request<()>, Response<Full<Bytes>>>;

fn mocked() -> (Mock, Handle) {
    mock::pair()
}

fn ok() -> Response<Full<Bytes>> {
    Response::new(Full::from("from the mock"))
}

#[tokio::test]
async fn readiness_follows_the_inner_service() {
    let (_, store) = memory();
    let (inner, mut handle) = mocked();
    handle.allow(0);
    let layer = layer(&store, [Limit::global(log("global", 1))]);
    let mut service = mock::Spawn::new(layer.layer(inner));
    assert!(service.poll_ready().is_pending());
    handle.allow(1);
    assert!(service.is_woken());
    assert!(matches!(service.poll_ready(), Poll::Ready(Ok(()))));
}

#[tokio::test]
async fn readiness_error_propagates() {
    let (_, store) = memory();
    let (inner, mut handle) = mocked();
    handle.send_error("worn out");
    let mut service = layer(&store, [Limit::global(log("global", 1))]).layer(inner);
    let error = service.ready().await.err().unwrap();
    assert_eq!(error.to_string(), "worn out");
}

#[tokio::test]
async fn service_error_propagates_without_refund() {
    let (_, store) = memory();
    let (inner, mut handle) = mocked();
    let service = layer(&store, [Limit::global(log("global", 1))]).layer(inner);
    let response = tokio::spawn(service.clone().oneshot(get()));
    let (_, respond) = handle.next_request().await.unwrap();
    respond.send_error("broken inside");
    let error = response.await.unwrap().err().unwrap();
    assert_eq!(error.to_string(), "broken inside");
    assert_eq!(service.oneshot(get()).await.unwrap().status(), 429);
}

#[tokio::test]
async fn denied_request_skips_the_service() {
    let (_, store) = memory();
    let (inner, mut handle) = mocked();
    let service = layer(&store, [Limit::global(log("global", 1))]).layer(inner);
    let first = tokio::spawn(service.clone().oneshot(get()));
    handle.next_request().await.unwrap().1.send_response(ok());
    assert_eq!(first.await.unwrap().unwrap().status(), 200);
    assert_eq!(service.oneshot(get()).await.unwrap().status(), 429);
    assert!(handle.next_request().await.is_none(), "all services were dropped without a call");
}

/// A service that panics unless the instance that is called was polled ready: a
/// `ConcurrencyLimit` stores its permit in the instance.
fn one_at_a_time() -> tower::limit::ConcurrencyLimit<Hello> {
    ConcurrencyLimitLayer::new(1).layer(hello())
}

#[tokio::test]
async fn ready_instance_is_called() {
    let (_, memory) = memory();
    let store = Staged::new(memory);
    let mut service = layer(&store, [Limit::global(log("global", 9))]).layer(one_at_a_time());
    // The store answers immediately, twice on the same instance.
    for _ in 0..2 {
        let response = service.ready().await.unwrap().call(get()).await.unwrap();
        assert_eq!(response.status(), 200);
    }
    // The store answers later.
    store.hold();
    let response = tokio::spawn(service.ready().await.unwrap().call(get()));
    tokio::task::yield_now().await;
    assert!(!response.is_finished());
    store.release();
    assert_eq!(response.await.unwrap().unwrap().status(), 200);
    assert_eq!(service.ready().await.unwrap().call(get()).await.unwrap().status(), 200);
}

#[tokio::test]
async fn pending_store_decides_the_same() {
    let (_, memory) = memory();
    let store = Staged::new(memory);
    let service = layer(&store, [Limit::global(log("global", 2))]).layer(hello());
    store.hold();
    let tasks: Vec<_> = (0..3).map(|_| tokio::spawn(service.clone().oneshot(get()))).collect();
    tokio::task::yield_now().await;
    assert_eq!(store.calls(), 3);
    assert!(tasks.iter().all(|task| !task.is_finished()));
    store.release();
    let mut answers = Vec::new();
    for task in tasks {
        answers.push(task.await.unwrap().unwrap());
    }
    let statuses: Vec<_> = answers.iter().map(|answer| answer.status().as_u16()).collect();
    assert_eq!(statuses, [200, 200, 429]);
    assert_eq!(field(answers[0].headers(), "x-ratelimit-remaining").as_deref(), Some("1"));
    assert_eq!(field(answers[2].headers(), "retry-after").as_deref(), Some("60"));
}

#[tokio::test]
async fn pending_store_fails_the_same() {
    let (_, memory) = memory();
    let store = Staged::new(memory);
    store.fail(Fault::NotCharged);
    store.hold();
    let open = Limit::global(log("open", 1));
    let closed = log("closed", 1).with_on_store_error(tollgate::policy::OnStoreError::Closed);
    for (limit, expected) in [(open, 200), (Limit::global(closed), 503)] {
        let service = limited(&store, [limit]);
        let answer = tokio::spawn(service.oneshot(get()));
        tokio::task::yield_now().await;
        store.release();
        assert_eq!(answer.await.unwrap().unwrap().status(), expected);
        store.hold();
    }
}

#[tokio::test]
async fn cancelled_decision_frees_the_permit() {
    let (_, memory) = memory();
    let store = Staged::new(memory.clone());
    let policy = log("global", 2);
    let service = layer(&store, [Limit::global(policy.clone())]).layer(one_at_a_time());
    store.hold();
    let mut leaving = Box::pin(service.clone().oneshot(get()));
    assert!(poll_once(leaving.as_mut()).is_pending());
    drop(leaving);
    store.release();
    // The permit is free again, but the charge remains because its answer was dropped.
    assert_eq!(service.clone().oneshot(get()).await.unwrap().status(), 200);
    assert_eq!(service.oneshot(get()).await.unwrap().status(), 429);
}

fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
}

#[tokio::test]
async fn cancellation_reaches_the_inner_service() {
    let (_, store) = memory();
    let (inner, mut handle) = mocked();
    let policy = log("global", 5);
    let service = layer(&store, [Limit::global(policy.clone())]).layer(inner);
    let task = tokio::spawn(service.oneshot(get()));
    let (_, respond) = handle.next_request().await.unwrap();
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    respond.send_response(ok());
    assert_eq!(left(&store, &policy).await, 4);
}
