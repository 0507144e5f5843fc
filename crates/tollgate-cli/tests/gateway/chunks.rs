//! Chunked bodies that two servers could delimit differently.

use crate::support::{Gateway, RawClient, RawUpstream, Upstream, exchange};

const HEAD: &str = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
const NEXT: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

/// The service must also see an aborted request, not a complete one with a shorter body.
#[tokio::test(flavor = "multi_thread")]
async fn invalid_chunks_abort_request_and_connection() {
    let upstream = Upstream::new().await;
    // The idle timeout is short because the gateway waits for the remaining bytes.
    let gateway = Gateway::start(&upstream.with("timeouts: {idle: 300ms}\n"));
    let long = format!("5;{}\r\nhello\r\n0\r\n\r\n", "a".repeat(100_000));
    for body in [
        // Sizes that are invalid or overflow an integer.
        "FFFFFFFFFFFFFFFF\r\nhello\r\n0\r\n\r\n",
        "10000000000000005\r\nhello\r\n0\r\n\r\n",
        "100000000000000000000000000000005\r\nhello\r\n0\r\n\r\n",
        "-5\r\nhello\r\n0\r\n\r\n",
        "+5\r\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "5h\r\nhello\r\n0\r\n\r\n",
        "5 5\r\nhello\r\n0\r\n\r\n",
        "5_0\r\nhello\r\n0\r\n\r\n",
        "\r\nhello\r\n0\r\n\r\n",
        ";ext\r\nhello\r\n0\r\n\r\n",
        "５\r\nhello\r\n0\r\n\r\n",
        // Line endings that only some servers accept.
        "5\nhello\r\n0\r\n\r\n",
        "5\rhello\r\n0\r\n\r\n",
        "5\r\rhello\r\n0\r\n\r\n",
        "5\r\nhello\n0\r\n\r\n",
        "5\r\nhello\r0\r\n\r\n",
        "5\r\nhello0\r\n\r\n",
        "5\r\nhelloo\r\n0\r\n\r\n",
        "5\r\nhello\r\n0\r\nX",
        "5;a\nb\r\nhello\r\n0\r\n\r\n",
        "5;a\"\n\"\r\nhello\r\n0\r\n\r\n",
        &long,
        // Invalid trailers.
        "5\r\nhello\r\n0\r\nX Y: 1\r\n\r\n",
        "5\r\nhello\r\n0\r\n folded: 1\r\n\r\n",
        "5\r\nhello\r\n0\r\nX: 1\rContent-Length: 5\r\n\r\n",
    ] {
        let answer = exchange(gateway.address, &format!("{HEAD}{body}{NEXT}"));
        assert!(!answer.contains(" 200 "), "{body:?}: {answer}");
        assert!(answer.matches("HTTP/1.1 ").count() <= 1, "{body:?}: {answer}");
    }
    assert_eq!(upstream.seen().len(), 0, "{:?}", upstream.seen());
}

/// Clients can spell sizes and extensions in many ways, but the service only sees a canonical form.
#[test]
fn chunks_are_forwarded_in_canonical_form() {
    let upstream = RawUpstream::new();
    let gateway = Gateway::start(&upstream.target());
    for body in [
        "5\r\nhello\r\n0\r\n\r\n",
        "0000000000000005\r\nhello\r\n000\r\n\r\n",
        "5;ext\r\nhello\r\n0;last\r\n\r\n",
        "5;a=\"\r\r\"\r\nhello\r\n0\r\n\r\n",
        "5 \r\nhello\r\n0\r\n\r\n",
    ] {
        let answer = exchange(
            gateway.address,
            &format!("{HEAD}{body}").replacen("\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1),
        );
        let Some(request) = upstream.requests().pop() else {
            assert!(answer.starts_with("HTTP/1.1 400"), "{body:?}: {answer}");
            continue;
        };
        assert!(request.ends_with("\r\n\r\n5\r\nhello\r\n0\r\n\r\n"), "{body:?}: {request:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sensitive_request_trailers_are_dropped() {
    let upstream = Upstream::new().await;
    for protocol in ["http1", "http2"] {
        let target = format!("{{url: 'http://{}', protocol: {protocol}}}", upstream.address);
        let identity = "{key: ip, header: X-Balancer-Ip}";
        let gateway = Gateway::start(&format!("target: {target}\nidentity: {identity}\n"));
        let names = [
            "content-length",
            "content_length",
            "transfer-encoding",
            "transfer_encoding",
            "host",
            "x-forwarded-for",
            "x_forwarded_for",
            "forwarded",
            "client-ip",
            "x-balancer-ip",
            "x_balancer_ip",
            "x-original-url",
            "x-original-uri",
            "proxy",
            "via",
            "x-end",
        ];
        let trailers: String = names.map(|name| format!("{name}: 5\r\n")).concat();
        let request = format!(
            "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTrailer: {}\r\n\
             Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n{trailers}\r\n",
            names.join(", ")
        );
        let answer = exchange(gateway.address, &request);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let seen = upstream.last();
        let trailers = seen.trailers.unwrap_or_default();
        let left: Vec<_> = trailers.keys().map(http::HeaderName::as_str).collect();
        assert_eq!(left, ["x-end"], "{protocol}");
        assert_eq!(&*seen.body, b"hello");
    }
}

/// HTTP/2 forbids these trailers, so forwarding them would abort the response.
#[tokio::test(flavor = "multi_thread")]
async fn framing_trailers_of_responses_are_dropped() {
    let upstream = RawUpstream::answering(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nConnection: x\r\n\
         Transfer-Encoding: chunked\r\nContent-Length: 5\r\nX-Sum: 7\r\n\r\n",
    );
    let gateway = Gateway::start(&upstream.target());
    let stream = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::get(format!("http://{}/", gateway.address)).body(()).unwrap();
    let (answer, _) = client.send_request(request, true).unwrap();
    let mut body = answer.await.unwrap().into_body();
    assert_eq!(body.data().await.unwrap().unwrap(), "ok");
    let trailers = body.trailers().await.unwrap().unwrap();
    assert_eq!(trailers.keys().map(http::HeaderName::as_str).collect::<Vec<_>>(), ["x-sum"]);
}

#[test]
fn too_many_trailers_are_rejected() {
    let upstream = RawUpstream::new();
    let gateway = Gateway::start(&upstream.target());
    let many: String = (0..200).map(|number| format!("x-{number}: 1\r\n")).collect();
    let large = format!("x: {}\r\n", "a".repeat(200_000));
    for trailers in [many, large] {
        let request = format!("{HEAD}5\r\nhello\r\n0\r\n{trailers}\r\n{NEXT}");
        let answer = exchange(gateway.address, &request);
        assert!(!answer.contains(" 200 "), "{answer}");
    }
    assert_eq!(upstream.requests(), Vec::<String>::new());
}

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
