//! A permit returns when its request finishes in any way, and not earlier.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;

use axum::Router;
use axum::routing::get as on_get;
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tollgate::Limit;
use tower::{Layer, ServiceExt, service_fn};

use super::{Slow, at_once, limited};
use crate::stage::Staged;
use crate::support::*;

fn never() -> Result<Response<Full<Bytes>>, Infallible> {
    panic!("a response that panics")
}

/// A response body that streams the frames sent to the returned sender.
fn streamed()
-> (mpsc::Sender<Result<Frame<Bytes>, Infallible>>, impl http_body::Body<Data = Bytes> + Send) {
    let (sender, receiver) = mpsc::channel(1);
    (sender, StreamBody::new(ReceiverStream::new(receiver)))
}

#[tokio::test]
async fn body_end_or_drop_returns_permit() {
    let (_, store) = memory();
    for is_read in [true, false] {
        let (sender, body) = streamed();
        let body = parking_lot::Mutex::new(Some(body));
        let service =
            layer(&store, [Limit::global(at_once(2))]).any_body().layer(service_fn(|_| {
                let body = body.lock().take().unwrap();
                async { Ok::<_, Infallible>(Response::new(body)) }
            }));
        let mut response = service.oneshot(get()).await.unwrap();
        assert_eq!(left(&store, &at_once(2)).await, 1);
        sender.send(Ok(Frame::data(Bytes::from("a piece")))).await.unwrap();
        assert!(response.body_mut().frame().await.is_some());
        assert_eq!(left(&store, &at_once(2)).await, 1, "the body has not ended");
        if is_read {
            drop(sender);
            assert!(response.body_mut().frame().await.is_none());
            assert_eq!(left(&store, &at_once(2)).await, 2, "the body has ended");
        } else {
            drop(response);
            assert_eq!(left(&store, &at_once(2)).await, 2, "the client has left");
        }
    }
}

/// Over HTTP/2, the client can read the end of a response before the server drops its body.
#[tokio::test]
async fn permits_return_before_the_last_frame() {
    let (_, store) = memory();
    let trailers = Ok::<_, Infallible>(HeaderMap::new());
    let with_trailers = Full::from("data").with_trailers(ready(Some(trailers)));
    for (body, frames) in
        [(Full::default().boxed(), 0), (Full::from("data").boxed(), 1), (with_trailers.boxed(), 2)]
    {
        let body = parking_lot::Mutex::new(Some(body));
        let service = service_fn(|_: Request<()>| {
            ready(Ok::<_, Infallible>(Response::new(body.lock().take().unwrap())))
        });
        let limits = layer(&store, [Limit::global(at_once(1))]).any_body();
        let mut response = limits.layer(service).oneshot(get()).await.unwrap();
        for frame in 0..frames {
            assert_eq!(left(&store, &at_once(1)).await, 0, "{frame} of {frames} frames");
            assert!(response.body_mut().frame().await.is_some());
        }
        assert_eq!(left(&store, &at_once(1)).await, 1, "{frames} frames");
        drop(response);
    }
}

#[tokio::test]
async fn axum_body_holds_its_permit() {
    let (_, store) = memory();
    let (sender, receiver) = mpsc::channel::<Result<Bytes, Infallible>>(1);
    let receiver = Arc::new(parking_lot::Mutex::new(Some(receiver)));
    let stream = on_get(move || async move {
        axum::body::Body::from_stream(ReceiverStream::new(receiver.lock().take().unwrap()))
    });
    let limits = layer(&store, [Limit::global(at_once(2))]);
    let router = Router::new().route("/", stream).layer(limits);
    let response = ask_router(&router, get()).await;
    assert_eq!(left(&store, &at_once(2)).await, 1);
    sender.send(Ok(Bytes::from("a piece"))).await.unwrap();
    drop(sender);
    assert_eq!(text(response).await, "a piece");
    assert_eq!(left(&store, &at_once(2)).await, 2);
}

#[tokio::test]
async fn error_panic_and_cancellation_return_permit() {
    let (_, store) = memory();
    let limits = layer(&store, [Limit::global(at_once(1))]).any_body();
    let failing = service_fn(|_: Request<()>| async { Err::<Answer, _>("it fails") });
    let mut response = Box::pin(limits.layer(failing).oneshot(get()));
    assert!(response.as_mut().await.is_err());
    assert_eq!(left(&store, &at_once(1)).await, 1, "though the future is not dropped");
    for panics_at_once in [true, false] {
        let service = limits.layer(service_fn(move |_: Request<()>| {
            assert!(!panics_at_once, "a service that panics");
            async { never() }
        }));
        let request = tokio::spawn(async move { service.oneshot(get()).await.map(drop) });
        let _: Result<Result<(), Infallible>, _> = request.await;
        assert_eq!(left(&store, &at_once(1)).await, 1);
    }
    let slow = Slow::default();
    let request = tokio::spawn(limits.layer(slow.service()).oneshot(get()));
    settle_down().await;
    assert_eq!(left(&store, &at_once(1)).await, 0);
    request.abort();
    assert!(request.await.unwrap_err().is_cancelled());
    assert_eq!(left(&store, &at_once(1)).await, 1);
}

#[tokio::test]
async fn cancelled_decision_returns_permit() {
    let (_, memory) = memory();
    let store = Staged::new(memory.clone());
    let service = limited(&store, [Limit::global(at_once(1)), Limit::global(log("all", 9))]);
    store.hold();
    let request = tokio::spawn(service.clone().oneshot(get()));
    settle_down().await;
    assert_eq!(left(&memory, &at_once(1)).await, 0, "the store has decided already");
    request.abort();
    assert!(request.await.unwrap_err().is_cancelled());
    store.release();
    settle_down().await;
    assert_eq!(left(&memory, &at_once(1)).await, 1);
    assert_eq!(left(&memory, &log("all", 9)).await, 8, "a rate limit does not refund");
}
