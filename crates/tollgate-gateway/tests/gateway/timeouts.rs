//! Sides that are late, silent or not there.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Client, Gateway, Upstream, exchange};

/// Accepts, says this to whatever comes, and then nothing.
fn says(answer: &'static str) -> SocketAddr {
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

/// Says this and closes.
fn breaks_off(answer: &'static str) -> SocketAddr {
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

fn port_of_nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_that_does_not_answer_is_answered_for() {
    for (target, status, code) in [
        (format!("http://{}", port_of_nobody()), 502, "upstream-unreachable"),
        ("http://name.invalid".to_owned(), 502, "upstream-unreachable"),
        // The other side of the handshake never says a word.
        (format!("https://{}", says("")), 504, "upstream-connect-timeout"),
        (format!("https://{}", breaks_off("HTTP/1.1 400 No\r\n\r\n")), 502, "upstream-unreachable"),
        (format!("http://{}", says("")), 504, "upstream-timeout"),
        (format!("http://{}", says("HTTP/1.1 20")), 504, "upstream-timeout"),
        (format!("http://{}", breaks_off("")), 502, "upstream-invalid"),
        (format!("http://{}", breaks_off("HTTP/1.1 200 OK\r\nContent-")), 502, "upstream-invalid"),
        (format!("http://{}", says("SSH-2.0-OpenSSH\r\n\r\n")), 502, "upstream-invalid"),
    ] {
        // A name that nobody has may take its time to be asked for.
        let connect = if status == 504 { "300ms" } else { "10s" };
        // Of the two timeouts the one that is meant is the one that runs out.
        let response = if code == "upstream-connect-timeout" { "10s" } else { "300ms" };
        let timeouts = format!("timeouts: {{connect: {connect}, response: {response}}}");
        let gateway = Gateway::start(&format!("target: {target}\n{timeouts}\n"));
        let answer = Client::new(gateway.address).get("/").await;
        assert_eq!((answer.status.as_u16(), &*answer.code()), (status, code), "{target}");
        assert_eq!(answer.header("cache-control"), "no-store");
        // Where the service stands is nobody's business.
        let port = target.rsplit(':').next().unwrap();
        assert!(!String::from_utf8_lossy(&answer.body).contains(port), "{answer:?}");
        gateway.until_logged(target.split("://").nth(1).unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_stops_halfway_is_cut_off_and_not_completed() {
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n";
    for (upstream, stays) in [(says(head), true), (breaks_off(head), false)] {
        let gateway =
            Gateway::start(&format!("target: http://{upstream}\ntimeouts: {{idle: 200ms}}\n"));
        let answer =
            exchange(gateway.address, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        assert!(!answer.contains("0\r\n\r\n"), "{answer}");
        // What breaks off at once may be cut off before a byte of it was passed on.
        if stays || !answer.is_empty() {
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
        assert!(!stays || answer.contains("hello"), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_does_not_come_is_the_fault_of_the_client() {
    let upstream = Upstream::new().await;
    let gateway = Gateway::start(&format!("{}timeouts: {{idle: 200ms}}\n", upstream.target()));
    let request = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello";
    let answer = exchange(gateway.address, request);
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("request-timeout"), "{answer}");
    assert_eq!(upstream.seen().len(), 0);
}

/// A body that takes longer than the answer may is no late answer.
#[tokio::test(flavor = "multi_thread")]
async fn the_time_of_the_answer_begins_when_the_request_is_through() {
    let upstream = Upstream::new().await;
    let timeouts = "timeouts: {response: 300ms, idle: 10s}";
    let gateway = Gateway::start(&format!("{}{timeouts}\n", upstream.target()));
    let mut stream = TcpStream::connect(gateway.address).unwrap();
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\nConnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    for byte in b"helloworld" {
        // It is real time that the gateway measures, in a process of its own.
        thread::sleep(Duration::from_millis(60));
        stream.write_all(&[*byte]).unwrap();
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

/// How long the gateway keeps a connection on which this is sent, a byte at a time.
fn kept(gateway: &Gateway, bytes: &str) -> Duration {
    let mut stream = TcpStream::connect(gateway.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let started = Instant::now();
    let mut bytes = bytes.bytes();
    loop {
        if let Some(byte) = bytes.next() {
            // Once it is closed, there is nobody to write to.
            let _ = stream.write_all(&[byte]);
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
async fn a_head_that_comes_byte_by_byte_has_no_more_time_than_another() {
    let upstream = Upstream::new().await;
    let timeouts = "timeouts: {requestHeader: 300ms, keepAlive: 3s}";
    let gateway = Gateway::start(&format!("{}{timeouts}\n", upstream.target()));
    let endless = format!("GET / HTTP/1.1\r\nX-Endless: {}", "a".repeat(1000));
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for (bytes, least, most) in [
        (&*endless, 300, 2_900),
        // The beginning of HTTP/2, and then nothing.
        (&preface[..20], 300, 2_900),
        (preface, 300, 2_900),
        // Who asks for nothing is waited for as between two requests.
        ("", 3_000, 6_000),
    ] {
        let kept = kept(&gateway, bytes);
        let range = Duration::from_millis(least)..Duration::from_millis(most);
        assert!(range.contains(&kept), "{bytes:?}: {kept:?}");
    }
    assert_eq!(upstream.seen().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_not_used_again_is_closed() {
    let upstream = Upstream::new().await;
    let timeouts = "timeouts: {requestHeader: 200ms, keepAlive: 400ms}";
    let gateway = Gateway::start(&format!("{}{timeouts}\n", upstream.target()));
    let started = Instant::now();
    let answer = exchange(gateway.address, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(started.elapsed() >= Duration::from_millis(400));
}

/// A client that does not read holds the answer, and with it a connection to the upstream.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_is_put_out() {
    let upstream = Upstream::answering(|_| {
        use http_body_util::{BodyExt, Full};
        http::Response::new(Full::from(vec![b'x'; 64 << 20]).boxed())
    })
    .await;
    let timeouts = "timeouts: {idle: 300ms, requestHeader: 300ms}";
    let gateway = Gateway::start(&format!("{}{timeouts}\n", upstream.target()));
    let mut stream = TcpStream::connect(gateway.address).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    // Nothing tells from outside when a connection was given up, but that it can be read to
    // its end long before the end of the answer.
    thread::sleep(Duration::from_secs(3));
    let mut read = Vec::new();
    let ended = stream.read_to_end(&mut read);
    assert!(ended.is_err() || read.len() < 64 << 20, "{} bytes came", read.len());
}
