//! HTTP/2 upstreams: dead connections, exhausted streams and refused requests.

use std::io::Read;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::support::frames::{END_HEADERS, GOAWAY, HEADERS, RST_STREAM, SETTINGS, WINDOW_UPDATE};
use crate::support::{Gateway, RawHttp2, Upstream, exchange, listen, until};

/// A TCP proxy that can stop forwarding without closing connections.
struct Relay {
    address: SocketAddr,
    silence: Arc<Mutex<CancellationToken>>,
}

impl Relay {
    async fn to(upstream: SocketAddr) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let silence = Arc::new(Mutex::new(CancellationToken::new()));
        let current = Arc::clone(&silence);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let silence = current.lock().unwrap().clone();
                tokio::spawn(async move {
                    let mut server = tokio::net::TcpStream::connect(upstream).await.unwrap();
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                        () = silence.cancelled() => std::future::pending().await,
                    }
                });
            }
        });
        Self { address, silence }
    }

    /// Silences all open connections. New connections are forwarded.
    fn go_silent(&self) {
        std::mem::take(&mut *self.silence.lock().unwrap()).cancel();
    }
}

fn target(servers: &[SocketAddr], more: &str) -> String {
    let urls: Vec<_> = servers.iter().map(|server| format!("'http://{server}'")).collect();
    format!("target: {{url: [{}], protocol: http2{more}}}\n", urls.join(", "))
}

#[tokio::test(flavor = "multi_thread")]
async fn timed_out_connection_is_not_reused() {
    let upstream = Upstream::new().await;
    let relay = Relay::to(upstream.address).await;
    let (_gateway, client) =
        Gateway::with_client(&(target(&[relay.address], "") + "timeouts: {response: 2s}\n"));
    assert_eq!(client.get("/").await.status, 200);
    relay.go_silent();
    assert_eq!(client.get("/").await.code(), "upstream-timeout");
    for method in ["POST", "GET"] {
        assert_eq!(client.send(method, "/", &[], "body").await.unwrap().status, 200, "{method}");
    }
    assert_eq!(upstream.connections(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn server_returns_after_its_connection_died() {
    let (dying, other) = (Upstream::new().await, Upstream::new().await);
    let relay = Relay::to(dying.address).await;
    let servers = target(&[relay.address, other.address], ", maxFailures: 1, retryAfter: 100ms");
    let (gateway, client) = Gateway::with_client(&(servers + "timeouts: {response: 2s}\n"));
    let mut failed = 0;
    let mut until_seen = async |requests: usize| {
        until("the server receives requests", async || {
            failed += usize::from(client.get("/").await.status != 200);
            dying.seen().len() >= requests
        })
        .await;
    };
    until_seen(1).await;
    relay.go_silent();
    until_seen(4).await;
    assert_eq!(failed, 1, "{}", gateway.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn early_close_tries_the_next_server() {
    let closed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&closed);
    let address = listen(move |mut stream| {
        // Close after the preface, when the connection is in use.
        let _ = stream.read(&mut [0; 24]);
        count.fetch_add(1, Ordering::Relaxed);
    });
    let other = Upstream::new().await;
    let (gateway, client) =
        Gateway::with_client(&target(&[address, other.address], ", maxFailures: 1000"));
    for _ in 0..8 {
        assert_eq!(client.get("/").await.status, 200, "{}", gateway.log());
    }
    assert!(closed.load(Ordering::Relaxed) > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_check_opens_a_connection() {
    let upstream = Upstream::new().await;
    let check = ", healthCheck: {path: /, interval: 10ms, timeout: 10s}";
    let _gateway = Gateway::start(&target(&[upstream.address], check));
    until("three checks have run", async || upstream.connections() >= 3).await;
}

/// An upstream with ten streams per connection, which answers after it has received 40 requests.
async fn crowded_upstream() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (together, connections) = (Arc::new(Barrier::new(40)), Arc::new(AtomicUsize::new(0)));
    let opened = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            opened.fetch_add(1, Ordering::Relaxed);
            let together = Arc::clone(&together);
            let service = service_fn(move |_| {
                let together = Arc::clone(&together);
                async move {
                    together.wait().await;
                    Ok::<_, hyper::Error>(Response::new(Full::new(Bytes::from("ok"))))
                }
            });
            let mut server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            server.max_concurrent_streams(10);
            tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
        }
    });
    (address, connections)
}

#[tokio::test(flavor = "multi_thread")]
async fn used_up_streams_open_further_connections() {
    let (address, connections) = crowded_upstream().await;
    let (_gateway, client) = Gateway::with_client(&target(&[address], ""));
    let mut requests = JoinSet::new();
    for _ in 0..40 {
        let client = client.clone();
        requests.spawn(async move { client.get("/").await.status });
    }
    assert!(requests.join_all().await.iter().all(|status| *status == 200));
    let connections = connections.load(Ordering::Relaxed);
    assert!((4..=6).contains(&connections), "{connections}");
}

/// How the server refuses a request that it has read completely.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Refusal {
    /// RST_STREAM with REFUSED_STREAM.
    Stream,
    /// GOAWAY with a lower id.
    Connection,
    /// GOAWAY with the stream's id, and a closed connection.
    Processed,
}

/// An HTTP/2 server that refuses the first streams and answers all later streams. Returns its address
/// and the size of each request body.
fn refusing(refusal: Refusal, count: usize) -> (SocketAddr, Arc<Mutex<Vec<usize>>>) {
    let bodies = Arc::new(Mutex::new(Vec::new()));
    let (left, seen) = (Arc::new(AtomicUsize::new(count)), Arc::clone(&bodies));
    let address = listen(move |stream| {
        let mut http2 = RawHttp2::of_server(stream);
        // SETTINGS_INITIAL_WINDOW_SIZE, and a connection window for the largest body.
        http2.frame(SETTINGS, 0, 0, &[0, 4, 0, 0x10, 0, 0]);
        http2.frame(WINDOW_UPDATE, 0, 0, &[0, 0x10, 0, 0]);
        while let Some((id, body)) = http2.next_whole_request() {
            seen.lock().unwrap().push(body);
            let next = |left: usize| left.checked_sub(1);
            if left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_err() {
                // `:status: 200`, and END_STREAM.
                http2.frame(HEADERS, END_HEADERS | 1, id, &[0x88]);
                continue;
            }
            match refusal {
                Refusal::Stream => http2.frame(RST_STREAM, 0, id, &[0, 0, 0, 7]),
                Refusal::Connection => http2.frame(GOAWAY, 0, 0, &[0; 8]),
                Refusal::Processed => {
                    return http2.frame(GOAWAY, 0, 0, &[id.to_be_bytes(), [0; 4]].concat());
                }
            }
        }
    });
    (address, bodies)
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_requests_are_retried() {
    for (refusal, refused, body, status, bodies) in [
        (Refusal::Stream, 1, 0, 200, 2),
        (Refusal::Stream, 1, 40_000, 200, 2),
        (Refusal::Connection, 1, 0, 200, 2),
        (Refusal::Connection, 1, 40_000, 200, 2),
        (Refusal::Stream, 3, 10, 200, 4),
        (Refusal::Connection, 3, 10, 200, 4),
        (Refusal::Stream, 4, 10, 503, 4),
        (Refusal::Connection, 4, 10, 503, 4),
        // The body is too large for the gateway to buffer.
        (Refusal::Stream, 1, 70_000, 503, 1),
        // The server may have processed the request.
        (Refusal::Processed, 1, 10, 502, 1),
    ] {
        let (server, seen) = refusing(refusal, refused);
        // Bytes that are sent again must not count towards `maxBodyBytes`.
        let (gateway, client) = Gateway::with_client(&target(&[server], ", maxBodyBytes: 75000"));
        let answer = client.send("POST", "/", &[], &"x".repeat(body)).await.unwrap();
        let case = format!("{refusal:?} {refused} {body}");
        assert_eq!(answer.status, status, "{case}\n{}", gateway.log());
        if status == 503 {
            assert_eq!(answer.code(), "upstream-refused", "{case}");
        }
        assert_eq!(*seen.lock().unwrap(), vec![body; bodies], "{case}");
    }
}

/// Sends half a response to each request, with or without END_STREAM, and resets the stream with
/// `NO_ERROR`. Servers send this after a complete response to stop an upload (RFC 9113 §8.1).
fn resetting_server(ends_response: bool) -> SocketAddr {
    listen(move |stream| {
        let mut http2 = RawHttp2::of_server(stream);
        while let Some(stream) = http2.next_request() {
            // `:status: 200`, from HPACK's static table.
            http2.frame(HEADERS, END_HEADERS, stream, &[0x88]);
            http2.data(stream, b"half", ends_response);
            http2.frame(RST_STREAM, 0, stream, &[0; 4]);
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn reset_response_is_incomplete() {
    for ends_response in [false, true] {
        let server = resetting_server(ends_response);
        let gateway = Gateway::start(&target(&[server], ""));
        // An upload that the server stops.
        let request = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\
                       Connection: close\r\n\r\nhalf";
        let answer = exchange(gateway.address, request).to_ascii_lowercase();
        assert!(answer.starts_with("http/1.1 200"), "{answer}");
        assert!(answer.contains("\r\n4\r\nhalf\r\n"), "{answer}");
        assert_eq!(answer.ends_with("\r\n0\r\n\r\n"), ends_response, "{answer}");
        // Over HTTP/2, the client sees an error too.
        let stream = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
        let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let request = http::Request::builder().uri("http://a/").body(()).unwrap();
        let (answer, _) = client.send_request(request, true).unwrap();
        let mut body = answer.await.unwrap().into_body();
        assert_eq!(body.data().await.unwrap().unwrap(), "half");
        let end = body.data().await.transpose();
        assert_eq!(end.is_ok(), ends_response, "{end:?}");
        if !ends_response {
            gateway.until_logged("the upstream did not complete its response");
        }
    }
}
