//! Graceful shutdown under load.

use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::{Client, Gateway, PATIENCE, Upstream, until};

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_finishes_requests_and_refuses_connections() {
    let (upstream, go_on) = Upstream::gated("/slow").await;
    let mut gateway = Gateway::start(&upstream.target());
    let mut under_way = tokio::task::JoinSet::new();
    for client in [Client::new(gateway.address), Client::http2(gateway.address)] {
        under_way.spawn(async move { client.get("/slow").await });
    }
    upstream.until_seen(2).await;
    gateway.signal("TERM");
    let ready = loop {
        let ready = gateway.admin("/readyz").await;
        if ready.status != 200 {
            break ready;
        }
    };
    assert_eq!((ready.status.as_u16(), &ready.json()["status"]), (503, &"draining".into()));
    assert_eq!(gateway.admin("/healthz").await.status, 200);
    // After the gateway has released the port, another test's server may respond there.
    loop {
        let seen = upstream.seen().len();
        let answer = Client::new(gateway.address).send("GET", "/", &[], "").await;
        if answer.is_err() || upstream.seen().len() == seen {
            break;
        }
    }
    assert!(!gateway.has_ended());
    go_on.add_permits(2);
    for answer in under_way.join_all().await {
        assert_eq!((answer.status.as_u16(), &*answer.body), (200, &b"ok"[..]));
    }
    assert!(gateway.wait().success());
    gateway.until_logged("stopped");
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_closes_event_streams() {
    let (upstream, go_on) = Upstream::gated("/slow").await;
    let (mut gateway, client) = Gateway::with_client(&upstream.target());
    let under_way = tokio::spawn(async move { client.get("/slow").await });
    upstream.until_seen(1).await;
    let mut stream = std::net::TcpStream::connect(gateway.admin).unwrap();
    stream.write_all(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut read = Vec::new();
    while !String::from_utf8_lossy(&read).contains("\"uptime\"") {
        let mut more = [0; 4096];
        let length = stream.read(&mut more).unwrap();
        assert!(length > 0, "the stream closed early: {}", String::from_utf8_lossy(&read));
        read.extend_from_slice(&more[..length]);
    }
    gateway.signal("TERM");
    // The stream must be terminated properly, not cut.
    while !read.ends_with(b"\r\n0\r\n\r\n") {
        let mut more = [0; 4096];
        let length = stream.read(&mut more).unwrap();
        assert!(length > 0, "the stream was cut");
        read.extend_from_slice(&more[..length]);
    }
    // The process must wait for the request in flight.
    assert!(!gateway.has_ended());
    go_on.add_permits(1);
    assert_eq!(under_way.await.unwrap().status, 200);
    assert!(gateway.wait().success());
}

/// Kubernetes continues to send connections for a while after the signal.
#[tokio::test(flavor = "multi_thread")]
async fn listeners_accept_connections_during_the_drain_delay() {
    let upstream = Upstream::new().await;
    let lines = upstream.with("timeouts: {drainDelay: 10m}\n");
    let mut gateway = Gateway::start(&lines);
    gateway.signal("TERM");
    while gateway.admin("/readyz").await.status != 503 {}
    let answer = Client::new(gateway.address).get("/").await;
    assert_eq!((answer.status.as_u16(), answer.header("connection")), (200, ""));
    // A second signal cuts the delay short.
    gateway.signal("TERM");
    assert!(gateway.wait().success());
    // SIGINT comes from a terminal, where no load balancer needs the delay.
    let mut gateway = Gateway::start(&lines);
    gateway.signal("INT");
    assert!(gateway.wait().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_timeout_aborts_requests() {
    let (upstream, go_on) = Upstream::gated("/slow").await;
    let (mut gateway, client) = Gateway::with_client(&upstream.with("timeouts: {drain: 300ms}\n"));
    let under_way = tokio::spawn(async move { client.send("GET", "/slow", &[], "").await.is_ok() });
    upstream.until_seen(1).await;
    let started = Instant::now();
    gateway.signal("TERM");
    assert!(gateway.wait().success());
    assert!(started.elapsed() >= Duration::from_millis(300));
    assert!(started.elapsed() < Duration::from_secs(5));
    assert!(!under_way.await.unwrap());
    gateway.until_logged("stopped with connections open");
    go_on.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn second_signal_skips_draining() {
    let (upstream, go_on) = Upstream::gated("/slow").await;
    let (mut gateway, client) = Gateway::with_client(&upstream.target());
    tokio::spawn(async move { client.send("GET", "/slow", &[], "").await.is_ok() });
    upstream.until_seen(1).await;
    gateway.signal("TERM");
    while gateway.admin("/readyz").await.status == 200 {}
    gateway.signal("TERM");
    assert!(gateway.wait().success());
    go_on.close();
}

/// The clients reuse their connections. The gateway must answer every request that it accepted,
/// and must tell the clients to disconnect.
#[tokio::test(flavor = "multi_thread")]
async fn draining_under_load_fails_no_request() {
    let upstream = Upstream::new().await;
    let mut gateway = Gateway::start(&upstream.target());
    let sent = Arc::new(AtomicUsize::new(0));
    let mut load = tokio::task::JoinSet::new();
    for number in 0..8 {
        let sent = Arc::clone(&sent);
        let address = gateway.address;
        load.spawn(async move {
            let client =
                if number % 2 == 0 { Client::new(address) } else { Client::http2(address) };
            loop {
                match client.send("POST", "/", &[], "body").await {
                    Ok(answer) => {
                        assert_eq!(answer.status, 200);
                        sent.fetch_add(1, Ordering::Relaxed);
                    }
                    // The connection failed, so no request was lost.
                    Err(error) if is_refused(&*error) => return,
                    Err(error) => panic!("{error:?}"),
                }
            }
        });
    }
    until("500 requests were sent", async || sent.load(Ordering::Relaxed) >= 500).await;
    gateway.signal("TERM");
    load.join_all().await;
    assert!(gateway.wait().success());
}

/// The response has no `Connection: close`, so the client may already have sent another request
/// when the body is complete.
#[tokio::test(flavor = "multi_thread")]
async fn unwarned_client_gets_another_request() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap();
    let (go_on, waits) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
        // `Connection: close`, or the second request might reuse this connection.
        let head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\no";
        stream.write_all(head).unwrap();
        waits.recv().unwrap();
        stream.write_all(b"k").unwrap();
        drop(stream);
        let (mut stream, _) = listener.accept().unwrap();
        assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nmore").unwrap();
    });
    let mut gateway = Gateway::start(&format!("target: http://{target}\n"));
    let mut stream = std::net::TcpStream::connect(gateway.address).unwrap();
    let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let until = |stream: &mut std::net::TcpStream, end: &str| {
        let mut answer = String::new();
        while !answer.ends_with(end) {
            let mut byte = [0];
            assert_eq!(stream.read(&mut byte).unwrap(), 1, "the connection closed early: {answer}");
            answer.push(char::from(byte[0]));
        }
        answer
    };
    stream.write_all(request).unwrap();
    assert!(!until(&mut stream, "\r\n\r\no").contains("connection: close"));
    gateway.signal("TERM");
    while gateway.admin("/readyz").await.status == 200 {}
    go_on.send(()).unwrap();
    until(&mut stream, "k");
    stream.write_all(request).unwrap();
    assert!(until(&mut stream, "\r\n\r\nmore").contains("connection: close"));
    assert!(gateway.wait().success());
}

/// To their clients these connections are established, so all of the requests must be answered.
#[tokio::test(flavor = "multi_thread")]
async fn shutdown_serves_the_accept_backlog() {
    let upstream = Upstream::new().await;
    let mut gateway = Gateway::start(&upstream.target());
    // Meanwhile the kernel queues connections.
    gateway.signal("STOP");
    let request = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut streams = Vec::new();
    for _ in 0..WAITING {
        let stream = std::net::TcpStream::connect_timeout(&gateway.address, PATIENCE);
        let mut stream = stream.unwrap();
        stream.write_all(request).unwrap();
        streams.push(stream);
    }
    gateway.signal("TERM");
    gateway.signal("CONT");
    for (number, stream) in streams.iter_mut().enumerate() {
        let mut answer = String::new();
        let read = stream.read_to_string(&mut answer);
        assert!(read.is_ok() && answer.starts_with("HTTP/1.1 200 "), "{number}: {read:?} {answer}");
    }
    assert!(gateway.wait().success());
}

/// More than tokio's task budget allows per poll.
const WAITING: usize = 400;

/// When draining starts, this connection's protocol is still unknown, so it cannot be notified
/// yet. An HTTP/2 client that always has more requests would otherwise never disconnect.
#[tokio::test(flavor = "multi_thread")]
async fn connection_of_unknown_protocol_is_drained() {
    let upstream = Upstream::new().await;
    let mut gateway = Gateway::start(&upstream.target());
    let mut stream = std::net::TcpStream::connect(gateway.address).unwrap();
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    stream.write_all(&preface[..10]).unwrap();
    // Connections are accepted in order, so after this response, the connection above is accepted.
    assert_eq!(Client::new(gateway.address).get("/").await.status, 200);
    gateway.signal("TERM");
    while gateway.admin("/readyz").await.status == 200 {}
    stream.write_all(&preface[10..]).unwrap();
    stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]).unwrap();
    let mut other = stream.try_clone().unwrap();
    std::thread::spawn(move || {
        let mut head = [0; 9];
        while other.read_exact(&mut head).is_ok() {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            // The server's PING finds out which streams were opened before its GOAWAY arrived.
            let is_asked = other.read_exact(&mut payload).is_ok() && head[3..5] == [6, 0];
            if is_asked {
                head[4] = 1;
                let _ = other.write_all(&[&head[..], &payload].concat());
            }
        }
    });
    let started = Instant::now();
    let mut number: u32 = 1;
    while !gateway.has_ended() {
        // `GET /` with host `a`, on a new stream each time.
        let mut request = vec![0, 0, 6, 1, 5];
        request.extend(number.to_be_bytes());
        request.extend([0x82, 0x86, 0x84, 0x01, 0x01, b'a']);
        // Like most clients, also send frames outside of streams.
        let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
        let mut sent = stream.write_all(&request);
        tokio::time::sleep(Duration::from_millis(2)).await;
        sent = sent.and_then(|()| stream.write_all(&ping));
        if sent.is_err() {
            break;
        }
        number += 2;
        assert!(started.elapsed() < Duration::from_secs(20), "the connection is still served");
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    assert!(gateway.wait().success());
    assert!(upstream.seen().len() > 1, "no request reached the upstream");
}

fn is_refused(error: &(dyn std::error::Error + 'static)) -> bool {
    let error = error.downcast_ref::<hyper_util::client::legacy::Error>();
    error.is_some_and(hyper_util::client::legacy::Error::is_connect)
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_timeout_cuts_tunnels() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]);
        let switch =
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n";
        stream.write_all(switch.as_bytes()).unwrap();
        let _ = stream.read(&mut [0]);
    });
    let lines = format!("target: http://{target}\ntimeouts: {{drain: 300ms}}\n");
    let mut gateway = Gateway::start(&lines);
    let mut stream = std::net::TcpStream::connect(gateway.address).unwrap();
    let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
    gateway.signal("TERM");
    assert!(gateway.wait().success());
    gateway.until_logged("tunnels=1");
}
