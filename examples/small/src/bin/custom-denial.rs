//! cargo run -p examples --bin custom-denial
//!
//! Custom denials: additional members in the problem body, or a response from a closure. The layer
//! adds `Retry-After` and the rate limit headers either way.

use std::error::Error;

use axum::Router;
use axum::routing::get;
use serde_json::json;
use tokio::net::TcpListener;
use tollgate::denial::{Members, Problem};
use tollgate::{Limit, MemoryStore, Policy, Quota, RateLimitLayer};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let store = MemoryStore::new();
    let limit = |name| Policy::fixed_window_counter(name, Quota::per_minute(3)).map(Limit::global);
    let builder = || RateLimitLayer::builder(store.clone());

    let members = Members::new().with("server_id", "api1")?.with("support", "help@example.com")?;
    let problem = Problem::with_members(members);
    let members = builder().limit(limit("members")?).denial_response(problem).build()?;
    // An API that already has its own error format.
    let in_our_form = builder().on_denied(|denial| {
        denial.json(&json!({ "error": {
            "code": denial.reason().code(),
            "message": denial.detail(),
            "retryInSeconds": denial.retry_after_secs(),
        }}))
    });
    let closure = in_our_form.limit(limit("closure")?).build()?;

    let app = Router::new()
        .route("/members", get(|| async { "hello\n" }).layer(members))
        .route("/closure", get(|| async { "hello\n" }).layer(closure));

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("Try:");
    println!("  for i in {{1..4}}; do curl -i http://127.0.0.1:3000/members; done");
    println!("  for i in {{1..4}}; do curl -i http://127.0.0.1:3000/closure; done");
    axum::serve(listener, app).await?;
    Ok(())
}
