//! The way out: SIGTERM while there is work.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};

use crate::support::{Client, Gateway, Upstream};

/// Answers when it is told to.
async fn slow() -> (Upstream, std::sync::mpsc::Sender<()>) {
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let upstream = Upstream::answering(move |seen| {
        if seen.uri.path() == "/slow" {
            let wait = wait.lock().unwrap();
            tokio::task::block_in_place(|| wait.recv().ok());
        }
        http::Response::new(Full::from("ok").boxed())
    });
    (upstream.await, go_on)
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_under_way_are_answered_and_new_connections_refused() {
    let (upstream, go_on) = slow().await;
    let mut gateway = Gateway::start(&upstream.target());
    let mut under_way = tokio::task::JoinSet::new();
    for client in [Client::new(gateway.address), Client::http2(gateway.address)] {
        under_way.spawn(async move { client.get("/slow").await });
    }
    while upstream.seen().len() < 2 {
        tokio::task::yield_now().await;
    }
    gateway.signal("TERM");
    let ready = loop {
        let ready = gateway.admin("/readyz").await;
        if ready.status != 200 {
            break ready;
        }
    };
    assert_eq!((ready.status.as_u16(), &ready.json()["status"]), (503, &"draining".into()));
    assert_eq!(gateway.admin("/healthz").await.status, 200);
    while Client::new(gateway.address).send("GET", "/", &[], "").await.is_ok() {}
    assert!(!gateway.has_ended());
    go_on.send(()).unwrap();
    go_on.send(()).unwrap();
    for answer in under_way.join_all().await {
        assert_eq!((answer.status.as_u16(), &*answer.body), (200, &b"ok"[..]));
    }
    assert!(gateway.wait().success());
    gateway.until_logged("stopped");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_takes_too_long_is_left_behind() {
    let (upstream, go_on) = slow().await;
    let mut gateway = Gateway::start(&format!("{}timeouts: {{drain: 300ms}}\n", upstream.target()));
    let client = Client::new(gateway.address);
    let under_way = tokio::spawn(async move { client.send("GET", "/slow", &[], "").await.is_ok() });
    while upstream.seen().is_empty() {
        tokio::task::yield_now().await;
    }
    let started = Instant::now();
    gateway.signal("TERM");
    assert!(gateway.wait().success());
    assert!(started.elapsed() >= Duration::from_millis(300));
    assert!(started.elapsed() < Duration::from_secs(5));
    assert!(!under_way.await.unwrap());
    gateway.until_logged("stopped with connections open");
    drop(go_on);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_asks_twice_does_not_wait() {
    let (upstream, go_on) = slow().await;
    let mut gateway = Gateway::start(&upstream.target());
    let client = Client::new(gateway.address);
    tokio::spawn(async move { client.send("GET", "/slow", &[], "").await.is_ok() });
    while upstream.seen().is_empty() {
        tokio::task::yield_now().await;
    }
    gateway.signal("TERM");
    while gateway.admin("/readyz").await.status == 200 {}
    gateway.signal("TERM");
    assert!(gateway.wait().success());
    drop(go_on);
}

/// Clients that keep their connections and send one request after the other: none of those
/// they sent may be lost, and they are told to go elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn draining_under_load_fails_no_request() {
    let upstream = Upstream::new().await;
    let mut gateway = Gateway::start(&upstream.target());
    let sent = Arc::new(AtomicUsize::new(0));
    let mut load = tokio::task::JoinSet::new();
    for number in 0..8 {
        let sent = Arc::clone(&sent);
        let address = gateway.address;
        load.spawn(async move {
            let client =
                if number % 2 == 0 { Client::new(address) } else { Client::http2(address) };
            loop {
                match client.send("POST", "/", &[], "body").await {
                    Ok(answer) => {
                        assert_eq!(answer.status, 200);
                        sent.fetch_add(1, Ordering::Relaxed);
                    }
                    // A connection that could not be made: nothing was sent over it.
                    Err(error) if is_refused(&*error) => return,
                    Err(error) => panic!("{error:?}"),
                }
            }
        });
    }
    while sent.load(Ordering::Relaxed) < 500 {
        tokio::task::yield_now().await;
    }
    gateway.signal("TERM");
    load.join_all().await;
    assert!(gateway.wait().success());
}

fn is_refused(error: &(dyn std::error::Error + 'static)) -> bool {
    let error = error.downcast_ref::<hyper_util::client::legacy::Error>();
    error.is_some_and(hyper_util::client::legacy::Error::is_connect)
}

#[tokio::test(flavor = "multi_thread")]
async fn tunnels_are_cut_when_the_time_is_over() {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]);
        let switch =
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n";
        stream.write_all(switch.as_bytes()).unwrap();
        let _ = stream.read(&mut [0]);
    });
    let lines = format!("target: http://{target}\ntimeouts: {{drain: 300ms}}\n");
    let mut gateway = Gateway::start(&lines);
    let mut stream = std::net::TcpStream::connect(gateway.address).unwrap();
    let request = "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
    gateway.signal("TERM");
    assert!(gateway.wait().success());
    gateway.until_logged("tunnels=1");
}
