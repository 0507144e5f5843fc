//! Headers that untrusted clients forge to impersonate another client.

use crate::support::{Client, Gateway, Outcome, RawHttp2, RawUpstream, Upstream, exchange};

/// Headers that services trust because their proxies set them.
const PROXY_HEADERS: [&str; 20] = [
    "Forwarded",
    "Forwarded-For",
    "X-Forwarded",
    "X-Forwarded-For",
    "X-Forwarded-User",
    "X-Original-Forwarded-For",
    "Client-IP",
    "X-Client-IP",
    "X-Real-IP",
    "X-Cluster-Client-IP",
    "True-Client-IP",
    "CF-Connecting-IP",
    "Fastly-Client-IP",
    "Fly-Client-IP",
    "WL-Proxy-Client-IP",
    "X-Envoy-External-Address",
    "X-Original-URI",
    "X-Original-URL",
    "X-Rewrite-URL",
    "Proxy",
];

#[test]
fn forged_proxy_headers_are_removed() {
    const FORGED: &str = "198.51.100.66";
    let upstream = RawUpstream::new();
    let gateway = Gateway::start(&upstream.target());
    let underscored = PROXY_HEADERS.map(|name| name.replace('-', "_"));
    let names = || PROXY_HEADERS.into_iter().chain(underscored.iter().map(String::as_str));
    let forged: String = names().map(|name| format!("{name}: {FORGED}\r\n")).collect();
    let request = format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{forged}\r\n");
    assert!(exchange(gateway.address, &request).starts_with("HTTP/1.1 200"));
    let mut http2 = RawHttp2::new(gateway.address);
    let lower: Vec<_> = names().map(str::to_ascii_lowercase).collect();
    let head = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "a")];
    let fields = head.into_iter().chain(lower.iter().map(|name| (name.as_str(), FORGED)));
    http2.headers(1, &fields.collect::<Vec<_>>(), true);
    assert_eq!(http2.outcome(1), Outcome::Status(200));
    for request in upstream.requests() {
        assert!(!request.contains(FORGED), "{request}");
        assert!(request.contains("x-forwarded-for: 127.0.0.1\r\n"), "{request}");
    }
    assert_eq!(upstream.requests().len(), 2);
}

/// Services that read `_` as `-` would use these headers to find the end of the body.
#[test]
fn framing_headers_with_underscores_are_removed() {
    let upstream = RawUpstream::new();
    for trusted in ["", "trustedProxies: [loopback]\n"] {
        let gateway = Gateway::start(&format!("{}{trusted}", upstream.target()));
        let answer = exchange(
            gateway.address,
            "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\
             Content_Length: 0\r\nTransfer_Encoding: chunked\r\nProxy_Connection: keep-alive\r\n\
             Keep_Alive: 9\r\nX_Request_Id: 7\r\n\r\nhi",
        );
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let request = upstream.requests().pop().unwrap().to_ascii_lowercase();
        for name in ["content_length", "transfer_encoding", "proxy_connection", "keep_alive"] {
            assert!(!request.contains(name), "{name}: {request}");
        }
        assert!(request.contains("\r\ncontent-length: 2\r\n"), "{request}");
        assert!(request.contains("\r\nx_request_id: 7\r\n"), "{request}");
    }
}

/// The client connects directly, not through a trusted proxy.
#[tokio::test(flavor = "multi_thread")]
async fn forged_address_does_not_change_the_client() {
    let upstream = Upstream::new().await;
    for header in ["", "identity: {key: ipv4, header: X-Forwarded-For}\n"] {
        let limit = "client: {limit: 1, windowSeconds: 3600}\ntrustedProxies: [192.0.2.0/24]\n";
        let (_gateway, client) =
            Gateway::with_client(&format!("{}{limit}{header}", upstream.target()));
        assert_eq!(client.get("/").await.status, 200);
        for (number, name) in PROXY_HEADERS.into_iter().enumerate() {
            let forged = format!("198.51.100.{number}");
            let answer = client.send("GET", "/", &[(name, &forged)], "").await.unwrap();
            assert_eq!(answer.status, 429, "{name}");
        }
        // The last element is the nearest hop, and repeated headers form a single list.
        for lines in [
            &[("x-forwarded-for", "198.51.100.1, 127.0.0.1")][..],
            &[("x-forwarded-for", "198.51.100.2"), ("x-forwarded-for", "198.51.100.3")],
            &[("x-forwarded-for", "198.51.100.4"), ("forwarded", "for=198.51.100.5")],
        ] {
            assert_eq!(client.send("GET", "/", lines, "").await.unwrap().status, 429, "{lines:?}");
        }
    }
}

/// For HTTP/1 the parser enforces the limit.
#[tokio::test(flavor = "multi_thread")]
async fn headers_are_limited_to_a_hundred() {
    let upstream = RawUpstream::new();
    let gateway = Gateway::start(&upstream.target());
    let names: Vec<_> = (0..101).map(|number| format!("x-{number}")).collect();
    let fields: Vec<_> = names.iter().map(|name| (name.as_str(), "1")).collect();
    let (http1, http2) = (Client::new(gateway.address), Client::http2(gateway.address));
    // `Host` counts too. In HTTP/2 it is part of the target.
    for client in [&http1, &http2] {
        let answer = client.send("GET", "/", &fields[..99], "").await.unwrap();
        assert_eq!(answer.status, 200);
        let answer = client.send("GET", "/", &fields[..100], "").await.unwrap();
        assert_eq!(answer.status, 431);
    }
    assert_eq!(upstream.requests().len(), 2);
    // HTTP/2 clients may split `Cookie`, and the gateway joins the parts.
    let cookies: Vec<_> = (0..150).map(|_| ("cookie", "a=1")).collect();
    assert_eq!(http2.send("GET", "/", &cookies, "").await.unwrap().status, 200);
    let request = upstream.requests().pop().unwrap();
    assert_eq!(request.matches("cookie: ").count(), 1, "{request}");
}

/// In HTTP/2, `:authority` is the host, and a different `Host` is an error.
#[test]
fn http2_host_must_match_authority() {
    let upstream = RawUpstream::new();
    let gateway = Gateway::start(&upstream.target());
    let head = [(":method", "GET"), (":scheme", "http"), (":path", "/")];
    for (fields, outcome) in [
        (&[(":authority", "a"), ("host", "a")][..], Outcome::Status(200)),
        (&[("host", "a")], Outcome::Status(200)),
        (&[(":authority", "a"), ("host", "b")], Outcome::Status(400)),
        (&[(":authority", "a"), ("host", "a"), ("host", "a")], Outcome::Status(400)),
        (&[(":authority", "eve@a")], Outcome::Status(400)),
        (&[], Outcome::Status(400)),
    ] {
        let mut http2 = RawHttp2::new(gateway.address);
        http2.headers(1, &[&head[..], fields].concat(), true);
        assert_eq!(http2.outcome(1), outcome, "{fields:?}");
    }
    let hosts = upstream.requests();
    let hosts: Vec<_> = hosts.iter().filter(|it| it.contains("\r\nhost: a\r\n")).collect();
    assert_eq!(hosts.len(), 2, "{hosts:?}");
}
