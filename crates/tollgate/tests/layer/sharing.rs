//! Clones, connections and routers share one limit.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::get as on_get;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{Empty, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tollgate::body::Body;
use tollgate::key::ClientIp;
use tollgate::{Limit, MemoryStore, Policy, Quota};
use tower::{Layer, ServiceExt};

use crate::stage::Staged;
use crate::support::*;

/// Opens a new connection to the server.
pub(crate) async fn connect(address: SocketAddr) -> SendRequest<Empty<Bytes>> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// Sends a GET over this connection.
pub(crate) async fn fetch(sender: &mut SendRequest<Empty<Bytes>>) -> Response<Incoming> {
    sender.ready().await.unwrap();
    let request = Request::builder().uri("/").header("host", "localhost");
    sender.send_request(request.body(Empty::new()).unwrap()).await.unwrap()
}

/// Serves an axum router on a free port.
async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

#[tokio::test]
async fn clones_share_one_limit() {
    let (_, store) = memory();
    let layer = layer(&store, [Limit::global(log("global", 4))]);
    let one = layer.layer(hello());
    let other = layer.clone().layer(hello());
    let third = other.clone();
    for service in [&one, &other, &third, &one] {
        assert_eq!(status(service).await, 200);
    }
    for service in [&one, &other, &third] {
        assert_eq!(status(service).await, 429);
    }
}

#[tokio::test]
async fn axum_connections_share_the_limit() {
    let (_, store) = memory();
    let limit = layer(&store, [Limit::new(log("ip", 3), ClientIp::peer())]);
    let address = serve(Router::new().route("/", on_get(|| async { "hello" })).layer(limit)).await;
    let (mut one, mut other) = (connect(address).await, connect(address).await);
    assert_eq!(fetch(&mut one).await.status(), 200);
    assert_eq!(fetch(&mut other).await.status(), 200);
    assert_eq!(fetch(&mut one).await.status(), 200);
    let denied = fetch(&mut other).await;
    assert_eq!(denied.status(), 429);
    assert_eq!(denied.headers()["retry-after"], "60");
    assert!(text(denied).await.contains("quota-exceeded"));
    assert_eq!(fetch(&mut one).await.status(), 429);
}

#[tokio::test]
async fn hyper_connections_share_the_limit() {
    let (_, store) = memory();
    let limit = layer(&store, [Limit::new(log("ip", 3), ClientIp::peer())]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, peer) = listener.accept().await.unwrap();
            // The limiter only needs a `SocketAddr` extension from the server.
            let hello = limit.layer(tower::service_fn(|_: Request<Incoming>| async {
                Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::from("hello")))
            }));
            let with_peer = hello.map_request(move |mut request: Request<Incoming>| {
                request.extensions_mut().insert(peer);
                request
            });
            let service = TowerToHyperService::new(with_peer);
            let server = hyper::server::conn::http1::Builder::new();
            tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
        }
    });
    let (mut one, mut other) = (connect(address).await, connect(address).await);
    let mut statuses = Vec::new();
    for _ in 0..2 {
        statuses.push(fetch(&mut one).await.status().as_u16());
        statuses.push(fetch(&mut other).await.status().as_u16());
    }
    assert_eq!(statuses, [200, 200, 200, 429]);
}

#[tokio::test]
async fn closed_connection_refunds_queued_request() {
    let store = Staged::new(MemoryStore::new());
    let queue = Policy::leaky_bucket("queue", Quota::every(Duration::from_secs(600)).burst(2));
    let queue = queue.unwrap();
    let limit = layer(&store, [Limit::global(queue.clone())]);
    let address = serve(Router::new().route("/", on_get(|| async { "hello" })).layer(limit)).await;
    let (mut one, mut other) = (connect(address).await, connect(address).await);
    assert_eq!(fetch(&mut one).await.status(), 200);
    let until = async |what: &dyn Fn() -> bool| {
        let waiting = async {
            while !what() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap();
    };
    let waiting = tokio::spawn(async move { fetch(&mut other).await.status() });
    until(&|| store.calls() == 2).await;
    assert_eq!(fetch(&mut one).await.status(), 429, "the bucket is full");
    waiting.abort();
    until(&|| store.settled() == 1).await;
    assert_eq!(left(&store, &queue).await, 1);
}

#[test]
fn denial_body_keeps_the_error_type() {
    // axum and hyper need the error type of the inner body.
    fn same_error<B: http_body::Body<Data = Bytes>>()
    where
        Body<B>: http_body::Body<Data = Bytes, Error = B::Error>,
    {
    }
    same_error::<axum::body::Body>();
    same_error::<Incoming>();
}
