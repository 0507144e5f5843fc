//! Chunked bodies that two servers could delimit differently.

use super::*;

const HEAD: &str = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
const CLOSE: &str =
    "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
const NEXT: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

/// The service must also see an aborted request, not a complete one with a shorter body.
#[tokio::test(start_paused = true)]
async fn invalid_chunks_abort_request_and_connection() {
    let (upstream, requests) = ok();
    let proxy = Proxy::to(upstream);
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
        let answer = proxy.exchange(format!("{HEAD}{body}{NEXT}")).await;
        assert!(!answer.contains(" 200 "), "{body:?}: {answer}");
        assert!(answer.matches("HTTP/1.1 ").count() <= 1, "{body:?}: {answer}");
    }
    assert_eq!(*requests.lock(), Vec::<String>::new());
}

/// Clients can spell sizes and extensions in many ways, but the service only sees a canonical form.
#[tokio::test(start_paused = true)]
async fn chunks_are_forwarded_in_canonical_form() {
    let (upstream, requests) = ok();
    let proxy = Proxy::to(upstream);
    for (body, is_valid) in [
        ("5\r\nhello\r\n0\r\n\r\n", true),
        ("0000000000000005\r\nhello\r\n000\r\n\r\n", true),
        ("5;ext\r\nhello\r\n0;last\r\n\r\n", true),
        ("5;a=\"\r\r\"\r\nhello\r\n0\r\n\r\n", false),
        ("5 \r\nhello\r\n0\r\n\r\n", true),
    ] {
        let answer = proxy.exchange(format!("{CLOSE}{body}")).await;
        let request = requests.lock().pop();
        assert_eq!(request.is_some(), is_valid, "{body:?}: {answer}");
        match request {
            Some(request) => {
                assert!(request.ends_with("\r\n\r\n5\r\nhello\r\n0\r\n\r\n"), "{request:?}");
            }
            None => assert!(answer.starts_with("HTTP/1.1 400"), "{body:?}: {answer}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn sensitive_request_trailers_are_dropped() {
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
    let (upstream, requests) = ok();
    let request = format!(
        "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTrailer: {}\r\n\
         Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n{trailers}\r\n",
        names.join(", ")
    );
    let answer = Proxy::to(upstream).exchange(request).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let seen = requests.lock().pop().unwrap();
    assert!(seen.ends_with("\r\n\r\n5\r\nhello\r\n0\r\nx-end: 5\r\n\r\n"), "{seen}");
}

/// HTTP/2 forbids these trailers, so forwarding them would abort the response.
#[tokio::test(start_paused = true)]
async fn framing_trailers_of_responses_are_dropped() {
    let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nConnection: \
                  x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\nX-Sum: 7\r\n\r\n";
    let proxy = Proxy::to(upstream(answer, Then::Hang).0);
    let request = Request::get("http://a/").body(()).unwrap();
    let (answer, _) = http2(&proxy).await.send_request(request, true).unwrap();
    let mut body = answer.await.unwrap().into_body();
    assert_eq!(body.data().await.unwrap().unwrap(), "ok");
    let trailers = body.trailers().await.unwrap().unwrap();
    assert_eq!(trailers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-sum"]);
}

#[tokio::test(start_paused = true)]
async fn too_many_trailers_are_rejected() {
    let (upstream, requests) = ok();
    let proxy = Proxy::to(upstream);
    let many: String = (0..200).map(|number| format!("x-{number}: 1\r\n")).collect();
    let large = format!("x: {}\r\n", "a".repeat(200_000));
    for trailers in [many, large] {
        let answer = proxy.exchange(format!("{HEAD}5\r\nhello\r\n0\r\n{trailers}\r\n{NEXT}")).await;
        assert!(!answer.contains(" 200 "), "{answer}");
    }
    assert_eq!(*requests.lock(), Vec::<String>::new());
}
