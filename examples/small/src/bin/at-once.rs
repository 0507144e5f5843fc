//! cargo run -p examples --bin at-once
//!
//! Each client may have two reports in flight, until the client has read the response. A third
//! request is denied with `retry-after: 1`.

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::time::interval;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::IntervalStream;
use tollgate::key::ClientIp;
use tollgate::{Limit, MemoryStore, Policy, RateLimitLayer};

/// Streams a line per second for twenty seconds.
async fn report() -> Body {
    let lines = IntervalStream::new(interval(Duration::from_secs(1))).take(20);
    Body::from_stream(lines.map(|_| Ok::<_, Infallible>("another line\n")))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // With Redis, a crashed process's requests count for another ten seconds. A report that takes
    // longer renews its permit.
    let policy = Policy::concurrent_requests("reports", 2, Duration::from_secs(10))?;
    let limit = RateLimitLayer::builder(MemoryStore::new())
        .limit(Limit::new(policy, ClientIp::peer()))
        .build()?;

    let app = Router::new().route("/report", get(report).layer(limit));
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("Send three requests at the same time. One is denied until a report ends:");
    println!("  for i in 1 2 3; do curl -s http://127.0.0.1:3000/report & done; wait");
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
