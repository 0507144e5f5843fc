//! `forgive_on_body`: a success that only the response's body shows.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Frame, SizeHint};
use http_body_util::{BodyExt, Full, StreamBody};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tollgate::policy::Strikes;
use tollgate::store::ManualClock;
use tollgate::{Limit, MemoryStore, Policy};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::*;

type Frames = mpsc::UnboundedSender<Result<Frame<Bytes>, &'static str>>;

fn logins() -> Policy {
    log("login", 5)
}

fn forgiving(limit: Limit) -> Limit {
    limit.forgive_on_body(
        |response| response.status == 200,
        |body| serde_json::from_slice(body).is_ok_and(|json: Value| json["ok"] == true),
    )
}

/// A response with this body.
fn response(body: impl Into<Bytes>) -> http::response::Builder {
    Response::builder().extension(body.into())
}

async fn after(response: http::response::Builder) -> u64 {
    let (_, store) = memory();
    let limits = [forgiving(Limit::global(logins()).cost(1))];
    let response = parking_lot::Mutex::new(Some(response.body(()).unwrap()));
    let service = layer(&store, limits).layer(service_fn(|_: Request<()>| {
        let response = response.lock().take().unwrap();
        let body = response.extensions().get::<Bytes>().unwrap().clone();
        std::future::ready(Ok::<_, Infallible>(response.map(|()| Full::new(body))))
    }));
    let answer = service.oneshot(get()).await.unwrap();
    answer.into_body().collect().await.unwrap();
    left(&store, &logins()).await
}

#[tokio::test]
async fn body_and_head_decide_together() {
    let padded = |length: usize| format!("{:length$}", r#"{"ok": true}"#);
    for (body, expected) in [
        (r#"{"ok": true}"#.to_owned(), 5),
        (padded(16 << 10), 5),
        (padded((16 << 10) + 1), 4),
        (r#"{"ok": false}"#.to_owned(), 4),
        (r#"{"ok": true"#.to_owned(), 4),
        (String::new(), 4),
    ] {
        assert_eq!(after(response(body.clone())).await, expected, "{body}");
    }
    let right = || response(r#"{"ok": true}"#);
    assert_eq!(after(right().status(202)).await, 4);
    assert_eq!(after(right().header("content-encoding", "gzip")).await, 4);
    assert_eq!(after(right().header("content-encoding", "identity")).await, 5);
    assert_eq!(after(right().header("content-length", "16385")).await, 4);
}

/// A service whose body has the frames that the test sends, behind a layer that returns any body.
async fn streaming(
    store: &MemoryStore<ManualClock>,
    limits: impl IntoIterator<Item = Limit>,
) -> (Frames, tollgate::body::Body<impl http_body::Body<Data = Bytes, Error = &'static str>>) {
    let (frames, received) = mpsc::unbounded_channel();
    let received = parking_lot::Mutex::new(Some(received));
    let service = layer(store, limits).any_body().layer(service_fn(|_: Request<()>| {
        let frames = UnboundedReceiverStream::new(received.lock().take().unwrap());
        std::future::ready(Ok::<_, Infallible>(Response::new(StreamBody::new(frames))))
    }));
    (frames, service.oneshot(get()).await.unwrap().into_body())
}

fn data(text: &'static str) -> Result<Frame<Bytes>, &'static str> {
    Ok(Frame::data(Bytes::from_static(text.as_bytes())))
}

#[tokio::test]
async fn parts_pass_without_delay() {
    let (_, store) = memory();
    let limits = [forgiving(Limit::global(logins()).cost(1))];
    let (frames, mut body) = streaming(&store, limits).await;
    for part in ["{\"ok\"", ": tr", "ue}"] {
        frames.send(data(part)).unwrap();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), part);
        assert_eq!(left(&store, &logins()).await, 4);
    }
    drop(frames);
    assert!(body.frame().await.is_none());
    assert_eq!(left(&store, &logins()).await, 5);
}

#[tokio::test]
async fn incomplete_bodies_do_not_forgive() {
    for fails in [true, false] {
        let (_, store) = memory();
        let limits = [forgiving(Limit::global(logins()).cost(1))];
        let (frames, mut body) = streaming(&store, limits).await;
        frames.send(data("{\"ok\": true}")).unwrap();
        body.frame().await.unwrap().unwrap();
        if fails {
            frames.send(Err("broken")).unwrap();
            assert_eq!(body.frame().await.unwrap().err(), Some("broken"));
        }
        drop(body);
        assert_eq!(left(&store, &logins()).await, 4, "fails: {fails}");
    }
}

/// The body's stream remains open after the last byte, because HTTP/2 may send the end in a separate
/// frame. Servers with HTTP/1 stop reading after the known length.
#[tokio::test]
async fn known_length_completes_body() {
    const TOLD: &[&str] = &["{\"ok\"", ": true}"];
    for (header, hint, expected) in [
        (Some("12"), SizeHint::new(), 5),
        (None, SizeHint::with_exact(12), 5),
        (Some("12"), SizeHint::with_exact(13), 5),
        (Some("13"), SizeHint::new(), 4),
        (None, SizeHint::new(), 4),
    ] {
        let (_, store) = memory();
        let limits = [forgiving(Limit::global(logins()).cost(1))];
        let service = layer(&store, limits).any_body().layer(service_fn(|_: Request<()>| {
            let mut response = Response::new(Endless { parts: TOLD.iter(), hint });
            if let Some(length) = header {
                response.headers_mut().insert("content-length", length.parse().unwrap());
            }
            std::future::ready(Ok::<_, Infallible>(response))
        }));
        let mut body = service.oneshot(get()).await.unwrap().into_body();
        for _ in TOLD {
            assert_eq!(left(&store, &logins()).await, 4);
            body.frame().await.unwrap().unwrap();
        }
        assert_eq!(left(&store, &logins()).await, expected, "{header:?} {hint:?}");
        drop(body);
        assert_eq!(left(&store, &logins()).await, expected, "{header:?} {hint:?}");
    }
}

/// Sends the parts, and then remains open.
struct Endless {
    parts: std::slice::Iter<'static, &'static str>,
    hint: SizeHint,
}

impl http_body::Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.parts.next() {
            Some(part) => Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(part.as_bytes()))))),
            None => Poll::Pending,
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.hint
    }
}

/// A body in memory is complete when the service returns it.
#[tokio::test]
async fn dropped_body_in_memory_forgives() {
    let (_, store) = memory();
    let limits = || [forgiving(Limit::global(logins()).cost(1))];
    const TOLD: Bytes = Bytes::from_static(b"{\"ok\": true}");
    let full = layer(&store, limits()).layer(service_fn(|_: Request<()>| {
        std::future::ready(Ok::<_, Infallible>(Response::new(Full::new(TOLD))))
    }));
    drop(full.oneshot(get()).await.unwrap());
    assert_eq!(left(&store, &logins()).await, 5);
    let bytes = layer(&store, limits()).layer(service_fn(|_: Request<()>| {
        std::future::ready(Ok::<_, Infallible>(Response::new(TOLD)))
    }));
    drop(bytes.oneshot(get()).await.unwrap());
    assert_eq!(left(&store, &logins()).await, 5);
}

/// Two limits with a permit and a shadow policy beside them. Only the limits that forgive do so, and
/// the permit is returned with the same frame.
#[tokio::test]
async fn other_charges_remain() {
    let (_, store) = memory();
    let client = Limit::global(logins()).cost(1);
    let locked = client.penalty("locked", Strikes::of_failures(3, Duration::from_secs(60)));
    let locked = locked.unwrap().count_only(|response| response.status == 401);
    let permits = Policy::concurrent_requests("permits", 2, Duration::from_secs(30)).unwrap();
    let limits = [
        forgiving(client),
        forgiving(locked),
        forgiving(Limit::global(log("shadow", 5)).cost(1)).shadow(),
        Limit::global(log("all", 9)).cost(1),
        Limit::global(permits),
    ];
    let policies = limits.each_ref().map(|limit| limit.policy().clone());
    let (frames, mut body) = streaming(&store, limits).await;
    let all = async || {
        let mut all = Vec::new();
        for policy in &policies {
            all.push(left(&store, policy).await);
        }
        all
    };
    frames.send(data("{\"ok\": true}")).unwrap();
    body.frame().await.unwrap().unwrap();
    assert_eq!(all().await, [4, 3, 4, 8, 1]);
    drop(frames);
    assert!(body.frame().await.is_none());
    assert_eq!(all().await, [5, 3, 5, 8, 2]);
}
