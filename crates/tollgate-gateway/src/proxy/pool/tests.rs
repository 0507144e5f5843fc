use std::time::Duration;

use http::Request;
use http::uri::Scheme;
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::*;
use crate::proxy::body::Sent;
use crate::proxy::{Clients, Endpoint};

const LONG: Duration = Duration::from_secs(60);

/// An event that a server sees.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Opened,
    Closed,
}

/// The pool of a server with at most `most` connections, and the events that the server sees.
async fn pool(
    most: usize,
    workers: usize,
    idle: Duration,
) -> (Arc<Pool>, mpsc::UnboundedReceiver<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let authority = listener.local_addr().unwrap().to_string().parse().unwrap();
    let endpoint = Endpoint { scheme: Scheme::HTTP, authority, socket: None };
    let (sees, seen) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let sees = sees.clone();
            sees.send(Seen::Opened).unwrap();
            tokio::spawn(async move {
                while stream.read(&mut [0; 1024]).await.is_ok_and(|read| read > 0) {
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                    stream.write_all(answer).await.unwrap();
                }
                let _ = sees.send(Seen::Closed);
            });
        }
    });
    let timeouts = Timeouts { connect: LONG, response: LONG, body: LONG, tunnel: LONG, pool: idle };
    let clients = Clients::new(timeouts, false, most, workers).unwrap();
    (clients.pool(&endpoint, Protocol::Http1).unwrap(), seen)
}

async fn use_once(mut lease: Lease) {
    let mut request = Request::new(Sent::default());
    request.headers_mut().insert("host", http::HeaderValue::from_static("a"));
    let Ok(response) = lease.send(request, None).await else { panic!("no response") };
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "ok");
    lease.release();
}

#[tokio::test]
async fn a_request_waits_for_a_connection_that_another_request_uses() {
    let (pool, mut seen) = pool(1, 1, LONG).await;
    let first = pool.lease().await.unwrap();
    let waiting = tokio::spawn({
        let pool = Arc::clone(&pool);
        async move { use_once(pool.lease().await.unwrap()).await }
    });
    while pool.waiters.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    use_once(first).await;
    waiting.await.unwrap();
    assert_eq!(seen.recv().await, Some(Seen::Opened));
    assert!(seen.try_recv().is_err(), "one connection was enough");
}

#[tokio::test]
async fn a_connection_that_ends_makes_room_for_another_one() {
    let (pool, mut seen) = pool(1, 1, LONG).await;
    let first = pool.lease().await.unwrap();
    let waiting = tokio::spawn({
        let pool = Arc::clone(&pool);
        async move { use_once(pool.lease().await.unwrap()).await }
    });
    while pool.waiters.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    drop(first);
    waiting.await.unwrap();
    assert_eq!(seen.recv().await, Some(Seen::Opened));
    let rest = [seen.recv().await, seen.recv().await];
    assert!(rest.contains(&Some(Seen::Closed)) && rest.contains(&Some(Seen::Opened)));
    // The connection that is kept makes room for a request that needs a new one.
    drop(pool.lease_new().await.unwrap());
}

#[tokio::test]
async fn a_worker_that_borrows_often_gets_a_connection_of_its_own() {
    let (pool, mut seen) = pool(10, 2, LONG).await;
    use_once(pool.lease().await.unwrap()).await;
    become_worker(1);
    for _ in 1..BORROWED {
        use_once(pool.lease().await.unwrap()).await;
    }
    assert_eq!(seen.recv().await, Some(Seen::Opened));
    assert!(seen.try_recv().is_err());
    for _ in 0..2 * BORROWED {
        use_once(pool.lease().await.unwrap()).await;
    }
    become_worker(0);
    assert_eq!(seen.recv().await, Some(Seen::Opened));
    assert!(seen.try_recv().is_err(), "it uses its own");
}

#[tokio::test]
async fn a_connection_that_is_not_used_is_closed() {
    let (pool, mut seen) = pool(10, 1, Duration::from_millis(50)).await;
    use_once(pool.lease().await.unwrap()).await;
    assert_eq!(seen.recv().await, Some(Seen::Opened));
    assert_eq!(seen.recv().await, Some(Seen::Closed));
    use_once(pool.lease().await.unwrap()).await;
    assert_eq!(seen.recv().await, Some(Seen::Opened));
}
