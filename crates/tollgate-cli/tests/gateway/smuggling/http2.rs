//! Framing headers in HTTP/2, which has other framing.

use super::*;

/// HTTP/2 frames have lengths, and headers that contradict them are aimed at HTTP/1 servers.
#[test]
fn http1_framing_in_http2_is_rejected() {
    let upstream = RawUpstream::new();
    let gateway = Gateway::start(&upstream.target());
    let head = [(":method", "POST"), (":scheme", "http"), (":path", "/"), (":authority", "a")];
    for fields in [
        &[("transfer-encoding", "chunked")][..],
        &[("connection", "close")],
        &[("upgrade", "websocket")],
        &[("content-length", "5"), ("content-length", "6")],
        &[("content-length", "5, 6")],
        &[("content-length", "+5")],
        &[("x", "y\r\nContent-Length: 0")],
        &[("x", "y\nz: 1")],
        &[("x", "y\0")],
        &[("x\r\ny", "z")],
        &[("x: y", "z")],
        &[("X-Upper", "z")],
        &[("", "z")],
    ] {
        let mut http2 = RawHttp2::new(gateway.address);
        http2.headers(1, &[&head[..], fields].concat(), false);
        http2.data(1, b"hello", true);
        let outcome = http2.outcome(1);
        assert!(!matches!(outcome, Outcome::Status(200)), "{fields:?}: {outcome:?}");
    }
    for head in [
        &[(":method", "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\nGET"), head[1], head[2], head[3]],
        &[head[0], head[1], (":path", "/ HTTP/1.1\r\nX: y"), head[3]],
        &[head[0], head[1], (":path", "/a b"), head[3]],
        &[head[0], head[1], (":path", "a"), head[3]],
        &[head[0], head[1], (":path", ""), head[3]],
        &[head[0], head[1], head[2], (":authority", "a\r\nX: y")],
        &[head[0], head[1], head[2], (":authority", "a/b")],
        &[head[0], (":scheme", "http://b/?"), head[2], head[3]],
    ] {
        let mut http2 = RawHttp2::new(gateway.address);
        http2.headers(1, head, true);
        let outcome = http2.outcome(1);
        assert!(!matches!(outcome, Outcome::Status(200)), "{head:?}: {outcome:?}");
    }
    let requests = upstream.requests();
    assert_eq!(requests, Vec::<String>::new());
}

/// The gateway forwards the header before it knows the body, so such a request may reach the
/// upstream. The upstream must not parse any part of the body as another request.
#[test]
fn wrong_length_in_http2_is_not_smuggled() {
    const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    let upstream = RawUpstream::new();
    let gateway = Gateway::start(&upstream.target());
    let longer = (SMUGGLED.len() + 1).to_string();
    let shorter = (SMUGGLED.len() - 1).to_string();
    for length in ["0", &shorter, &longer] {
        let head = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/"),
            (":authority", "a"),
            ("content-length", length),
        ];
        for is_late in [false, true] {
            let before = upstream.heads();
            let mut http2 = RawHttp2::new(gateway.address);
            http2.headers(1, &head, false);
            if is_late {
                let is_there = || (upstream.heads() > before).then_some(());
                until("the head reaches the upstream", Duration::from_secs(20), is_there);
            }
            http2.data(1, SMUGGLED.as_bytes(), true);
            let _ = http2.outcome(1);
        }
    }
    // Reuses an upstream connection, if any is still open.
    let next = "GET /next HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let answer = exchange(gateway.address, next);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let requests = upstream.requests();
    assert!(requests.iter().any(|request| request.starts_with("GET /next")), "{requests:?}");
    for request in requests {
        assert!(!request.starts_with("GET /smuggled"), "{request:?}");
    }
}
