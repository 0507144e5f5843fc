//! The gateway's changes to upstreams' headers.

use super::*;

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
