//! cargo run -p examples --bin weighted-cost
//!
//! Request costs by method, route and size.

use std::error::Error;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::{get, post};
use http::Method;
use http::header::CONTENT_LENGTH;
use tokio::net::TcpListener;
use tollgate::key::RequestHead;
use tollgate::policy::Cost;
use tollgate::{Costs, Limit, MemoryStore, Policy, Quota, RateLimitLayer};

/// An upload costs 5 units plus one per KiB. Without a length, it costs as much as the largest
/// upload.
fn upload(head: &RequestHead<'_>) -> Option<Cost> {
    if head.uri.path() != "/uploads" {
        return None;
    }
    let length = head.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let length: Option<u64> = length.and_then(|value| value.parse().ok());
    let kibibytes = length.map_or(64, |length| length.div_ceil(1024));
    Some(Cost::new(kibibytes.saturating_add(5)))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let costs = Costs::by_method()
        .method(Method::DELETE, Cost::new(20))
        .route("/reports/{id}", Cost::new(50))
        .with_fn(upload);
    let policy = Policy::sliding_window_log("global", Quota::per_minute(100))?;
    let limit =
        RateLimitLayer::builder(MemoryStore::new()).limit(Limit::global(policy)).costs(costs);

    let app = Router::new()
        .route("/", get(|| async { "1 unit\n" }).delete(|| async { "20 units\n" }))
        .route("/reports/{id}", get(|| async { "50 units\n" }))
        .route("/uploads", post(|body: String| async move { format!("{} bytes\n", body.len()) }))
        .layer(DefaultBodyLimit::max(64 * 1024))
        .layer(limit.build()?);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("Compare x-ratelimit-remaining after each request:");
    println!("  curl -i http://127.0.0.1:3000/");
    println!("  curl -i -X DELETE http://127.0.0.1:3000/");
    println!("  curl -i http://127.0.0.1:3000/reports/7");
    println!("  head -c 3000 /dev/zero | curl -i http://127.0.0.1:3000/uploads --data-binary @-");
    println!("  head -c 200000 /dev/zero | curl -i http://127.0.0.1:3000/uploads --data-binary @-");
    axum::serve(listener, app).await?;
    Ok(())
}
