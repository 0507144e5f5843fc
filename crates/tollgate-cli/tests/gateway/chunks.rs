//! A chunked body that is not read. `src/tests/chunks.rs` in tollgate-proxy tests other bodies.

use crate::support::{Gateway, RawClient, RawUpstream, exchange};

const HEAD: &str = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
const NEXT: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

/// The remaining bytes must not be parsed as the next request.
#[test]
fn rejected_body_is_not_parsed_as_a_request() {
    let upstream = RawUpstream::new();
    let limit = "client: {limit: 1, windowSeconds: 3600}\n";
    let gateway = Gateway::start(&format!("{}{limit}", upstream.target()));
    let mut client = RawClient::new(gateway.address);
    let plain = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    assert!(client.ask(plain).starts_with("HTTP/1.1 200"));
    let length = NEXT.len();
    for request in [
        format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{NEXT}"),
        format!("{HEAD}{length:x}\r\n{NEXT}\r\n0\r\n\r\n"),
    ] {
        let answer =
            exchange(gateway.address, &request.replacen("\r\n", "\r\nConnection: close\r\n", 1));
        assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
    }
    assert_eq!(upstream.requests().len(), 1);
}
