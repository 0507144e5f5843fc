//! cargo run -p examples --bin per-client
//!
//! A quota for each API key or address, a global quota, and a stricter quota for logins.

use std::error::Error;
use std::net::SocketAddr;

use axum::Router;
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tollgate::key::{ApiKey, ApiKeys, ClientIp, KeySource};
use tollgate::{Limit, MemoryStore, Policy, Quota, RateLimitLayer};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let store = MemoryStore::new();
    // Only a proxy on this machine may set the client's address.
    let ip = ClientIp::behind(["loopback"])?;
    let api_key = ApiKey::in_x_api_key().one_of(ApiKeys::from_keys(["k-7f3a", "k-91bc"]));

    // Both limits are in one layer: if one denies a request, the other does not charge it.
    let global = Policy::sliding_window_log("global", Quota::per_minute(1_000))?;
    let client = Policy::token_bucket("client", Quota::per_minute(60).burst(50))?;
    let limits = RateLimitLayer::builder(store.clone())
        .limit(Limit::global(global))
        .limit(Limit::new(client, api_key.or(ip.clone())))
        .build()?;

    // An inner layer that limits logins by address, even for requests with an API key.
    let login = Policy::fixed_window_counter("login", Quota::per_minute(5))?;
    let login = RateLimitLayer::builder(store).limit(Limit::new(login, ip)).build()?;

    let app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .route("/login", post(|| async { "welcome\n" }).layer(login))
        .layer(limits);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("Try:");
    println!("  curl -i http://127.0.0.1:3000/");
    println!("  curl -i http://127.0.0.1:3000/ -H 'X-API-Key: k-7f3a'");
    println!("  curl -i http://127.0.0.1:3000/ -H 'X-Forwarded-For: 203.0.113.7'");
    println!(
        "  for i in {{1..6}}; do curl -i -X POST http://127.0.0.1:3000/login -H 'X-API-Key: k-91bc'; done"
    );
    // Provides the peer address, without which each request would get a 500.
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
