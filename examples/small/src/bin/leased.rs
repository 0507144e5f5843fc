//! cargo run -p examples --bin leased -- redis://127.0.0.1:6379 127.0.0.1:3000
//!
//! Replicas of this program, each on its own address, share one quota. A busy replica leases units
//! in blocks and calls Redis only once per block. Together they never exceed the limit.

use std::error::Error;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tokio::net::TcpListener;
use tollgate::policy::{Algorithm, LeakyMode, Lease, OnStoreError};
use tollgate::{Limit, Policy, Quota, RateLimitLayer, RedisStore};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let redis = args.next().unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let address = args.next().unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let store = RedisStore::connect(&redis)?;

    // A replica leases up to a tenth of the quota, for at most a second, and returns unused units.
    let meter = Algorithm::LeakyBucket { mode: LeakyMode::Meter };
    let policy = Policy::new("api", Quota::per_second(5_000), meter)?
        .with_lease(Lease::of(1, 10).ttl(Duration::from_secs(1)))?
        .with_on_store_error(OnStoreError::Closed);
    let limit = RateLimitLayer::builder(store.clone()).limit(Limit::global(policy)).build()?;

    let app = Router::new().route("/", get(|| async { "hello\n" })).layer(limit);
    let listener = TcpListener::bind(&address).await?;
    println!("All replicas together allow 5000 requests per second. Send load, then press Ctrl-C:");
    println!("  wrk -t1 -c32 -d5 http://{address}/");
    axum::serve(listener, app)
        .with_graceful_shutdown(async {
            // If signals cannot be caught, run until killed.
            let _ = tokio::signal::ctrl_c().await;
        })
        .await?;
    let stats = store.stats();
    println!(
        "{} requests used leased units, {} were decided by Redis",
        stats.leased, stats.requests
    );
    // Other replicas can use these units immediately.
    store.return_leases().await;
    Ok(())
}
