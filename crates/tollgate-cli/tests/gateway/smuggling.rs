//! Request smuggling: requests that two servers could delimit differently.

mod http2;

use std::time::Duration;

use tollgate_test_servers::until;

use crate::support::{Gateway, Outcome, RawHttp2, RawUpstream, exchange};

/// A gateway and an upstream that records the requests it receives.
struct Setup {
    upstream: RawUpstream,
    gateway: Gateway,
}

impl Setup {
    fn start() -> Self {
        let upstream = RawUpstream::new();
        let gateway = Gateway::start(&upstream.target());
        Self { upstream, gateway }
    }

    /// Returns the gateway's status line and the requests that reached the upstream.
    fn send(&self, request: &str) -> (String, Vec<String>) {
        let before = self.upstream.requests().len();
        let answer = exchange(self.gateway.address, request);
        let requests = self.upstream.requests().split_off(before);
        (answer.lines().next().unwrap_or_default().to_owned(), requests)
    }

    fn rejects(&self, request: &str) {
        let (status, requests) = self.send(request);
        assert!(status.starts_with("HTTP/1.1 400"), "{request:?}: {status}");
        assert_eq!(requests, Vec::<String>::new(), "{request:?}");
    }
}

#[test]
fn ambiguous_framing_is_rejected() {
    let setup = Setup::start();
    let post = "POST / HTTP/1.1\r\nHost: a\r\n";
    for fields in [
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5, 5\r\n",
        "Content-Length: 5, 6\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: -5\r\n",
        "Content-Length: 0x5\r\n",
        "Content-Length: 5 \r\nContent-Length : 5\r\n",
        "Content-Length: 99999999999999999999\r\n",
        "Transfer-Encoding: gzip\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Transfer-Encoding:\x0bchunked\r\n",
    ] {
        setup.rejects(&format!("{post}{fields}\r\nhello"));
    }
    setup.rejects("POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
}

#[test]
fn malformed_head_is_rejected() {
    let setup = Setup::start();
    for head in [
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a@b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n folded: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX-A: b\rc\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX A: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX-A: b\0\r\n\r\n",
        "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET * HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        "GET a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        "GET /a\\b HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    ] {
        setup.rejects(head);
    }
}

/// Servers disagree about the end of these requests.
#[test]
fn framing_headers_are_rewritten() {
    let upstream = RawUpstream::new();
    let gateway = Gateway::start(&upstream.target());
    let next = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    let rest = format!("0\r\n\r\n{next}");
    let all = format!("Content-Length: {}", rest.len());
    let lengths = ["Content-Length: 4", "Content-Length: 0", &all];
    let encodings = [
        "Transfer-Encoding: chunked",
        "transfer-encoding: Chunked",
        "Transfer-Encoding:chunked",
        "Transfer-Encoding:\tchunked",
        "Transfer-Encoding:  chunked  ",
        "Transfer-Encoding: chunked\t",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding\t: chunked",
        " Transfer-Encoding: chunked",
        "Transfer-Encoding:\r\n chunked",
        "Transfer-Encoding\r\n : chunked",
        "X: y\nTransfer-Encoding: chunked",
        "X: y\rTransfer-Encoding: chunked",
        "X: y\0\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: x chunked",
        "Transfer-Encoding: chunked x",
        "Transfer-Encoding: chunked;q=1",
        "Transfer-Encoding: \"chunked\"",
        "Transfer-Encoding: 'chunked'",
        "Transfer-Encoding: ,chunked",
        "Transfer-Encoding: chunked,",
        "Transfer-Encoding: identity, chunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: cow, chunked",
        "Transfer-Encoding: \x0bchunked",
        "Transfer-Encoding: chunked\x0b",
        "Transfer-Encoding: chunk\u{212a}ed",
        "Transfer-Encoding:",
        "Transfer-Encoding: chunked\r\nTransfer-encoding: cow",
        "Transfer-Encoding: cow\r\nTransfer-Encoding: chunked",
        "Transfer_Encoding: chunked",
        "Transfer-Encoding\0: chunked",
        "Content-Encoding: chunked",
        "Connection: Transfer-Encoding\r\nTransfer-Encoding: chunked",
        "Connection: Content-Length",
        "Content-Length: 5",
        "Content-Length: 4, 5",
        "Content-Length: 4 5",
        "Content-Length: 4;5",
        "Content-Length: \"4\"",
        "Content-Length: 04",
        "Content-Length: 4.0",
        "Content-Length: 4e0",
        "Content-Length: ４",
        "Content-Length:",
        "Content-Length : 4",
        "Content-Length:\r\n 4",
        "Content-Length: 18446744073709551620",
        "Content_Length: 5",
        "Host: b",
        "Host : b",
    ];
    for (length, encoding) in lengths.iter().flat_map(|it| encodings.map(|other| (it, other))) {
        for fields in [format!("{length}\r\n{encoding}"), format!("{encoding}\r\n{length}")] {
            let head =
                format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\nConnection: close\r\n\r\n");
            exchange(gateway.address, &format!("{head}{rest}"));
        }
    }
    for request in upstream.requests() {
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        let head = head.to_ascii_lowercase();
        assert!(head.starts_with("post / http/1.1\r\n"), "{request:?}");
        assert!(!head.contains(['\0', '\x0b']) && !head.contains("smuggled"), "{request:?}");
        let framing: Vec<_> = head
            .split("\r\n")
            .filter(|line| {
                let name = line.split(':').next().unwrap().trim().replace('_', "-");
                name == "content-length" || name == "transfer-encoding"
            })
            .collect();
        match framing[..] {
            ["transfer-encoding: chunked"] => assert_eq!(body, "0\r\n\r\n", "{request:?}"),
            [length] => {
                let length = length.strip_prefix("content-length: ").unwrap();
                assert_eq!(length.parse(), Ok(body.len()), "{request:?}");
                assert!(length.bytes().all(|byte| byte.is_ascii_digit()), "{request:?}");
            }
            _ => panic!("{framing:?} in {request:?}"),
        }
    }
    // Valid spellings must be forwarded.
    assert!(upstream.requests().len() > 20, "{}", upstream.requests().len());
}

/// Header lines may end with a bare line feed, which RFC 9112, nginx and Go allow too. Servers
/// disagree about such lines, so the service must never receive any.
#[test]
fn bare_line_feeds_are_not_forwarded() {
    let setup = Setup::start();
    for (request, is_valid) in [
        ("GET / HTTP/1.1\nHost: a\nConnection: close\n\n", true),
        ("GET / HTTP/1.1\r\nHost: a\nX: y\r\nConnection: close\r\n\r\n", true),
        ("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\n", true),
        ("GET / HTTP/1.1\r\nHost: a\rX: y\r\nConnection: close\r\n\r\n", false),
        ("GET / HTTP/1.1\rHost: a\r\nConnection: close\r\n\r\n", false),
        ("GET / HTTP/1.1\r\nHost: a\r\nX\n: y\r\nConnection: close\r\n\r\n", false),
        ("GET /\r\n HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", false),
        ("\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", true),
    ] {
        let (status, requests) = setup.send(request);
        let expected = if is_valid { "HTTP/1.1 200 " } else { "HTTP/1.1 400 " };
        assert!(status.starts_with(expected), "{request:?}: {status}");
        assert_eq!(requests.len(), usize::from(is_valid), "{request:?}");
        for request in requests {
            assert!(!request.replace("\r\n", "").contains(['\r', '\n']), "{request:?}");
            assert!(request.ends_with("\r\n\r\n"), "{request:?}");
        }
    }
}

/// RFC 9112 §6.3 allows a server to reject such a request or to ignore the length.
#[test]
fn length_beside_an_encoding_is_dropped() {
    let setup = Setup::start();
    for fields in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        "Transfer-Encoding: CHUNKED\r\nContent-Length: 100\r\n",
    ] {
        let body = "2\r\nhi\r\n0\r\n\r\n";
        let next = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
        let (status, requests) =
            setup.send(&format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n{body}{next}"));
        assert!(status.starts_with("HTTP/1.1 200"), "{fields:?}: {status}");
        // The connection is closed, so the bytes that follow are not parsed as a request.
        let [request] = &requests[..] else { panic!("{fields:?}: {requests:?}") };
        let request = request.to_ascii_lowercase();
        assert!(request.contains("transfer-encoding: chunked\r\n"), "{request}");
        assert!(!request.contains("content-length"), "{request}");
        assert!(request.ends_with("\r\n\r\n2\r\nhi\r\n0\r\n\r\n"), "{request}");
    }
}

/// The gateway removes `Transfer-Encoding`, so the upstream could not decode the body.
#[test]
fn other_transfer_codings_are_rejected() {
    let setup = Setup::start();
    for fields in [
        "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: chunked, chunked\r\n",
        "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
    ] {
        let next = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
        let (status, requests) = setup
            .send(&format!("POST / HTTP/1.1\r\nHost: a\r\n{fields}\r\n2\r\nhi\r\n0\r\n\r\n{next}"));
        assert!(status.starts_with("HTTP/1.1 501"), "{fields:?}: {status}");
        assert_eq!(requests, Vec::<String>::new(), "{fields:?}");
    }
}

#[test]
fn equal_lengths_are_merged() {
    let (_, requests) = Setup::start().send(
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\
         Connection: close\r\n\r\nhello",
    );
    let [request] = &requests[..] else { panic!("{requests:?}") };
    assert_eq!(request.to_ascii_lowercase().matches("content-length").count(), 1, "{request}");
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let upstream = RawUpstream::new();
    let gateway = Gateway::start(&format!("target: http://{}\n", upstream.address));
    let answer = exchange(
        gateway.address,
        "GET /1 HTTP/1.1\r\nHost: a\r\n\r\nPOST /2 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi\
         GET /3 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    );
    assert_eq!(answer.matches("HTTP/1.1 200 OK").count(), 3, "{answer}");
    let paths: Vec<_> =
        upstream.requests().iter().map(|it| it.split(' ').nth(1).unwrap().to_owned()).collect();
    assert_eq!(paths, ["/1", "/2", "/3"]);
}

/// RFC 9112 gives `Transfer-Encoding` precedence.
#[test]
fn response_length_beside_an_encoding_is_dropped() {
    let upstream = RawUpstream::answering(
        "HTTP/1.1 200 OK\r\nContent-Length: 50\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
    );
    let gateway = Gateway::start(&format!("target: http://{}\n", upstream.address));
    let answer =
        exchange(gateway.address, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let answer = answer.to_ascii_lowercase();
    assert!(answer.starts_with("http/1.1 200") && !answer.contains("content-length"), "{answer}");
    assert!(answer.ends_with("\r\n\r\n2\r\nhi\r\n0\r\n\r\n"), "{answer}");
}

/// Clients would disagree about the end of the response.
#[test]
fn response_with_two_lengths_is_invalid() {
    for fields in [
        "Content-Length: 2\r\nContent-Length: 3\r\n",
        "Content-Length: 2, 3\r\n",
        "Content-Length: +2\r\n",
        "Content-Length: 2x\r\n",
    ] {
        let answer = format!("HTTP/1.1 200 OK\r\n{fields}\r\nhi!");
        let upstream = RawUpstream::closing(answer.leak());
        let gateway = Gateway::start(&upstream.target());
        let answer =
            exchange(gateway.address, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 502"), "{fields}: {answer}");
    }
}
