//! The gateway's changes to upstreams' headers.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn headers_are_rewritten_in_every_spelling() {
    let upstream = Upstream::answering(|_| {
        let response =
            http::Response::builder().header("server", "secret/1.0").header("x-kept", "1");
        response.body(http_body_util::BodyExt::boxed(http_body_util::Full::from("ok"))).unwrap()
    })
    .await;
    let (_gateway, client) = Gateway::with_client(&format!(
        "target:\n\
        \x20 url: http://{}\n\
        \x20 requestHeaders: {{set: {{X-Role: guest}}, remove: [Authorization]}}\n\
        \x20 responseHeaders: {{set: {{X-Frame-Options: DENY}}, remove: [Server]}}\n",
        upstream.address
    ));
    let answer = client
        .send(
            "GET",
            "/",
            &[
                ("x-role", "admin"),
                ("x_role", "admin"),
                ("authorization", "Bearer a"),
                ("connection", "x-role"),
                ("x-other", "1"),
            ],
            "",
        )
        .await
        .unwrap();
    let seen = upstream.last();
    assert_eq!(seen.headers.get_all("x-role").iter().collect::<Vec<_>>(), ["guest"]);
    for gone in ["x_role", "authorization"] {
        assert!(!seen.headers.contains_key(gone), "{gone}");
    }
    assert_eq!(seen.header("x-other"), "1");
    assert_eq!(answer.header("x-frame-options"), "DENY");
    assert_eq!(answer.header("x-kept"), "1");
    assert!(!answer.headers.contains_key("server"));
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_header_cannot_return_as_trailer() {
    let upstream = Upstream::new().await;
    let gateway = Gateway::start(&format!(
        "target: {{url: 'http://{}', requestHeaders: {{remove: [X-Role]}}}}\n",
        upstream.address
    ));
    let mut client = RawClient::new(gateway.address);
    let answer = client.ask(
        "POST / HTTP/1.1\r\nhost: a\r\nte: trailers\r\ntransfer-encoding: chunked\r\n\
         trailer: x-role, x-sum\r\n\r\n1\r\na\r\n0\r\nx-role: admin\r\nx-sum: 1\r\n\r\n",
    );
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let trailers = upstream.last().trailers.unwrap_or_default();
    assert!(!trailers.contains_key("x-role"), "{trailers:?}");
}
