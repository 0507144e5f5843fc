//! Connections that switch protocols.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::time::Instant;

use super::*;

const UPGRADE: &str =
    "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: first/1, reader/1\r\n\r\n";
const PLAIN: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const DECLINED: &str = "HTTP/1.1 426 Upgrade Required\r\nUpgrade: websocket\r\nConnection: \
                        upgrade\r\nContent-Length: 2\r\n\r\nno";

#[tokio::test(start_paused = true)]
async fn idle_tunnel_is_closed() {
    let answer = "HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: Reader/1\r\n\r\nhello";
    let proxy = Proxy::to(upstream(answer, Then::Hang).0);
    let started = Instant::now();
    let answer = proxy.exchange(UPGRADE).await;
    assert!(answer.starts_with("HTTP/1.1 101") && answer.ends_with("\r\n\r\nhello"), "{answer}");
    assert_eq!(started.elapsed().as_secs(), IDLE.as_secs());
}

#[tokio::test(start_paused = true)]
async fn unrequested_upgrade_is_invalid() {
    for (request, answer) in [
        (UPGRADE, "Connection: upgrade\r\nUpgrade: other/1"),
        (UPGRADE, "Connection: upgrade\r\nUpgrade: reader/1, other/1"),
        (UPGRADE, "Connection: upgrade\r\nUpgrade: h2c"),
        (UPGRADE, "Connection: upgrade"),
        (PLAIN, "Connection: upgrade\r\nUpgrade: reader/1"),
    ] {
        let answer: &'static str = format!("HTTP/1.1 101 S\r\n{answer}\r\n\r\n").leak();
        let answered = Proxy::to(upstream(answer, Then::Hang).0).exchange(request).await;
        assert!(answered.starts_with("HTTP/1.1 502"), "{answer}: {answered}");
        assert!(answered.ends_with(Fault::BadAnswer.code()), "{answered}");
    }
}

/// HTTP/1.0 has no upgrades, so such a request does not occupy a tunnel.
#[tokio::test(start_paused = true)]
async fn http_1_0_drops_the_upgrade() {
    let (upstream, requests) = ok();
    let request = "GET / HTTP/1.0\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
    let answer = Proxy::to(upstream).exchange(request).await;
    assert!(answer.contains(" 200 OK\r\n"), "{answer}");
    let request = requests.lock().pop().unwrap().to_ascii_lowercase();
    assert!(!request.contains("upgrade"), "{request}");
}

/// If the upstream declines, the client's connection still speaks HTTP. The upstream's may not: a
/// service that has switched would misinterpret the next request.
#[tokio::test(start_paused = true)]
async fn declined_upgrade_uses_up_its_connection() {
    let (dial, dials) = (upstream(DECLINED, Then::Send(Duration::ZERO, "")).0, AtomicUsize::new(0));
    let dials = Arc::new(dials);
    let counted = Arc::clone(&dials);
    let mut client = Proxy::to(Arc::new(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        dial()
    }))
    .connect();
    for (request, connections) in [(PLAIN, 1), (PLAIN, 1), (UPGRADE, 2), (PLAIN, 2), (UPGRADE, 3)] {
        client.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\nno") {
            answer.push(client.read_u8().await.unwrap());
        }
        assert!(answer.starts_with(b"HTTP/1.1 426"), "{}", answer.escape_ascii());
        assert_eq!(dials.load(Ordering::Relaxed), connections, "{request}");
    }
}
