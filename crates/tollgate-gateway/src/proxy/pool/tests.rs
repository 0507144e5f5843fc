use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http::uri::Scheme;
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tollgate_config::plan::upstream::Endpoint;

use super::*;
use crate::proxy::Clients;
use crate::proxy::sent::Sent;

const LONG: Duration = Duration::from_secs(60);

/// An event that a server sees.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Opened,
    Closed,
}

/// An HTTP/1 server, and the events that it sees.
async fn server() -> (Endpoint, mpsc::UnboundedReceiver<Seen>) {
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
    (endpoint, seen)
}

const fn timeouts(idle: Duration) -> Timeouts {
    Timeouts { connect: LONG, response: LONG, body: LONG, tunnel: LONG, pool: idle }
}

/// A pool for a server with at most `most` connections, and the events that the server sees.
async fn pool(
    most: usize,
    workers: usize,
    idle: Duration,
) -> (Arc<Pool>, mpsc::UnboundedReceiver<Seen>) {
    let (endpoint, seen) = server().await;
    let clients = Clients::new(timeouts(idle), false, most, workers).unwrap();
    (clients.pool(&endpoint, Protocol::Http1).unwrap(), seen)
}

/// A pool for HTTP/2 with at most two connections and two streams per connection. Also counts
/// connections.
async fn http2_pool() -> (Arc<Pool>, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let authority = listener.local_addr().unwrap().to_string().parse().unwrap();
    let endpoint = Endpoint { scheme: Scheme::HTTP, authority, socket: None };
    let connections = Arc::new(AtomicUsize::new(0));
    let opened = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            opened.fetch_add(1, Ordering::Relaxed);
            let answer = service_fn(async |_| {
                Ok::<_, Infallible>(http::Response::new(Full::new(Bytes::from("ok"))))
            });
            let mut server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            server.max_concurrent_streams(2);
            tokio::spawn(server.serve_connection(TokioIo::new(stream), answer));
        }
    });
    let clients = Clients::new(timeouts(LONG), false, 2, 1).unwrap();
    (clients.pool(&endpoint, Protocol::Http2).unwrap(), connections)
}

/// A stream after its response head.
async fn answered(pool: &Arc<Pool>) -> Checkout {
    let mut checkout = pool.checkout().await.unwrap();
    let mut request = Request::new(Sent::default());
    *request.uri_mut() = http::Uri::from_static("http://a/");
    assert!(checkout.send(request, None).await.is_ok());
    checkout
}

async fn use_once(mut checkout: Checkout) {
    let mut request = Request::new(Sent::default());
    request.headers_mut().insert("host", http::HeaderValue::from_static("a"));
    let Ok(response) = checkout.send(request, None).await else { panic!("no response") };
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "ok");
    checkout.release();
}

/// Starts a request that waits for a connection.
async fn waiter(pool: &Arc<Pool>) -> JoinHandle<()> {
    let waiting = tokio::spawn({
        let pool = Arc::clone(pool);
        async move { use_once(pool.checkout().await.unwrap()).await }
    });
    while pool.waiters.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    waiting
}

#[tokio::test]
async fn requests_wait_for_a_used_connection() {
    let (pool, mut seen) = pool(1, 1, LONG).await;
    let first = pool.checkout().await.unwrap();
    let waiting = waiter(&pool).await;
    use_once(first).await;
    waiting.await.unwrap();
    assert_eq!(seen.recv().await, Some(Seen::Opened));
    assert!(seen.try_recv().is_err(), "one connection was enough");
}

#[tokio::test]
async fn closed_connection_makes_room() {
    let (pool, mut seen) = pool(1, 1, LONG).await;
    let first = pool.checkout().await.unwrap();
    let waiting = waiter(&pool).await;
    drop(first);
    waiting.await.unwrap();
    assert_eq!(seen.recv().await, Some(Seen::Opened));
    let rest = [seen.recv().await, seen.recv().await];
    assert!(rest.contains(&Some(Seen::Closed)) && rest.contains(&Some(Seen::Opened)));
    // The idle connection makes room for a request that needs a new connection.
    drop(pool.checkout_new().await.unwrap());
}

#[tokio::test]
async fn frequent_borrower_opens_own_connection() {
    let (pool, mut seen) = pool(10, 2, LONG).await;
    use_once(pool.checkout().await.unwrap()).await;
    become_worker(1);
    for _ in 1..BORROWED {
        use_once(pool.checkout().await.unwrap()).await;
    }
    assert_eq!(seen.recv().await, Some(Seen::Opened));
    assert!(seen.try_recv().is_err());
    for _ in 0..2 * BORROWED {
        use_once(pool.checkout().await.unwrap()).await;
    }
    become_worker(0);
    assert_eq!(seen.recv().await, Some(Seen::Opened));
    assert!(seen.try_recv().is_err(), "it uses its own connection");
}

#[tokio::test]
async fn idle_connection_is_closed() {
    let (pool, mut seen) = pool(10, 1, Duration::from_millis(50)).await;
    use_once(pool.checkout().await.unwrap()).await;
    assert_eq!(seen.recv().await, Some(Seen::Opened));
    assert_eq!(seen.recv().await, Some(Seen::Closed));
    use_once(pool.checkout().await.unwrap()).await;
    assert_eq!(seen.recv().await, Some(Seen::Opened));
}

#[tokio::test]
async fn bound_changes_with_open_connections() {
    let (endpoint, mut seen) = server().await;
    let clients = Clients::new(timeouts(LONG), false, 2, 1).unwrap();
    let pool = clients.pool(&endpoint, Protocol::Http1).unwrap();
    let open = [pool.checkout().await.unwrap(), pool.checkout().await.unwrap()];
    clients.bound(1);
    drop(open);
    let mut closed = 0;
    while closed < 2 {
        closed += usize::from(seen.recv().await.unwrap() == Seen::Closed);
    }
    let only = pool.checkout().await.unwrap();
    assert_eq!(pool.permits.available_permits(), 0);
    clients.bound(3);
    assert_eq!(pool.permits.available_permits(), 2);
    drop(only);
}

#[tokio::test]
async fn requests_wait_for_streams_if_no_connection_is_allowed() {
    let (pool, connections) = http2_pool().await;
    let mut streams = Vec::new();
    for _ in 0..4 {
        streams.push(answered(&pool).await);
    }
    let waiting = tokio::spawn({
        let pool = Arc::clone(&pool);
        async move { answered(&pool).await }
    });
    while pool.waiters.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(connections.load(Ordering::Relaxed), 2);
    streams.pop();
    streams.push(waiting.await.unwrap());
    // Both connections are reused after all streams have ended.
    streams.clear();
    for _ in 0..4 {
        streams.push(answered(&pool).await);
    }
    assert_eq!(connections.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn retired_connection_gets_no_further_requests() {
    let (pool, connections) = http2_pool().await;
    answered(&pool).await.retire();
    drop(answered(&pool).await);
    drop(answered(&pool).await);
    assert_eq!(connections.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn unanswered_ping_ends_a_request() {
    let timeouts = Timeouts { response: Duration::from_secs(3600), ..timeouts(LONG) };
    let clients = Clients::new(timeouts, false, 1, 1).unwrap();
    let authority = http::uri::Authority::from_static("a");
    let endpoint = Endpoint { scheme: Scheme::HTTP, authority, socket: None };
    let pool = clients.pool(&endpoint, Protocol::Http2).unwrap();
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let server = tokio::spawn(async move {
        let mut connection = h2::server::handshake(theirs).await.unwrap();
        let request = connection.accept().await;
        // The connection remains open, but its server is silent.
        std::future::pending::<()>().await;
        drop((connection, request));
    });
    let permit = Arc::clone(&pool.permits).try_acquire_owned().unwrap();
    let (sender, begun) = pool.handshake(TokioIo::new(ours), permit).await.unwrap();
    let (timer, used_at) = (pool.timer(), Instant::now());
    let connection = PooledConnection { sender, begun, timer, home: 0, used_at, _stream: None };
    let mut checkout = pool.fresh(Box::new(connection));
    let mut request = Request::new(Sent::default());
    *request.uri_mut() = http::Uri::from_static("http://a/");
    let started = Instant::now();
    let Err(unanswered) = checkout.send(request, None).await else { panic!("a response") };
    let passed = started.elapsed();
    assert!(passed >= PING + PONG && passed < PING + 2 * PONG, "{passed:?}");
    assert!(
        matches!(&unanswered.error, SendError::Http(error) if error.is_timeout()),
        "{}",
        unanswered.error
    );
    server.abort();
}
