//! cargo run -p examples --bin leased -- redis://127.0.0.1:6379 127.0.0.1:3000
//!
//! One quota for all who run this, each on an address of its own. A busy replica takes units
//! in blocks and asks Redis once for each block; together they never pass the limit.

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
    println!("5000 a second for all replicas together. Ask much, and stop me with Ctrl-C:");
    println!("  wrk -t1 -c32 -d5 http://{address}/");
    axum::serve(listener, app)
        .with_graceful_shutdown(async {
            // Without signals it runs until it is killed.
            let _ = tokio::signal::ctrl_c().await;
        })
        .await?;
    let stats = store.stats();
    println!("{} were answered from blocks, {} by Redis", stats.leased, stats.requests);
    // Others need not wait for what this one held.
    store.return_leases().await;
    Ok(())
}
