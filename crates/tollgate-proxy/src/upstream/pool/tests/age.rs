//! Connections that are too old, or lead to an address that a name no longer has.

use super::*;

const MAX_AGE: Duration = Duration::from_secs(10);

#[tokio::test]
async fn old_connection_is_replaced() {
    let (endpoint, mut seen) = server().await;
    let settings = Connections { max_age: MAX_AGE, ..Connections::of(LONG) };
    let clients = Clients::new(false, 2, 1).unwrap();
    let pool = clients.pool(&endpoint, Protocol::Http1, settings, None).unwrap();
    use_once(pool.checkout().await.unwrap()).await;
    pass(MAX_AGE * 7 / 10).await;
    use_once(pool.checkout().await.unwrap()).await;
    assert_eq!(seen.recv().await, Some(Seen::Opened));
    assert!(seen.try_recv().is_err(), "it is younger than four fifths of the maximum");
    pass(MAX_AGE * 3 / 10).await;
    use_once(pool.checkout().await.unwrap()).await;
    use_once(pool.checkout().await.unwrap()).await;
    // The server has answered the last request, but it may not yet have seen the close.
    let first = seen.try_recv().expect("a new connection");
    let second = seen.recv().await.unwrap();
    assert!(
        [[Seen::Closed, Seen::Opened], [Seen::Opened, Seen::Closed]].contains(&[first, second])
    );
}

#[tokio::test]
async fn old_http2_connection_gets_no_further_requests() {
    let settings = Connections { max_age: MAX_AGE, ..Connections::of(LONG) };
    let (pool, connections) = http2_pool(settings).await;
    let first = answered(&pool).await;
    drop(answered(&pool).await);
    assert_eq!(connections.load(Ordering::Relaxed), 1);
    pass(MAX_AGE).await;
    drop(answered(&pool).await);
    assert_eq!(connections.load(Ordering::Relaxed), 2);
    drop(first);
}

/// Listens on both addresses with the same port, and answers with the address.
async fn scaled_server(addresses: [&str; 2]) -> u16 {
    let first = TcpListener::bind((addresses[0], 0)).await.unwrap();
    let port = first.local_addr().unwrap().port();
    let second = TcpListener::bind((addresses[1], port)).await.unwrap();
    for (listener, address) in [first, second].into_iter().zip(addresses) {
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{address}");
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let answer = answer.clone();
                tokio::spawn(async move {
                    while stream.read(&mut [0; 1024]).await.is_ok_and(|read| read > 0) {
                        stream.write_all(answer.as_bytes()).await.unwrap();
                    }
                });
            }
        });
    }
    port
}

/// The server that answers a request.
async fn server_of(pool: &Arc<Pool>) -> Bytes {
    let mut checkout = pool.checkout().await.unwrap();
    let mut request = Request::new(Sent::default());
    request.headers_mut().insert("host", http::HeaderValue::from_static("a"));
    let response = checkout.send(request, None, LONG).await;
    let Ok(response) = response else { panic!("no response") };
    let body = response.into_body().collect().await.unwrap().to_bytes();
    checkout.release();
    body
}

#[tokio::test]
async fn scaled_server_gets_requests() {
    let port = scaled_server(["127.0.0.1", "127.0.0.2"]).await;
    let found = Arc::new(Mutex::new(vec!["127.0.0.1"]));
    let (lookup, lookups) = controlled(&found);
    let authority = format!("app.test:{port}").parse().unwrap();
    let settings = Connections { max_age: MAX_AGE, ..Connections::of(LONG) };
    let connectors = Connectors::new(false, lookup).unwrap();
    let connector =
        connectors.tcp(Protocol::Http1, &Scheme::HTTP, &authority, &settings, None).unwrap();
    let permits = Arc::new(Semaphore::new(10));
    let pool = Arc::new(Pool::new(Protocol::Http1, connector, settings, permits, 1));
    assert_eq!(server_of(&pool).await, "127.0.0.1");
    found.lock().push("127.0.0.2");
    // The connection closes after its next request, and the name is looked up again.
    pass(LONG).await;
    while lookups.load(Ordering::Relaxed) < 2 {
        tokio::task::yield_now().await;
    }
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(server_of(&pool).await);
        pass(MAX_AGE).await;
        server_of(&pool).await;
    }
    servers.sort();
    servers.dedup();
    assert_eq!(servers, ["127.0.0.1", "127.0.0.2"]);
}

/// The name has another address, but the gateway does not know yet.
#[tokio::test]
async fn failed_connection_looks_the_name_up_again() {
    let port = scaled_server(["127.0.0.1", "127.0.0.2"]).await;
    // No server listens on this address.
    let found = Arc::new(Mutex::new(vec!["127.0.0.3"]));
    let (lookup, _) = controlled(&found);
    let authority = format!("app.test:{port}").parse().unwrap();
    let settings = Connections::of(LONG);
    let connectors = Connectors::new(false, lookup).unwrap();
    let connector =
        connectors.tcp(Protocol::Http1, &Scheme::HTTP, &authority, &settings, None).unwrap();
    let permits = Arc::new(Semaphore::new(10));
    let pool = Arc::new(Pool::new(Protocol::Http1, connector, settings, permits, 1));
    assert!(pool.checkout().await.is_err());
    *found.lock() = vec!["127.0.0.2"];
    assert_eq!(server_of(&pool).await, "127.0.0.2");
}
