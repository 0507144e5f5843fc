//! Values from request bodies.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use axum::Router;
use axum::routing::post;
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::mpsc::{Sender, channel};
use tokio_stream::wrappers::ReceiverStream;
use tollgate::body::{ExtractLayer, ReplayedBody};
use tollgate::key::{ApiKey, ApiKeys, ClientIp, FromExtension};
use tollgate::limit::OnMissingKey;
use tollgate::{Costs, Limit};
use tower::limit::ConcurrencyLimit;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::support::*;

/// A body's text.
#[derive(Clone)]
struct Text(String);

/// Reads up to 8 bytes.
fn reading() -> ExtractLayer {
    ExtractLayer::new(8, |head, body| {
        assert_eq!(head.uri.path(), "/");
        let text = std::str::from_utf8(body).ok()?;
        Some(Text(text.to_owned()))
    })
}

/// The extracted value, and the body that the service received.
type Received = (Option<String>, Result<Bytes, &'static str>, Option<HeaderMap>);

async fn receive<B>(request: Request<ReplayedBody<B>>) -> Result<Response<Received>, Infallible>
where
    B: Body<Data = Bytes, Error = &'static str> + Unpin,
{
    let (parts, body) = request.into_parts();
    let value = parts.extensions.get().map(|Text(text)| text.clone());
    let hint = body.size_hint();
    let (body, trailers) = match body.collect().await {
        Ok(body) => {
            let trailers = body.trailers().cloned();
            (Ok(body.to_bytes()), trailers)
        }
        Err(error) => (Err(error), None),
    };
    if let Ok(body) = &body {
        assert!(hint.lower() <= body.len() as u64);
        assert!(hint.upper().is_none_or(|upper| upper >= body.len() as u64));
    }
    Ok(Response::new((value, body, trailers)))
}

type Frames = Vec<Result<Frame<Bytes>, &'static str>>;

fn data(text: &'static str) -> Result<Frame<Bytes>, &'static str> {
    Ok(Frame::data(Bytes::from(text)))
}

async fn send(layer: &ExtractLayer, frames: Frames) -> Received {
    let body = StreamBody::new(tokio_stream::iter(frames));
    layer.layer(service_fn(receive)).oneshot(Request::new(body)).await.unwrap().into_body()
}

fn found(text: &str, body: &'static str) -> Received {
    (Some(text.to_owned()), Ok(Bytes::from(body)), None)
}

#[tokio::test]
async fn body_is_extracted_and_unchanged() {
    let layer = reading();
    assert_eq!(send(&layer, vec![data("12345678")]).await, found("12345678", "12345678"));
    let split = vec![data("123"), data(""), data("4567"), data("8")];
    assert_eq!(send(&layer, split).await, found("12345678", "12345678"));
    assert_eq!(send(&layer, vec![]).await, found("", ""));

    let trailers = HeaderMap::from_iter([(http::header::ETAG, "\"1\"".parse().unwrap())]);
    let frames = vec![data("12"), data("3"), Ok(Frame::trailers(trailers.clone()))];
    let (value, body, received) = send(&layer, frames).await;
    assert_eq!((value.as_deref(), body.as_deref()), (Some("123"), Ok(&b"123"[..])));
    assert_eq!(received, Some(trailers));
}

#[tokio::test]
async fn other_bodies_pass_without_value() {
    let layer = reading();
    let passes = |body| (None, Ok(Bytes::from(body)), None);
    assert_eq!(send(&layer, vec![data("123456789")]).await, passes("123456789"));
    let long = vec![data("1234"), data("5678"), data("9"), data("10")];
    assert_eq!(send(&layer, long).await, passes("12345678910"));
    let (value, body, _) = send(&layer, vec![data("12"), Err("reset"), data("3")]).await;
    assert_eq!((value, body), (None, Err("reset")));
    let none = ExtractLayer::new(8, |_, _| None::<Text>);
    assert_eq!(send(&none, vec![data("12")]).await, passes("12"));
}

/// A body that a test sends frame by frame, and whether the service has received the request.
fn open<B>(
    layer: &ExtractLayer,
    request: Request<B>,
) -> (Sender<Result<Frame<Bytes>, Infallible>>, impl Future<Output = bool> + use<B>) {
    let (sender, frames) = channel(4);
    let request = request.map(|_| StreamBody::new(ReceiverStream::new(frames)));
    let service = layer.layer(service_fn(|request: Request<ReplayedBody<_>>| async move {
        Ok::<_, Infallible>(Response::new(request.extensions().get::<Text>().is_some()))
    }));
    (sender, async { service.oneshot(request).await.unwrap().into_body() })
}

/// The output if the future is ready without waiting.
fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

#[tokio::test]
async fn long_body_streams_on() {
    let (sender, response) = open(&reading(), get());
    sender.send(Ok(Frame::data(Bytes::from("12345678")))).await.unwrap();
    let mut response = pin!(response);
    assert_eq!(now(response.as_mut()), None);
    sender.send(Ok(Frame::data(Bytes::from("9")))).await.unwrap();
    // The sender is still open.
    assert_eq!(now(response), Some(false));
}

#[tokio::test]
async fn bodies_without_a_key_are_not_read() {
    let keys = ApiKeys::from_keys(["k-7f3a"]);
    let layer = reading().only_with(ApiKey::in_x_api_key().one_of(keys));
    let with_key = |key: &str| Request::builder().header("x-api-key", key).body(()).unwrap();
    for request in [get(), with_key("k-guessed")] {
        let (_sender, response) = open(&layer, request);
        assert_eq!(now(response), Some(false));
    }
    let (sender, response) = open(&layer, with_key("k-7f3a"));
    let mut response = pin!(response);
    assert_eq!(now(response.as_mut()), None);
    drop(sender);
    assert!(response.await);

    // Without a peer address, the source fails.
    let layer = reading().only_with(ClientIp::peer());
    let (_sender, response) = open(&layer, Request::new(()));
    assert_eq!(now(response), Some(false));
}

/// A body that states its length and must not be polled.
struct Stated(u64);

impl Body for Stated {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        panic!("polled")
    }

    fn is_end_stream(&self) -> bool {
        self.0 == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0)
    }
}

#[tokio::test]
async fn stated_length_decides_before_reading() {
    for length in [0, 9] {
        let service = reading().layer(service_fn(|request: Request<ReplayedBody<Stated>>| async {
            Ok::<_, Infallible>(Response::new(request.into_body().size_hint().exact()))
        }));
        let response = service.oneshot(Request::new(Stated(length))).await.unwrap();
        assert_eq!(response.into_body(), Some(length));
    }
}

/// `ConcurrencyLimit` panics if it is called before it is ready.
#[tokio::test]
async fn ready_service_is_called() {
    let inner = service_fn(receive::<StreamBody<tokio_stream::Iter<std::vec::IntoIter<_>>>>);
    let mut service = reading().layer(ConcurrencyLimit::new(inner, 1));
    for _ in 0..3 {
        let body = StreamBody::new(tokio_stream::iter(vec![data("12")]));
        let response = service.ready().await.unwrap().call(Request::new(body)).await.unwrap();
        assert_eq!(response.into_body(), found("12", "12"));
    }
}

#[tokio::test]
async fn costs_and_keys_from_the_body() {
    let (_, store) = memory();
    let cost = Costs::flat(6).with_fn(|head| {
        let Text(text) = head.extensions.get()?;
        Some(text.len() as u64)
    });
    let tenant = FromExtension::borrowed(|Text(text): &Text| text.get(..1));
    let limit = Limit::new(log("tenant", 10), tenant).costs(cost);
    let limit = limit.on_missing_key(OnMissingKey::Share);
    let app = Router::new().route("/", post(|body: String| async { body }));
    let app = app.layer(layer(&store, [limit])).layer(reading());
    for (body, status, remaining) in [
        ("a23", 200, "7"),
        ("b2", 200, "8"),
        ("a2345678", 429, "7"),
        ("a234567", 200, "0"),
        // Too long, so all of these share a key and pay the flat cost.
        ("a23456789", 200, "4"),
        ("b23456789", 429, "4"),
    ] {
        let request = Request::post("/").body(axum::body::Body::from(body)).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        let left = field(response.headers(), "x-ratelimit-remaining");
        assert_eq!(
            (response.status().as_u16(), left.as_deref()),
            (status, Some(remaining)),
            "{body}"
        );
        if status == 200 {
            assert_eq!(text(response).await, body);
        }
    }
}
