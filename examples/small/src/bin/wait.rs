//! cargo run -p examples --bin wait
//!
//! Three uploads in any ten seconds. A fourth upload waits, and is only denied if it would have to
//! wait for more than 15 seconds.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::post;
use tokio::net::TcpListener;
use tollgate::key::ClientIp;
use tollgate::limit::Mode;
use tollgate::{Limit, MemoryStore, Policy, Quota, RateLimitLayer};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let quota = Quota::new(3, Duration::from_secs(10));
    let uploads = Limit::new(Policy::sliding_window_log("uploads", quota)?, ClientIp::peer())
        .mode(Mode::Wait(Duration::from_secs(15)));
    let limit =
        RateLimitLayer::builder(MemoryStore::new()).limit(uploads).max_waiting(100).build()?;

    let app = Router::new().route("/uploads", post(|| async { "received\n" })).layer(limit);
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("Send eight requests at the same time: three pass, three more after ten seconds,");
    println!("and the last two are denied because they would wait too long (status, seconds):");
    println!("  for i in {{1..8}}; do");
    println!(
        "    curl -so /dev/null -w '%{{http_code}} %{{time_total}}\\n' -d x http://127.0.0.1:3000/uploads &"
    );
    println!("  done; wait");
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
