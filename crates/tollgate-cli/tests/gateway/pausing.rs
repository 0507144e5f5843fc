//! HTTP/2 clients that request large responses and do not read them. `src/tests/streams.rs` in
//! tollgate-proxy has the exact times.

use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Ping, Reason};
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::{Client, Gateway, PATIENCE, Upstream, until};

/// More than a connection can buffer.
const LARGE: usize = 8 << 20;

async fn large() -> Upstream {
    let body = Bytes::from(vec![b'x'; LARGE]);
    Upstream::answering(move |_| Response::new(Full::from(body.clone()).boxed())).await
}

/// Opens a connection with this receive window per stream. The client sends pings continuously, so
/// the connection itself is never idle.
async fn connect(gateway: &Gateway, window: u32) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(window).initial_connection_window_size(1 << 30);
    let (sender, mut connection) = builder.handshake(stream).await.unwrap();
    let mut pings = connection.ping_pong().unwrap();
    tokio::spawn(connection);
    tokio::spawn(async move {
        // Runs until the connection closes.
        while pings.ping(Ping::opaque()).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    sender
}

async fn send(sender: &SendRequest<Bytes>, method: &str) -> ResponseFuture {
    let request = Request::builder().method(method).uri("http://a/").body(()).unwrap();
    let mut sender = sender.clone().ready().await.unwrap();
    sender.send_request(request, true).unwrap().0
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_streams_are_reset() {
    for window in [0, 65_535] {
        let upstream = large().await;
        let lines = upstream.with("timeouts: {idle: 500ms}\n");
        let gateway = Gateway::start(&lines);
        let sender = connect(&gateway, window).await;
        let mut paused = Vec::new();
        for _ in 0..100 {
            paused.push(send(&sender, "GET").await);
        }
        let mut bodies = Vec::new();
        for response in paused {
            bodies.push(response.await.unwrap().into_body());
        }
        for mut body in bodies {
            // The test never releases flow-control capacity, so the stream is reset once its window
            // is full.
            let error = loop {
                let data = timeout(PATIENCE, body.data()).await.expect("the stream is still open");
                match data.expect("the response is incomplete") {
                    Ok(_) => {}
                    Err(error) => break error,
                }
            };
            assert_eq!(
                (error.reason(), error.is_reset()),
                (Some(Reason::CANCEL), true),
                "{window}"
            );
        }
        assert_eq!(send(&sender, "HEAD").await.await.unwrap().status(), 200);
        // The responses total 800 MiB.
        println!("window {window}: {} MiB", gateway.peak_memory());
        assert!(gateway.peak_memory() < 120, "{window}: {} MiB", gateway.peak_memory());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_connection_is_closed() {
    use tokio::io::AsyncWriteExt;
    let upstream = large().await;
    let lines = upstream.with("timeouts: {idle: 300ms, requestHeader: 300ms}\n");
    let gateway = Gateway::start(&lines);
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    // Maximal windows and a hundred requests.
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(b"\0\0\x06\x04\0\0\0\0\0\0\x04\x7f\xff\xff\xff");
    bytes.extend(b"\0\0\x04\x08\0\0\0\0\0\x7f\0\0\0");
    for number in 0..100_u8 {
        bytes.extend(b"\0\0\x06\x01\x05\0\0\0");
        bytes.push(2 * number + 1);
        bytes.extend(b"\x82\x86\x84\x01\x01a");
    }
    stream.write_all(&bytes).await.unwrap();
    let open = async || {
        let metrics = gateway.metrics().await;
        let open = metrics.lines().find_map(|it| it.strip_prefix("tollgate_gateway_connections "));
        open.map(str::to_owned)
    };
    upstream.until_seen(100).await;
    until("the connection is closed", async || open().await.as_deref() == Some("0")).await;
    assert!(gateway.peak_memory() < 150, "{} MiB", gateway.peak_memory());
    assert_eq!(Client::new(gateway.address).send("HEAD", "/", &[], "").await.unwrap().status, 200);
}
