//! Connections that switch protocols.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tungstenite::Message;

use crate::support::{Gateway, RawClient, RawUpstream, exchange, until};

/// A WebSocket echo server.
fn echo_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = format!("target: http://{}\n", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let Ok(mut socket) = tungstenite::accept(stream) else { return };
                while let Ok(message) = socket.read() {
                    if (message.is_text() || message.is_binary()) && socket.send(message).is_err() {
                        return;
                    }
                }
            });
        }
    });
    target
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

/// A server that switches to a protocol in which it reads until EOF and then repeats its input.
fn reader_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = format!("target: http://{}\n", listener.local_addr().unwrap());
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
            assert!(head.contains("upgrade: reader/1\r\n"), "{head}");
            assert!(head.contains("connection: upgrade\r\n"), "{head}");
            let switch = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: reader/1\r\n\
                          Connection: upgrade\r\n\r\n";
            stream.write_all(switch.as_bytes()).unwrap();
            let mut heard = String::new();
            stream.read_to_string(&mut heard).unwrap();
            stream.write_all(format!("heard {heard}").as_bytes()).unwrap();
        }
    });
    target
}

const UPGRADE: &str =
    "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: reader/1\r\n\r\n";

#[test]
fn idle_tunnel_is_closed() {
    let gateway = Gateway::start(&format!("{}timeouts: {{tunnel: 200ms}}\n", reader_server()));
    let answer = exchange(gateway.address, UPGRADE);
    assert!(answer.starts_with("HTTP/1.1 101"), "{answer}");
    assert!(answer.ends_with("\r\n\r\n"), "{answer}");
}

#[test]
fn unsolicited_upgrade_is_invalid() {
    let upstream = RawUpstream::answering(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: reader/1\r\nConnection: upgrade\r\n\r\n",
    );
    let gateway = Gateway::start(&format!("target: http://{}\n", upstream.address));
    let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let answer = exchange(gateway.address, request);
    assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
    gateway.until_logged("upgrades to a protocol that the client did not request");
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

/// HTTP/1.0 has no upgrades, so such a request does not occupy a tunnel.
#[test]
fn http_1_0_drops_the_upgrade() {
    let upstream = RawUpstream::new();
    let gateway = Gateway::start(&upstream.target());
    let request = "GET / HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    let answer = exchange(gateway.address, request);
    assert!(answer.starts_with("HTTP/1.1 200") || answer.starts_with("HTTP/1.0 200"), "{answer}");
    let request = upstream.requests().pop().unwrap().to_ascii_lowercase();
    assert!(!request.contains("upgrade"), "{request}");
}

/// A service that has switched protocols would misinterpret the next request.
#[test]
fn upgrade_connection_is_not_reused() {
    let upstream =
        RawUpstream::answering("HTTP/1.1 426 Upgrade Required\r\nContent-Length: 2\r\n\r\nno");
    let gateway = Gateway::start(&upstream.target());
    let mut client = RawClient::new(gateway.address);
    let plain = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    for (request, connections) in [(plain, 1), (plain, 1), (UPGRADE, 2), (plain, 2), (UPGRADE, 3)] {
        let answer = client.ask(request);
        assert!(answer.starts_with("HTTP/1.1 426"), "{answer}");
        assert_eq!(upstream.connections(), connections, "{request}");
    }
}

/// A server that sends this response to any request. The channel reports closed connections.
fn switching_server(answer: &'static str) -> (String, mpsc::Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = format!("target: http://{}\n", listener.local_addr().unwrap());
    let (ended, end) = mpsc::channel();
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer.as_bytes());
            let _ = stream.read_to_end(&mut Vec::new());
            let _ = ended.send(());
        }
    });
    (target, end)
}

#[test]
fn upgrade_to_unrequested_protocol_is_invalid() {
    for (answer, status) in [
        ("HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: other/1\r\n\r\n", "502"),
        ("HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: reader/1, other/1\r\n\r\n", "502"),
        ("HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n", "502"),
        ("HTTP/1.1 101 S\r\nConnection: upgrade\r\n\r\n", "502"),
        ("HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: Reader/1\r\n\r\n", "101"),
    ] {
        let (target, end) = switching_server(answer);
        let gateway = Gateway::start(&target);
        let mut client = RawClient::new(gateway.address);
        let said = client.ask(&UPGRADE.replace("reader/1", "first/1, reader/1"));
        assert!(said.starts_with(&format!("HTTP/1.1 {status}")), "{answer}: {said}");
        if status == "502" {
            assert!(said.contains("upstream-invalid"), "{said}");
            end.recv_timeout(Duration::from_secs(20)).expect("the upstream's connection ends");
            gateway.until_logged("upgrades to a protocol that the client did not request");
        }
    }
}

/// If the upstream declines the upgrade, the client's connection still speaks HTTP.
#[test]
fn declined_upgrade_is_an_ordinary_response() {
    let upstream = RawUpstream::answering(
        "HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\
         Content-Length: 2\r\n\r\nno",
    );
    let gateway = Gateway::start(&format!("target: http://{}\n", upstream.address));
    let mut stream = TcpStream::connect(gateway.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    for _ in 0..2 {
        stream.write_all(UPGRADE.as_bytes()).unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\nno") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            answer.push(byte[0]);
        }
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 426"), "{answer}");
    }
    assert_eq!(upstream.requests().len(), 2);
}
