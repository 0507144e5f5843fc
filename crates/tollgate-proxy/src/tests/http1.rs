//! Lengths and versions of HTTP/1, and clients that close their side early.

use super::*;

/// The lines of the response's `Connection` headers.
fn connection(answer: &str) -> Vec<&str> {
    answer.lines().filter_map(|line| line.strip_prefix("connection: ")).collect()
}

fn get(connection: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: {connection}\r\n\r\n")
}

/// In a 304, the length describes another response's body.
#[tokio::test(start_paused = true)]
async fn not_modified_keeps_its_length() {
    let answer = "HTTP/1.1 304 Not Modified\r\nContent-Length: 72\r\n\r\n";
    let proxy = Proxy::to(upstream(answer, Then::Send(Duration::ZERO, "")).0);
    let answer = proxy.exchange(get("keep-alive") + &get("close")).await;
    assert_eq!(answer.matches("HTTP/1.1 304 ").count(), 2, "{answer}");
    assert_eq!(answer.matches("content-length: 72\r\n").count(), 2, "{answer}");
    for lengths in ["x", "1, 2", "-1", "1\r\nContent-Length: 2"] {
        let answer = format!("HTTP/1.1 304 Not Modified\r\nContent-Length: {lengths}\r\n\r\n");
        let answer = Proxy::to(upstream(answer.leak(), Then::Close).0).exchange(get("close")).await;
        assert!(!answer.to_ascii_lowercase().contains("content-length: 1\r\n"), "{answer}");
        assert!(!answer.contains("HTTP/1.1 500"), "{lengths}: {answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn http10_response_announces_its_close() {
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n";
    let upstream = upstream(chunked, Then::Close).0;
    let proxy = Proxy::with(upstream, |settings| settings.max_body = Some(10));
    let head = "/ HTTP/1.0\r\nConnection: keep-alive\r\n";
    // Only the end of the connection shows the end of this body.
    let answer = proxy.exchange(format!("GET {head}\r\n")).await;
    assert!(answer.starts_with("HTTP/1.0 200 OK\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
    assert_eq!(connection(&answer), Vec::<&str>::new(), "{answer}");
    // The proxy does not read this body.
    let answer = proxy.exchange(format!("POST {head}Content-Length: 99999\r\n\r\n")).await;
    assert!(answer.starts_with("HTTP/1.0 413 "), "{answer}");
    assert_eq!(connection(&answer), ["close"], "{answer}");
}

#[tokio::test(start_paused = true)]
async fn http10_connection_can_be_kept() {
    let request = |more: &str| format!("GET / HTTP/1.0\r\n{more}\r\n");
    let both = request("Connection: keep-alive\r\n") + &request("");
    let answer = Proxy::to(ok().0).exchange(both).await;
    assert_eq!(answer.matches("HTTP/1.0 200 OK\r\n").count(), 2, "{answer}");
    assert_eq!(connection(&answer), ["keep-alive"], "{answer}");
}

#[tokio::test(start_paused = true)]
async fn half_closed_upload_is_incomplete() {
    let mut client = Proxy::to(ok().0).connect();
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhell";
    client.write_all(head.as_bytes()).await.unwrap();
    client.shutdown().await.unwrap();
    let answer = rest_of(&mut client).await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    assert!(answer.ends_with(Fault::BrokenClient.code()), "{answer}");
}
