mod age;

use std::convert::Infallible;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use crate::settings::{Connections, Endpoint};
use bytes::Bytes;
use http::Request;
use http::uri::Scheme;
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

use super::idle::BORROWED;
use super::*;
use crate::Clients;
use crate::body::sent::Sent;
use crate::head::connection::Connection;
use crate::upstream::addresses::tests::controlled;
use crate::upstream::connector::Connectors;

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

/// A pool for a server with at most `most` connections, and the events that the server sees.
async fn pool(
    most: usize,
    workers: usize,
    idle: Duration,
) -> (Arc<Pool>, mpsc::UnboundedReceiver<Seen>) {
    let (endpoint, seen) = server().await;
    let settings = Connections { idle, ..Connections::of(LONG) };
    let clients = Clients::new(false, most, workers).unwrap();
    (clients.pool(&endpoint, Protocol::Http1, settings, None).unwrap(), seen)
}

/// A pool for HTTP/2 with at most two connections and two streams per connection. Also counts
/// connections.
async fn http2_pool(settings: Connections) -> (Arc<Pool>, Arc<AtomicUsize>) {
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
    let clients = Clients::new(false, 2, 1).unwrap();
    (clients.pool(&endpoint, Protocol::Http2, settings, None).unwrap(), connections)
}

/// A stream after its response head.
async fn answered(pool: &Arc<Pool>) -> Checkout {
    let mut checkout = pool.checkout().await.unwrap();
    let mut request = Request::new(Sent::default());
    *request.uri_mut() = http::Uri::from_static("http://a/");
    assert!(checkout.send(request, None, LONG).await.is_ok());
    checkout
}

async fn use_once(mut checkout: Checkout) {
    let mut request = Request::new(Sent::default());
    request.headers_mut().insert("host", http::HeaderValue::from_static("a"));
    let Ok(response) = checkout.send(request, None, LONG).await else { panic!("no response") };
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
    let clients = Clients::new(false, 2, 1).unwrap();
    let pool = clients.pool(&endpoint, Protocol::Http1, Connections::of(LONG), None).unwrap();
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
    let (pool, connections) = http2_pool(Connections::of(LONG)).await;
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
    let (pool, connections) = http2_pool(Connections::of(LONG)).await;
    answered(&pool).await.retire();
    drop(answered(&pool).await);
    drop(answered(&pool).await);
    assert_eq!(connections.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn unanswered_ping_ends_a_request() {
    let clients = Clients::new(false, 1, 1).unwrap();
    let authority = http::uri::Authority::from_static("a");
    let endpoint = Endpoint { scheme: Scheme::HTTP, authority, socket: None };
    let pool = clients.pool(&endpoint, Protocol::Http2, Connections::of(LONG), None).unwrap();
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
    let mut checkout = pool.fresh(pool.pooled(sender, begun, 0));
    let mut request = Request::new(Sent::default());
    *request.uri_mut() = http::Uri::from_static("http://a/");
    let started = Instant::now();
    let Err(unanswered) = checkout.send(request, None, 60 * LONG).await else {
        panic!("a response")
    };
    // A PING after five minutes, and 20 seconds for its answer.
    let passed = started.elapsed().as_secs();
    assert!((320..340).contains(&passed), "{passed} s");
    assert!(
        matches!(&unanswered.error, SendError::Http(error) if error.is_timeout()),
        "{}",
        unanswered.error
    );
    server.abort();
}

async fn pass(time: Duration) {
    // Paused only here, because a paused clock would fire timers while bytes are on their way.
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn reused_connection_has_the_timeout_of_its_request() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let authority = listener.local_addr().unwrap().to_string().parse().unwrap();
    let endpoint = Endpoint { scheme: Scheme::HTTP, authority, socket: None };
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
        // The second request gets no response.
        std::future::pending::<()>().await;
    });
    let clients = Clients::new(false, 1, 1).unwrap();
    let pool = clients.pool(&endpoint, Protocol::Http1, Connections::of(LONG), None).unwrap();
    use_once(pool.checkout().await.unwrap()).await;
    let mut checkout = pool.checkout().await.unwrap();
    let started = Instant::now();
    let sent = checkout.send(Request::new(Sent::default()), None, Duration::from_millis(50)).await;
    let Err(unanswered) = sent else { panic!("a response") };
    assert!(matches!(unanswered.error, SendError::Silence(_)), "{}", unanswered.error);
    assert!(started.elapsed() < LONG / 2);
}

fn client() -> Arc<Connection> {
    Arc::new(Connection::new("192.0.2.1:9".parse().unwrap(), false).unwrap())
}

/// Uses a connection that `client` has authenticated.
async fn use_privately(pool: &Arc<Pool>, client: &Arc<Connection>) {
    let mut checkout = pool.checkout().await.unwrap();
    checkout.keep_for(client);
    use_once(checkout).await;
}

#[tokio::test]
async fn private_connection_serves_its_client() {
    let (pool, mut seen) = pool(10, 1, LONG).await;
    let (ann, bob) = (client(), client());
    use_privately(&pool, &ann).await;
    assert!(pool.checkout_private(&bob).is_none());
    use_once(pool.checkout().await.unwrap()).await;
    for _ in 0..2 {
        use_once(pool.checkout_private(&ann).unwrap()).await;
    }
    assert_eq!([seen.recv().await, seen.recv().await], [Some(Seen::Opened), Some(Seen::Opened)]);
    assert!(seen.try_recv().is_err(), "each client has one connection");
}

#[tokio::test]
async fn private_connection_makes_room() {
    let (pool, _seen) = pool(1, 1, LONG).await;
    let ann = client();
    use_privately(&pool, &ann).await;
    let mut other = pool.checkout().await.unwrap();
    assert!(pool.checkout_private(&ann).is_none());
    // It also makes room if another request already waits.
    let waiting = waiter(&pool).await;
    other.keep_for(&ann);
    use_once(other).await;
    waiting.await.unwrap();
}

#[tokio::test]
async fn private_connection_closes_when_idle() {
    for is_client_gone in [false, true] {
        let (pool, mut seen) = pool(10, 1, Duration::from_millis(50)).await;
        let ann = client();
        use_privately(&pool, &ann).await;
        let ann = (!is_client_gone).then_some(ann);
        assert_eq!(seen.recv().await, Some(Seen::Opened));
        assert_eq!(seen.recv().await, Some(Seen::Closed));
        drop(ann);
    }
}
