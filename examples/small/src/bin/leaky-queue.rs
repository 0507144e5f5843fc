//! cargo run -p examples --bin leaky-queue
//!
//! Uploads that wait in a queue: two per second start, up to five run or wait, and no upload waits
//! longer than two seconds. Further uploads are denied immediately.

use std::error::Error;

use axum::Router;
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tollgate::limit::Paths;
use tollgate::policy::{Algorithm, LeakyMode};
use tollgate::store::Micros;
use tollgate::{Limit, MemoryStore, Policy, Quota, RateLimitLayer};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let queue = LeakyMode::Queue { max_wait: Some(Micros::new(2_000_000)) };
    let quota = Quota::per_second(2).burst(5);
    let uploads = Policy::new("uploads", quota, Algorithm::LeakyBucket { mode: queue })?;
    let limit = RateLimitLayer::builder(MemoryStore::new())
        .limit(Limit::global(uploads).on_paths(Paths::new(["/uploads"])?))
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "never waits\n" }))
        .route("/uploads", post(|| async { "received\n" }))
        .layer(limit);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!(
        "Send eight requests at the same time. They pass half a second apart (status, seconds):"
    );
    println!("  for i in {{1..8}}; do");
    println!(
        "    curl -so /dev/null -w '%{{http_code}} %{{time_total}}\\n' -d x http://127.0.0.1:3000/uploads &"
    );
    println!("  done; wait");
    println!("  curl -i http://127.0.0.1:3000/");
    axum::serve(listener, app).await?;
    Ok(())
}
