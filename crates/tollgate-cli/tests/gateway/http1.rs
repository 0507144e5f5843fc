//! HTTP/1 clients that close their side early, send large heads, or speak an old version.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::support::{Client, Gateway, PATIENCE, RawUpstream, Upstream, exchange};

fn read(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Sends a head of this size in one piece, or in two.
async fn send_head(gateway: &Gateway, client: &Client, size: usize, is_whole: bool) -> String {
    let (start, end) = ("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Long: ", "\r\n\r\n");
    let head = format!("{start}{}{end}", "a".repeat(size - start.len() - end.len()));
    let mut stream = TcpStream::connect(gateway.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let first = if is_whole { size } else { 50_000 };
    stream.write_all(&head.as_bytes()[..first]).unwrap();
    // This gives the gateway time to read the first piece.
    assert_eq!(client.get("/").await.status, 200);
    // After the response, the gateway may reset the connection.
    let _ = stream.write_all(&head.as_bytes()[first..]);
    tokio::task::spawn_blocking(|| read(stream)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn head_limit_does_not_depend_on_pieces() {
    let upstream = Upstream::new().await;
    let (gateway, client) = Gateway::with_client(&upstream.target());
    for (kib, status) in [(63, 200), (65, 431), (100, 431), (127, 431), (200, 431)] {
        for is_whole in [true, false] {
            let answer = send_head(&gateway, &client, kib << 10, is_whole).await;
            let expected = format!("HTTP/1.1 {status} ");
            assert!(answer.starts_with(&expected), "{kib} KiB, {is_whole}: {answer:.300}");
        }
    }
}

#[test]
fn target_of_another_scheme_is_rejected() {
    let upstream = RawUpstream::new();
    let gateway = Gateway::start(&upstream.target());
    for (target, status) in [
        ("ftp://other/x", 400),
        ("ws://other/x", 400),
        ("http://other/x", 200),
        ("HTTPS://other/x", 200),
    ] {
        let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let answer = exchange(gateway.address, &request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{target}: {answer}");
        assert_eq!(answer.contains("bad-scheme"), status == 400, "{target}: {answer}");
    }
    assert_eq!(upstream.requests().len(), 2);
}

#[test]
fn rejected_methods_list_the_allowed_methods() {
    let gateway = Gateway::start(&RawUpstream::new().target());
    for line in ["TRACE / HTTP/1.1", "CONNECT a:443 HTTP/1.1"] {
        let request = format!("{line}\r\nHost: a\r\nConnection: close\r\n\r\n");
        let answer = exchange(gateway.address, &request);
        assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
        let allow = answer.lines().find_map(|line| line.strip_prefix("allow: "));
        assert_eq!(allow, Some("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"), "{answer}");
    }
}
