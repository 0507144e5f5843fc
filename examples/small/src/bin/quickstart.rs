//! cargo run -p examples --bin quickstart
//!
//! A quota that all clients share: 100 requests per minute.

use std::error::Error;

use axum::Router;
use axum::routing::get;
use tokio::net::TcpListener;
use tollgate::{Quota, RateLimitLayer};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limit = RateLimitLayer::global(Quota::per_minute(100))?;

    let app = Router::new().route("/", get(|| async { "hello\n" })).layer(limit);

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("Try:");
    println!("  curl -i http://127.0.0.1:3000/");
    println!(
        "  for i in {{1..101}}; do curl -so /dev/null -w '%{{http_code}} ' http://127.0.0.1:3000/; done"
    );
    axum::serve(listener, app).await?;
    Ok(())
}
