//! Late, silent, and unreachable peers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::net::TcpSocket;

use crate::encryption::certificate;
use crate::support::{Client, Gateway, Outcome, RawHttp2, RawUpstream, Upstream, exchange};

/// A server that answers each connection with these bytes and then remains silent.
fn answers_then_hangs(answer: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut kept = Vec::new();
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer.as_bytes());
            kept.push(stream);
        }
    });
    address
}

/// A server that answers each connection with these bytes and closes it.
fn answers_then_closes(answer: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    address
}

fn unused_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn upstream_failures_have_distinct_errors() {
    for (target, status, code) in [
        (format!("http://{}", unused_address()), 502, "upstream-unreachable"),
        ("http://name.invalid".to_owned(), 502, "upstream-unreachable"),
        // The server does not respond to the TLS handshake.
        (format!("https://{}", answers_then_hangs("")), 504, "upstream-connect-timeout"),
        (
            format!("https://{}", answers_then_closes("HTTP/1.1 400 No\r\n\r\n")),
            502,
            "upstream-unreachable",
        ),
        (format!("http://{}", answers_then_hangs("")), 504, "upstream-timeout"),
        (format!("http://{}", answers_then_hangs("HTTP/1.1 20")), 504, "upstream-timeout"),
        (format!("http://{}", answers_then_closes("")), 502, "upstream-invalid"),
        (
            format!("http://{}", answers_then_closes("HTTP/1.1 200 OK\r\nContent-")),
            502,
            "upstream-invalid",
        ),
        (
            format!("http://{}", answers_then_hangs("SSH-2.0-OpenSSH\r\n\r\n")),
            502,
            "upstream-invalid",
        ),
    ] {
        // Looking up a nonexistent name may be slow.
        let connect = if status == 504 { "300ms" } else { "10s" };
        // Only the timeout under test is short.
        let response = if code == "upstream-connect-timeout" { "10s" } else { "300ms" };
        let timeouts = format!("timeouts: {{connect: {connect}, response: {response}}}");
        let gateway = Gateway::start(&format!("target: {target}\n{timeouts}\n"));
        let answer = Client::new(gateway.address).get("/").await;
        assert_eq!((answer.status.as_u16(), &*answer.code()), (status, code), "{target}");
        assert_eq!(answer.header("cache-control"), "no-store");
        // The response must not reveal the upstream's address.
        let port = target.rsplit(':').next().unwrap();
        assert!(!String::from_utf8_lossy(&answer.body).contains(port), "{answer:?}");
        gateway.until_logged(target.split("://").nth(1).unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn truncated_response_is_not_completed() {
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n";
    for upstream in [answers_then_hangs(head), answers_then_closes(head)] {
        let gateway =
            Gateway::start(&format!("target: http://{upstream}\ntimeouts: {{idle: 200ms}}\n"));
        let answer =
            exchange(gateway.address, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        assert!(!answer.contains("0\r\n\r\n"), "{answer}");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("hello"), "{answer}");
    }
}

/// A server that pauses within each response while the lock is held.
fn pauses(lock: &Arc<Mutex<()>>) -> SocketAddr {
    let lock = Arc::clone(lock);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let lock = Arc::clone(&lock);
            thread::spawn(move || {
                let _ = stream.read(&mut [0; 4096]);
                let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n";
                let _ = stream.write_all(head.as_bytes());
                drop(lock.lock());
                let _ = stream.write_all(b"5\r\nworld\r\n0\r\n\r\n");
            });
        }
    });
    address
}

/// An event stream beside an API: only its route allows long pauses.
#[tokio::test(flavor = "multi_thread")]
async fn targets_have_their_own_timeouts() {
    let lock = Arc::default();
    let (slow, silent) = (pauses(&lock), answers_then_hangs(""));
    let gateway = Gateway::start(&format!(
        "timeouts: {{idle: 200ms, response: 10s, requestHeader: 100ms}}
routes:
  - {{name: events, path: /events, target: {{url: 'http://{slow}', timeouts: {{idle: 10s}}}}}}
  - {{name: api, path: /api, target: {{url: 'http://{silent}', timeouts: {{response: 200ms}}}}}}
target: http://{slow}
",
    ));
    let address = gateway.address;
    let get = move |path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        exchange(address, &request)
    };
    let pause = lock.lock().unwrap();
    let events = thread::spawn(move || get("/events"));
    // Each of these responses ends after the timeout that must not apply to the events.
    let others = [get("/"), get("/api"), get("/")];
    drop(pause);
    let events = events.join().unwrap();
    assert!(events.contains("hello") && events.ends_with("world\r\n0\r\n\r\n"), "{events}");
    for other in [&others[0], &others[2]] {
        assert!(other.contains("hello") && !other.contains("world"), "{other}");
    }
    let api = &others[1];
    assert!(api.contains("504") && api.contains("upstream-timeout"), "{api}");
}

/// The client needs the header to see what happened, and an abort to see that the body is
/// incomplete.
#[test]
fn truncated_response_keeps_its_header() {
    for answer in [
        "HTTP/1.1 201 Created\r\nX-Id: 7\r\nContent-Length: 5\r\n\r\n",
        "HTTP/1.1 201 Created\r\nX-Id: 7\r\nContent-Length: 5\r\n\r\nhe",
        "HTTP/1.1 201 Created\r\nX-Id: 7\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 201 Created\r\nX-Id: 7\r\nTransfer-Encoding: chunked\r\n\r\nnonsense",
    ] {
        let gateway = Gateway::start(&format!("target: http://{}\n", answers_then_closes(answer)));
        for _ in 0..5 {
            let request = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";
            let answer = exchange(gateway.address, request);
            assert!(answer.starts_with("HTTP/1.1 201 Created\r\n"), "{answer:?}");
            assert!(answer.contains("\r\nx-id: 7\r\n"), "{answer:?}");
            assert!(!answer.ends_with("0\r\n\r\n"), "{answer:?}");
            let mut http2 = RawHttp2::new(gateway.address);
            let head =
                [(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "a")];
            http2.headers(1, &head, false);
            http2.data(1, b"hi", true);
            assert_eq!(http2.outcome(1), Outcome::Status(201));
            assert_eq!(http2.outcome(1), Outcome::Reset);
        }
        gateway.until_logged("the upstream did not complete its response");
    }
}

/// A server with a full backlog, so connection attempts get no response.
async fn full_backlog() -> (SocketAddr, impl Sized) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut queue = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(500)) {
        queue.push(stream);
        assert!(queue.len() < 100, "the listen backlog does not fill up");
    }
    (address, (listener, queue))
}

#[tokio::test(flavor = "multi_thread")]
async fn connect_timeout_precedes_response_timeout() {
    let (address, _queue) = full_backlog().await;
    for protocol in ["http1", "http2"] {
        // The response timeout starts only after the connection is established.
        let gateway = Gateway::start(&format!(
            "target: {{url: 'http://{address}', protocol: {protocol}}}\n\
             timeouts: {{connect: 900ms, response: 200ms}}\n"
        ));
        for body in ["", "hello"] {
            let client = Client::new(gateway.address);
            let answer = client.send("POST", "/", &[], body).await.unwrap();
            let code = (answer.status.as_u16(), answer.code());
            assert_eq!(code, (504, "upstream-connect-timeout".to_owned()), "{protocol} {body:?}");
        }
    }
}

/// A proxy that delays the server's first bytes.
fn delaying_proxy(server: SocketAddr, pause: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let server = TcpStream::connect(server).unwrap();
            let (mut from, mut to) = (stream.try_clone().unwrap(), server.try_clone().unwrap());
            thread::spawn(move || std::io::copy(&mut from, &mut to));
            thread::spawn(move || {
                // The gateway is a separate process, so time cannot be mocked.
                thread::sleep(pause);
                std::io::copy(&mut &server, &mut &stream)
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn response_timeout_excludes_connecting() {
    let upstream = Upstream::new().await;
    let folder = TempDir::new().unwrap();
    certificate(&folder, "localhost");
    let trusted = folder.path().join("localhost.pem");
    let tls = "{address: '127.0.0.1:0', tls: {certificate: localhost.pem, key: localhost.key}}";
    let server = Gateway::start_in(folder, &format!("listen: [{tls}]\n{}", upstream.target()));
    for body in ["", "hello"] {
        // Connecting takes longer than the response timeout.
        let port = delaying_proxy(server.address, Duration::from_secs(3)).port();
        let folder = TempDir::new().unwrap();
        let lines =
            format!("target: https://localhost:{port}\ntimeouts: {{connect: 20s, response: 2s}}\n");
        std::fs::write(folder.path().join("slow.yaml"), crate::support::whole(&lines)).unwrap();
        let roots = trusted.to_str().unwrap();
        let gateway = Gateway::start_under(folder, "slow.yaml", &[("SSL_CERT_FILE", roots)]);
        let answer = Client::new(gateway.address).send("POST", "/", &[], body).await.unwrap();
        assert_eq!(answer.status, 200, "{body:?}: {answer:?}");
    }
}

/// The service has started to respond, so it has already processed the request.
#[test]
fn partial_response_prevents_a_retry() {
    for answer in [
        "H",
        "HTTP/1.1 200 OK\r\nContent-",
        "HTTP/1.1 100 Continue\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n",
    ] {
        let upstream = RawUpstream::closing(answer);
        let gateway = Gateway::start(&upstream.target());
        let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        let said = exchange(gateway.address, request);
        assert!(said.starts_with("HTTP/1.1 502") && said.contains("upstream-invalid"), "{said}");
        assert_eq!(upstream.requests().len(), 1, "{answer:?}");
    }
    // If there is no response at all, the request may not have arrived.
    let upstream = RawUpstream::closing("");
    let gateway = Gateway::start(&upstream.target());
    exchange(gateway.address, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert_eq!(upstream.requests().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_body_is_a_client_error() {
    let upstream = Upstream::new().await;
    let gateway = Gateway::start(&upstream.with("timeouts: {idle: 200ms}\n"));
    let request = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello";
    let answer = exchange(gateway.address, request);
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("request-timeout"), "{answer}");
    assert_eq!(upstream.seen().len(), 0);
}

/// A slow upload must not count as a slow response.
#[tokio::test(flavor = "multi_thread")]
async fn response_timeout_excludes_the_upload() {
    let upstream = Upstream::new().await;
    let timeouts = "timeouts: {response: 300ms, idle: 10s}";
    let gateway = Gateway::start(&format!("{}{timeouts}\n", upstream.target()));
    let mut stream = TcpStream::connect(gateway.address).unwrap();
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\nConnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    for byte in b"helloworld" {
        // The gateway is a separate process, so time cannot be mocked.
        thread::sleep(Duration::from_millis(60));
        stream.write_all(&[*byte]).unwrap();
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// Sends the bytes individually and returns how long the gateway holds the connection open.
fn time_until_closed(gateway: &Gateway, bytes: &[u8]) -> Duration {
    let mut stream = TcpStream::connect(gateway.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let started = Instant::now();
    let mut bytes = bytes.iter();
    loop {
        if let Some(byte) = bytes.next() {
            // A write to a closed connection fails, and the read below reports the close.
            let _ = stream.write_all(&[*byte]);
        }
        match stream.read(&mut [0; 4096]) {
            Ok(0) => return started.elapsed(),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                return started.elapsed();
            }
            Err(_) => assert!(started.elapsed() < Duration::from_secs(20), "it is still open"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_header_times_out() {
    let upstream = Upstream::new().await;
    let endless = format!("GET / HTTP/1.1\r\nX-Endless: {}", "a".repeat(2_000));
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    // SETTINGS, then HEADERS with 8 KiB.
    let headers = [
        &preface[..],
        b"\0\0\0\x04\0\0\0\0\0\0\x20\0\x01\0\0\0\0\x01\x82\x86\x84\x40\x01",
        &[b'a'; 2_000],
    ]
    .concat();
    let http: &[&[u8]] = &[endless.as_bytes(), &preface[..20], preface, &headers];
    let tls: &[&[u8]] = &[b"\x16\x03\x01\x02\0\x01"];
    let proxy: &[&[u8]] = &[b"PROXY TCP4 192.0.2.1 "];
    for (listen, openings) in [
        ("", http),
        (", tls: {certificate: tls.pem, key: tls.key}", tls),
        (", proxyProtocol: [loopback]", proxy),
    ] {
        let folder = TempDir::new().unwrap();
        certificate(&folder, "tls");
        let lines = format!(
            "listen: {{address: '127.0.0.1:0'{listen}}}\n{}\
             timeouts: {{requestHeader: 300ms, keepAlive: 1h}}\n",
            upstream.target()
        );
        let gateway = Gateway::start_in(folder, &lines);
        for bytes in openings {
            let kept = time_until_closed(&gateway, bytes);
            assert!(kept >= Duration::from_millis(300), "{}: {kept:?}", bytes.escape_ascii());
        }
    }
    assert_eq!(upstream.seen().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connection_is_closed() {
    let upstream = Upstream::new().await;
    let timeouts = "timeouts: {requestHeader: 200ms, keepAlive: 400ms}";
    let gateway = Gateway::start(&format!("{}{timeouts}\n", upstream.target()));
    let started = Instant::now();
    let answer = exchange(gateway.address, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(started.elapsed() >= Duration::from_millis(400));
}

/// A client that does not read would otherwise occupy an upstream connection.
#[tokio::test(flavor = "multi_thread")]
async fn client_that_does_not_read_is_disconnected() {
    let upstream = Upstream::answering(|_| {
        use http_body_util::{BodyExt, Full};
        http::Response::new(Full::from(vec![b'x'; 64 << 20]).boxed())
    })
    .await;
    let timeouts = "timeouts: {idle: 300ms, requestHeader: 300ms}";
    let gateway = Gateway::start(&format!("{}{timeouts}\n", upstream.target()));
    let mut stream = TcpStream::connect(gateway.address).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    // The test cannot observe the abort directly, so it waits and then checks that the response is
    // incomplete.
    thread::sleep(Duration::from_secs(3));
    let mut read = Vec::new();
    let ended = stream.read_to_end(&mut read);
    assert!(ended.is_err() || read.len() < 64 << 20, "{} bytes arrived", read.len());
}
