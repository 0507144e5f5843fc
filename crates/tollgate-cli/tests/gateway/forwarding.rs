//! How requests arrive at the upstream, and responses at the client.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Channel, Full};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::{Client, Gateway, Outcome, RawHttp2, RawUpstream, Upstream, exchange, listen};

#[tokio::test(flavor = "multi_thread")]
async fn clients_share_upstream_connections() {
    let upstream = Upstream::new().await;
    let gateway = Gateway::start(&upstream.target());
    for _ in 0..20 {
        // Each client has its own connection.
        assert_eq!(Client::new(gateway.address).get("/").await.status.as_u16(), 200);
    }
    assert_eq!(upstream.connections(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn head_response_has_length_but_no_body() {
    let upstream = RawUpstream::answering(
        "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\nConnection: x-hop\r\nX-Hop: 1\r\n\r\n",
    );
    let gateway = Gateway::start(&format!("target: http://{}\n", upstream.address));
    let request = "HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let answer = exchange(gateway.address, request);
    assert!(answer.contains("content-length: 1000000\r\n") && answer.ends_with("\r\n\r\n"));
    assert!(!answer.to_ascii_lowercase().contains("x-hop"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn trailers_are_forwarded_both_ways() {
    let upstream = Upstream::answering(|_| {
        let (mut sender, body) = Channel::<Bytes, Infallible>::new(4);
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", HeaderValue::from_static("7"));
        let _ = sender.try_send(Frame::data(Bytes::from_static(b"hello")));
        let _ = sender.try_send(Frame::trailers(trailers));
        let mut answer = Response::new(body.boxed());
        answer.headers_mut().insert("trailer", HeaderValue::from_static("x-sum"));
        answer
    })
    .await;
    for (protocol, version) in [("http1", "HTTP/1.1"), ("http2", "HTTP/2.0")] {
        let target = format!("{{url: 'http://{}', protocol: {protocol}}}", upstream.address);
        let gateway = Gateway::start(&format!("target: {target}\n"));
        let request = "POST / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\n\
                       Trailer: x-end, x-forwarded-for\r\n\
                       Connection: close, te\r\nTransfer-Encoding: chunked\r\n\r\n\
                       5\r\nhello\r\n0\r\nx-end: yes\r\nx-forwarded-for: 192.0.2.1\r\n\r\n";
        let answer = exchange(gateway.address, request);
        assert!(answer.ends_with("5\r\nhello\r\n0\r\nx-sum: 7\r\n\r\n"), "{version}: {answer}");
        let seen = upstream.last();
        assert_eq!(format!("{:?}", seen.version), version);
        assert_eq!(&*seen.body, b"hello");
        let trailers = seen.trailers.unwrap();
        assert_eq!(trailers["x-end"], "yes");
        // A trailer must not set the client's address.
        assert!(!trailers.contains_key("x-forwarded-for"), "{version}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_works_on_both_sides() {
    let upstream = Upstream::new().await;
    for protocol in ["http1", "http2"] {
        let target = format!("{{url: 'http://{}', protocol: {protocol}}}", upstream.address);
        let gateway = Gateway::start(&format!("target: {target}\n"));
        let headers = [("cookie", "a=1"), ("cookie", "b=2")];
        let client = Client::http2(gateway.address);
        let answer = client.send("POST", "/x?y", &headers, "body").await.unwrap();
        assert_eq!(answer.status.as_u16(), 200);
        let seen = upstream.last();
        let is_http2 = protocol == "http2";
        assert_eq!(seen.version == http::Version::HTTP_2, is_http2);
        assert_eq!(seen.header("cookie"), "a=1; b=2");
        assert_eq!((seen.uri.path(), &*seen.body), ("/x", &b"body"[..]));
        let gateway = gateway.address.to_string();
        assert_eq!(seen.header("x-forwarded-host"), gateway);
        assert!(seen.header("via").starts_with("2.0 tollgate-"));
        assert_eq!(seen.header("host"), if is_http2 { "" } else { &*gateway });
    }
}

/// Requests to an HTTP/2 upstream share connections and therefore flow-control windows.
#[tokio::test(flavor = "multi_thread")]
async fn slow_reader_does_not_block_other_clients() {
    let large = Bytes::from(vec![b'x'; 32 << 20]);
    let upstream = Upstream::answering(move |seen| {
        let body = if seen.uri.path() == "/large" { large.clone() } else { Bytes::from("ok") };
        Response::new(Full::new(body).boxed())
    })
    .await;
    let target = format!("{{url: 'http://{}', protocol: http2}}", upstream.address);
    let gateway = Gateway::start(&format!("target: {target}\n"));
    let mut lazy = Vec::new();
    for _ in 0..4 {
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        stream.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        // Reads only the first byte of the response.
        stream.read_u8().await.unwrap();
        lazy.push(stream);
    }
    // Enough clients that each gateway thread serves some.
    let clients: Vec<_> = (0..8).map(|_| Client::new(gateway.address)).collect();
    // Enough requests for the unread responses to fill all buffers.
    for client in clients.iter().cycle().take(500) {
        let answer = timeout(Duration::from_secs(20), client.get("/")).await;
        assert_eq!(answer.expect("a slow reader blocks other clients").body, "ok");
    }
    // Each thread opens at most a single connection.
    let threads = std::thread::available_parallelism().unwrap().get();
    assert!(upstream.connections() <= threads, "{}", upstream.connections());
}

#[tokio::test(flavor = "multi_thread")]
async fn routes_select_their_targets() {
    let (a, b, rest) = (Upstream::new().await, Upstream::new().await, Upstream::new().await);
    let lines = format!(
        "{}routes:\n- {{name: a, path: '/a/*', target: 'http://{}'}}\n\
         - {{name: b, host: b.example, target: 'http://{}'}}\n",
        rest.target(),
        a.address,
        b.address,
    );
    let (_gateway, client) = Gateway::with_client(&lines);
    let count = || [a.seen().len(), b.seen().len(), rest.seen().len()];
    for (path, host, expected) in [
        ("/a/x", "other", [1, 0, 0]),
        ("/x//..//a/x", "other", [2, 0, 0]),
        ("/ax", "other", [2, 0, 1]),
        ("/x", "B.Example:80", [2, 1, 1]),
        ("/x", "b.example.", [2, 2, 1]),
        ("/x", "xb.example", [2, 2, 2]),
    ] {
        client.send("GET", path, &[("host", host)], "").await.unwrap();
        assert_eq!(count(), expected, "{host}{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forwarding_loop_is_detected() {
    // The gateway needs its own port as its target, so it first starts with another target.
    let folder = tempfile::TempDir::new().unwrap();
    let gateway = Gateway::start_in(folder, "target: http://127.0.0.1:9\n");
    let itself = gateway.address;
    gateway.rewrite(&format!("target: http://{itself}\n"));
    gateway.until_config(|config| config["version"] == 2).await;
    let answer = Client::new(itself).get("/").await;
    assert_eq!((answer.status.as_u16(), answer.code()), (508, "loop".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn idempotent_request_is_retried_after_close() {
    use std::io::{Read, Write};
    // Each connection serves a single request and closes at the second.
    let address = listen(|mut stream| {
        let mut buffer = [0; 4096];
        let _ = stream.read(&mut buffer);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        let _ = stream.read(&mut buffer);
    });
    let (_gateway, client) = Gateway::with_client(&format!("target: http://{address}\n"));
    for _ in 0..5 {
        assert_eq!(client.get("/").await.status.as_u16(), 200);
    }
    // A POST is not idempotent, so it is not retried.
    let answer = client.send("POST", "/", &[], "x").await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.code()), (502, "upstream-invalid".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn expect_continue_is_answered() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let upstream = Upstream::answering(|seen| {
        Response::new(Full::from(format!("{} bytes", seen.body.len())).boxed())
    })
    .await;
    let gateway = Gateway::start(&upstream.target());
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\
                Connection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut go_on = [0; 25];
    stream.read_exact(&mut go_on).await.unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"hello").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("5 bytes"), "{answer}");
    assert_eq!(upstream.last().header("expect"), "");
}

/// Sends an HTTP/2 request without `Content-Length` and returns the status.
async fn without_a_length(gateway: &Gateway, method: &str, trailers: HeaderMap) -> u16 {
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = Request::builder().method(method).uri(format!("http://{}/", gateway.address));
    let request = request.header("trailer", "x-end").body(()).unwrap();
    let (answer, mut body) = client.send_request(request, false).unwrap();
    body.send_data(Bytes::from_static(b"hello"), false).unwrap();
    body.send_trailers(trailers).unwrap();
    answer.await.unwrap().status().as_u16()
}

#[tokio::test(flavor = "multi_thread")]
async fn get_and_head_may_have_streamed_bodies() {
    let upstream = Upstream::new().await;
    for protocol in ["http1", "http2"] {
        let target = format!("{{url: 'http://{}', protocol: {protocol}}}", upstream.address);
        let gateway = Gateway::start(&format!("target: {target}\n"));
        for method in ["GET", "HEAD", "POST"] {
            let request = format!(
                "{method} / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTrailer: x-end\r\n\
                 Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-end: yes\r\n\r\n"
            );
            let answer = exchange(gateway.address, &request);
            assert!(answer.starts_with("HTTP/1.1 200"), "{protocol} {method}: {answer}");
            let over_http1 = upstream.last();
            let trailers = HeaderMap::from_iter([(
                http::HeaderName::from_static("x-end"),
                HeaderValue::from_static("yes"),
            )]);
            assert_eq!(without_a_length(&gateway, method, trailers.clone()).await, 200);
            for seen in [over_http1, upstream.last()] {
                assert_eq!(seen.method, method);
                assert_eq!((&*seen.body, seen.trailers), (&b"hello"[..], Some(trailers.clone())));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn trace_is_rejected_in_any_case() {
    let upstream = Upstream::new().await;
    let gateway = Gateway::start(&upstream.target());
    for client in [Client::new(gateway.address), Client::http2(gateway.address)] {
        for method in ["TRACE", "trace", "Trace"] {
            let answer = client.send(method, "/", &[("cookie", "secret")], "").await.unwrap();
            assert_eq!((answer.status.as_u16(), &*answer.code()), (405, "no-trace"), "{method}");
        }
    }
    assert_eq!(upstream.seen().len(), 0);
}

/// `OPTIONS *` is about the gateway itself, so there is no service to forward it to.
#[tokio::test(flavor = "multi_thread")]
async fn options_asterisk_is_answered_by_the_gateway() {
    let upstream = Upstream::new().await;
    let gateway = Gateway::start(&upstream.target());
    let head = "OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let answer = exchange(gateway.address, head);
    assert!(answer.starts_with("HTTP/1.1 204 No Content\r\n"), "{answer}");
    let answer = exchange(gateway.address, "OPTIONS * HTTP/1.1\r\nConnection: close\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("bad-host"), "{answer}");
    let mut http2 = RawHttp2::new(gateway.address);
    let fields = [(":method", "OPTIONS"), (":scheme", "http"), (":path", "*"), (":authority", "a")];
    http2.headers(1, &fields, true);
    assert_eq!(http2.outcome(1), Outcome::Status(204));
    assert_eq!(upstream.seen().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn trailers_are_limited_to_a_hundred() {
    let upstream = Upstream::new().await;
    let gateway = Gateway::start(&upstream.target());
    let trailers = |count: u32| {
        let field =
            |number| (format!("x-{number}").parse().unwrap(), HeaderValue::from_static("1"));
        (0..count).map(field).collect::<HeaderMap>()
    };
    assert_eq!(without_a_length(&gateway, "POST", trailers(100)).await, 200);
    assert_eq!(without_a_length(&gateway, "POST", trailers(101)).await, 431);
    assert_eq!(upstream.seen().len(), 1);
}
