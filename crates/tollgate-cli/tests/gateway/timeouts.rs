//! Late, silent, and unreachable peers. `src/tests/timeouts.rs` in tollgate-proxy has cases without
//! sockets and configuration.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tollgate_test_servers::Port;

use crate::encryption::certificate;
use crate::support::{Client, Gateway, Upstream, listen};

/// A server that answers each connection with these bytes, and then closes it or remains silent.
fn answers(answer: &'static str, closes: bool) -> SocketAddr {
    listen(move |mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(answer.as_bytes());
        if !closes {
            std::mem::forget(stream);
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn upstream_failures_have_distinct_errors() {
    const PLAIN: &str = "HTTP/1.1 400 No\r\n\r\n";
    // A port of the range for `127.0.0.1:0` could become that of another test's gateway.
    let unused = Port::claim().unwrap();
    for (target, status, code) in [
        (format!("http://{}", unused.address()), 502, "upstream-unreachable"),
        ("http://name.invalid".to_owned(), 502, "upstream-unreachable"),
        // The server does not respond to the TLS handshake.
        (format!("https://{}", answers("", false)), 504, "upstream-connect-timeout"),
        (format!("https://{}", answers(PLAIN, true)), 502, "upstream-unreachable"),
        (format!("http://{}", answers("", false)), 504, "upstream-timeout"),
        (format!("http://{}", answers("", true)), 502, "upstream-invalid"),
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
    for (listen, opening) in [
        ("", endless.as_bytes()),
        (", tls: {certificate: tls.pem, key: tls.key}", b"\x16\x03\x01\x02\0\x01"),
        (", proxyProtocol: [loopback]", b"PROXY TCP4 192.0.2.1 "),
    ] {
        let folder = TempDir::new().unwrap();
        certificate(&folder, "tls");
        let lines = format!(
            "listen: {{address: '127.0.0.1:0'{listen}}}\n{}\
             timeouts: {{requestHeader: 300ms, keepAlive: 1h}}\n",
            upstream.target()
        );
        let gateway = Gateway::start_in(folder, &lines);
        let kept = time_until_closed(&gateway, opening);
        assert!(kept >= Duration::from_millis(300), "{}: {kept:?}", opening.escape_ascii());
    }
    assert_eq!(upstream.seen().len(), 0);
}
