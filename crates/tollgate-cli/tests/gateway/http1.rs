//! HTTP/1 clients that close their side early or send large heads. `src/tests/http1.rs` in
//! tollgate-proxy has lengths and old versions.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};

use crate::support::{Client, Gateway, PATIENCE, RawUpstream, Upstream, until};

/// Sends these bytes and then closes the sending side.
fn half_closing(address: SocketAddr, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    stream
}

fn read(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn half_closing_client_receives_its_response() {
    let (upstream, answers) = Upstream::gated("/slow").await;
    let (gateway, client) = Gateway::with_client(&upstream.target());
    for (index, request) in [
        "GET /slow HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /slow HTTP/1.0\r\n\r\n",
        "POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
        "POST /slow HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "GET /slow HTTP/1.1\r\nHost: a\r\n\r\nGET /slow HTTP/1.1\r\nHost: a\r\n\r\n",
    ]
    .into_iter()
    .enumerate()
    {
        let stream = half_closing(gateway.address, request);
        upstream.until_seen(2 * index + 1).await;
        // This gives the gateway time to notice the end of the client's bytes.
        assert_eq!(client.get("/").await.status, 200);
        let count = request.matches(" HTTP/1.").count();
        answers.add_permits(count);
        let answer = tokio::task::spawn_blocking(|| read(stream)).await.unwrap();
        assert_eq!(answer.matches(" 200 OK\r\n").count(), count, "{request:?}: {answer}");
        assert!(answer.ends_with("\r\n\r\nok"), "{request:?}: {answer}");
    }
}

#[test]
fn half_closing_health_check_is_answered() {
    let gateway = Gateway::start(&RawUpstream::new().target());
    // The end of the client's bytes may arrive before or after the gateway reads the request.
    for _ in 0..50 {
        let answer = read(half_closing(gateway.admin, "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnected_client_is_given_up() {
    let (upstream, _answers) = Upstream::gated("/slow").await;
    let lines = upstream.with("accessLog: {file: access.log, format: combined}\n");
    let gateway = Gateway::start(&lines);
    let mut stream = TcpStream::connect(gateway.address).unwrap();
    stream.write_all(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    upstream.until_seen(1).await;
    drop(stream);
    until("the request is given up", async || {
        std::fs::read_to_string(gateway.file("access.log")).is_ok_and(|log| log.contains(" 499 "))
    })
    .await;
}

/// Sends a head with this size, in a single piece or in two pieces.
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

/// A client that waits for `100 Continue` sends no body if its request is denied.
#[tokio::test(flavor = "multi_thread")]
async fn denied_request_may_not_continue() {
    let upstream = Upstream::new().await;
    let (gateway, client) =
        Gateway::with_client(&upstream.with("client: {limit: 1, window: 1h}\n"));
    assert_eq!(client.get("/").await.status, 200);
    let head =
        "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 99999\r\n\r\n";
    let answer = read(half_closing(gateway.address, head));
    assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
}
