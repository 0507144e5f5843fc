//! cargo run -p examples --bin upstream
//!
//! A third party allows five requests per second and rejects the sixth. The layer, this time around
//! a client, delays our requests instead: we send twelve at the same time, and all succeed.

use std::error::Error;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::Request;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tollgate::{Limit, MemoryStore, Policy, Quota, RateLimitLayer, Store};
use tower::{ServiceBuilder, ServiceExt};

#[cfg(test)]
mod tests;

/// The quota that the third party grants.
const THEIRS: Quota = Quota::per_second(5);

/// Our own limit: the same number in a slightly longer window. Requests that we send a second apart
/// may arrive closer together, and the extra time covers this network jitter.
const OURS: Quota = Quota::new(5, Duration::from_millis(1_100));

/// The limit on all requests to the third party; with a `RedisStore`, on the requests of all
/// replicas. Only a log enforces the limit in any second, no matter when the third party's window
/// starts.
fn polite<St: Store>(store: St) -> Result<RateLimitLayer<St>, Box<dyn Error>> {
    let policy = Policy::sliding_window_log("third party", OURS)?;
    Ok(RateLimitLayer::for_client(store, policy, Duration::from_secs(30))?)
}

/// Stands in for the third party: a service behind a limit that rejects excess requests.
fn third_party<St: Store>(store: St) -> Result<Router, Box<dyn Error>> {
    let limit = RateLimitLayer::builder(store)
        .limit(Limit::global(Policy::sliding_window_log("granted", THEIRS)?))
        .build()?;
    Ok(Router::new().route("/", get(|| async { "here you are" })).layer(limit))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    tokio::spawn(axum::serve(listener, third_party(MemoryStore::new())?).into_future());

    let client = Client::builder(TokioExecutor::new()).build_http::<Body>();
    let client =
        ServiceBuilder::new().layer(polite(MemoryStore::new())?.any_body()).service(client);
    let started = Instant::now();
    let mut requests = JoinSet::new();
    for number in 1..=12 {
        let (client, request) = (client.clone(), Request::get(&url).body(Body::empty())?);
        requests.spawn(async move {
            let status = client.oneshot(request).await.map(|response| response.status());
            println!("{:>5} ms  request {number:>2}  {status:?}", started.elapsed().as_millis());
        });
    }
    requests.join_all().await;
    Ok(())
}
