//! cargo run -p examples --bin tiers
//!
//! Free and paying customers, identified by API key. AI calls may use a fifth of the quota.

use std::error::Error;
use std::net::SocketAddr;

use axum::Router;
use axum::routing::get;
use tokio::net::TcpListener;
use tollgate::key::{ApiKey, ApiKeys, ClientIp, KeySource};
use tollgate::limit::Paths;
use tollgate::tier::ApiKeyTiers;
use tollgate::{Limit, MemoryStore, Policy, Quota, RateLimitLayer};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let paying = ApiKeys::from_keys(["k-7f3a"]);
    let customer = ApiKey::in_x_api_key().one_of(paying.clone()).or(ClientIp::peer());

    let free = Policy::token_bucket("customer", Quota::per_hour(60).burst(10))?;
    let each = Limit::new(free, customer).in_tier("pro", Quota::per_hour(10_000).burst(500))?;
    let ai = each.fraction("ai", 1, 5)?.on_paths(Paths::new(["/ai"])?);
    let limit = RateLimitLayer::builder(MemoryStore::new())
        .tiers(ApiKeyTiers::new(ApiKey::in_x_api_key()).with("pro", paying))
        .limit(each)
        .limit(ai)
        .build()?;

    let app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .route("/ai", get(|| async { "42\n" }))
        .layer(limit);
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("Without a key the burst is ten requests and two AI calls, with a key 500 and 100:");
    println!("  curl -i http://127.0.0.1:3000/ai");
    println!("  curl -i http://127.0.0.1:3000/ai -H 'X-API-Key: k-7f3a'");
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
