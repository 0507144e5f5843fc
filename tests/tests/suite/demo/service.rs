//! The parts of the demo around the limiter.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::support::Replica;
use tollgate_test_servers::http::Client;

/// A replica without remaining units.
async fn spent(flags: &[&str]) -> (Replica, Client) {
    let replica = Replica::start(&[&["--limit", "1", "--costs", "one"], flags].concat());
    let client = replica.client();
    assert_eq!(client.get("/items").await.status, 200);
    (replica, client)
}

#[tokio::test]
async fn health_check_is_exempt() {
    let (_replica, client) = spent(&[]).await;
    assert_eq!(client.get("/items").await.status, 429);
    let answer = client.get("/healthz").await;
    assert_eq!((answer.status.as_u16(), answer.header("ratelimit")), (200, ""));
}

#[tokio::test]
async fn all_responses_name_the_server() {
    let (_replica, client) = spent(&["--server-id", "api2"]).await;
    let denied = client.get("/items").await;
    assert_eq!(denied.status, 429);
    assert_eq!(denied.json()["server_id"], "api2");
    assert_eq!(denied.header("content-type"), "application/problem+json");
    let head = client.send("HEAD", "/items", &[], "").await.unwrap();
    let preflight = [("origin", "https://a.example"), ("access-control-request-method", "PUT")];
    let preflight = client.send("OPTIONS", "/items", &preflight, "").await.unwrap();
    for (answer, status) in [
        (denied, 429),
        (head, 429),
        (preflight, 200),
        (client.get("/healthz").await, 200),
        (client.send("POST", "/healthz", &[], "").await.unwrap(), 405),
    ] {
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("x-server-id"), "api2", "{status}");
        assert!(answer.header("x-request-id").starts_with("api2-"), "{status}");
    }
    let numbered = client.get_with("/items", &[("x-request-id", "mine")]).await;
    assert_eq!(numbered.header("x-request-id"), "mine");
}

#[tokio::test]
async fn preflight_is_free() {
    let replica = Replica::start(&[]);
    let client = replica.client();
    let preflight = [("origin", "https://a.example"), ("access-control-request-method", "SEARCH")];
    let answer = client.send("OPTIONS", "/items", &preflight, "").await.unwrap();
    assert_eq!(answer.status, 200);
    let methods = answer.header("access-control-allow-methods");
    assert!(methods.contains("SEARCH") && methods.contains("DELETE"), "{methods}");
    assert_eq!(client.get("/items").await.header("x-ratelimit-remaining"), "99");
}

#[tokio::test]
async fn scripts_can_read_denials() {
    let (_replica, client) = spent(&[]).await;
    let answer = client.get_with("/items", &[("origin", "https://a.example")]).await;
    assert_eq!(answer.status, 429);
    assert_eq!(answer.header("access-control-allow-origin"), "*");
    let exposed = answer.header("access-control-expose-headers").to_lowercase();
    for name in answer.headers.keys().map(http::HeaderName::as_str) {
        let is_of_the_limiter = name.contains("ratelimit") || name == "retry-after";
        assert!(!is_of_the_limiter || exposed.split(',').any(|it| it == name), "{name}: {exposed}");
    }
    assert!(exposed.contains("retry-after") && exposed.contains("x-server-id"), "{exposed}");
}

#[tokio::test]
async fn shutdown_finishes_requests_in_flight() {
    let mut replica = Replica::start(&[]);
    let mut stream = TcpStream::connect(replica.address).await.unwrap();
    let body = r#"{"name":"last"}"#;
    let head = format!(
        "POST /items HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nExpect: 100-continue\r\n\r\n",
        body.len(),
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // The server sends this when the handler reads the body, so the request is in flight now.
    let mut go_on = [0; b"HTTP/1.1 100 Continue\r\n\r\n".len()];
    stream.read_exact(&mut go_on).await.unwrap();
    assert!(go_on.starts_with(b"HTTP/1.1 100"));

    replica.terminate();
    while TcpStream::connect(replica.address).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stream.write_all(body.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 201 Created\r\n"), "{answer}");
    assert_eq!(replica.wait().code(), Some(0));
}
