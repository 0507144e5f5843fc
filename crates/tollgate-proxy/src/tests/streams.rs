//! HTTP/2 clients that read slowly, or not at all.

use h2::client::SendRequest;
use tokio::time::{Instant, sleep};

use super::*;

const LENGTH: usize = 600_000;
const WINDOW: u32 = 16 << 10;

/// An HTTP/2 client that requests a large response. Each stream has this window.
async fn client(window: u32) -> SendRequest<Bytes> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n");
    let large: &'static str = (head + &"x".repeat(LENGTH)).leak();
    let proxy = Proxy::to(upstream(large, Then::Send(Duration::ZERO, "")).0);
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(window).initial_connection_window_size(1 << 30);
    let (client, connection) = builder.handshake(proxy.connect()).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn get(client: &mut SendRequest<Bytes>) -> h2::RecvStream {
    let request = Request::get("http://a/").body(()).unwrap();
    client.send_request(request, true).unwrap().0.await.unwrap().into_body()
}

#[tokio::test(start_paused = true)]
async fn slowly_read_stream_completes() {
    let mut body = get(&mut client(WINDOW).await).await;
    let (started, mut length) = (Instant::now(), 0);
    while let Some(piece) = body.data().await {
        let bytes = piece.unwrap().len();
        length += bytes;
        // A window lasts for `IDLE`, and a pause may last for twice that time.
        sleep(IDLE * bytes as u32 / WINDOW).await;
        body.flow_control().release_capacity(bytes).unwrap();
    }
    assert_eq!(length, LENGTH);
    assert!(started.elapsed() > 10 * IDLE, "{:?}", started.elapsed());
}

/// A connection never looks idle while its client reads other streams.
#[tokio::test(start_paused = true)]
async fn unread_stream_is_reset() {
    for window in [0, 1, 65_535] {
        let mut client = client(window).await;
        let (started, mut unread) = (Instant::now(), get(&mut client).await);
        let error = loop {
            // Other streams work.
            let request = Request::head("http://a/").body(()).unwrap();
            let other = client.send_request(request, true).unwrap().0.await.unwrap();
            assert_eq!(other.status(), 200);
            // The test never releases capacity, so the stream is reset once its window is full.
            match tokio::time::timeout(IDLE / 4, unread.data()).await {
                Ok(Some(Err(error))) => break error,
                Ok(data) => assert!(data.is_some(), "the response is incomplete"),
                Err(_) => assert!(started.elapsed() < 3 * IDLE, "the stream is still open"),
            }
        };
        assert_eq!(error.reason(), Some(h2::Reason::CANCEL));
        assert_eq!(started.elapsed().as_secs(), 2 * IDLE.as_secs(), "{window}");
    }
}
