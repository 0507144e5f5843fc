//! Connections that switch protocols. `src/tests/upgrades.rs` in tollgate-proxy has cases without
//! sockets.

use tungstenite::Message;

use crate::support::{Gateway, RawUpstream, exchange, listen, until};

/// A WebSocket echo server.
fn echo_server() -> String {
    let address = listen(|stream| {
        let Ok(mut socket) = tungstenite::accept(stream) else { return };
        while let Ok(message) = socket.read() {
            if (message.is_text() || message.is_binary()) && socket.send(message).is_err() {
                return;
            }
        }
    });
    format!("target: http://{address}\n")
}

#[test]
fn websocket_is_tunneled_both_ways() {
    let limit = "client: {limit: 2, windowSeconds: 3600}\n";
    let gateway = Gateway::start(&format!("{}{limit}", echo_server()));
    let url = format!("ws://{}/socket", gateway.address);
    let (mut socket, answer) = tungstenite::connect(&url).unwrap();
    assert_eq!(answer.status(), 101);
    assert_eq!(answer.headers()["x-ratelimit-remaining"], "1");
    for size in [0, 5, 70_000, 1 << 20] {
        let message = Message::binary(vec![7; size]);
        socket.send(message.clone()).unwrap();
        assert_eq!(socket.read().unwrap(), message, "{size} bytes");
    }
    socket.close(None).unwrap();
    while socket.read().is_ok() {}

    // A tunnel counts as a single request and is limited like any request.
    assert!(tungstenite::connect(&url).is_ok());
    match tungstenite::connect(&url) {
        Err(tungstenite::Error::Http(answer)) => assert_eq!(answer.status(), 429),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tunnels_are_limited() {
    let gateway = Gateway::start(&format!("{}maxTunnels: 1\n", echo_server()));
    let url = format!("ws://{}/socket", gateway.address);
    let (mut socket, _) = tungstenite::connect(&url).unwrap();
    match tungstenite::connect(&url) {
        Err(tungstenite::Error::Http(answer)) => {
            assert_eq!(answer.status(), 503);
            let said = String::from_utf8(answer.body().clone().unwrap()).unwrap();
            assert!(said.contains("too-many-tunnels"), "{said}");
        }
        other => panic!("{other:?}"),
    }
    let metrics = gateway.metrics().await;
    assert!(metrics.contains("tollgate_gateway_tunnels 1\n"), "{metrics}");
    // A request that is not upgraded after all does not occupy a tunnel. This is not a WebSocket.
    socket.close(None).unwrap();
    while socket.read().is_ok() {}
    drop(socket);
    let plain = "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade, close\r\nUpgrade: x\r\n\r\n";
    until("the tunnel is closed", async || {
        !exchange(gateway.address, plain).starts_with("HTTP/1.1 503")
    })
    .await;
    assert!(tungstenite::connect(&url).is_ok());
}

/// Some services ignore an upgrade request's length. They would parse its body as another request,
/// which would evade all limits.
#[test]
fn upgrade_with_a_body_is_rejected() {
    let upstream = RawUpstream::new();
    let gateway = Gateway::start(&upstream.target());
    let hidden = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";
    let length = hidden.len();
    let request = format!(
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Content-Length: {length}\r\n\r\n{hidden}"
    );
    // Returns only if the gateway closes the connection.
    let answer = exchange(gateway.address, &request);
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("bad-upgrade"), "{answer}");
    assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{answer}");
    assert_eq!(upstream.requests(), Vec::<String>::new());
}
