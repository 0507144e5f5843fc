//! cargo run -p examples --bin login
//!
//! Five wrong passwords per minute for each client, and any number of correct passwords. Concurrent
//! guesses cannot exceed the limit because each attempt is charged first.

use std::error::Error;
use std::net::SocketAddr;

use axum::Router;
use axum::routing::post;
use http::StatusCode;
use tokio::net::TcpListener;
use tollgate::key::ClientIp;
use tollgate::policy::OnStoreError;
use tollgate::{Limit, MemoryStore, Policy, Quota, RateLimitLayer};

async fn login(password: String) -> (StatusCode, &'static str) {
    if password == "open sesame" {
        (StatusCode::OK, "welcome\n")
    } else {
        (StatusCode::UNAUTHORIZED, "wrong\n")
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // If the store fails, reject logins instead of allowing unlimited guesses.
    let policy = Policy::sliding_window_log("login", Quota::per_minute(5))?
        .with_on_store_error(OnStoreError::Closed);
    let failures = Limit::new(policy, ClientIp::peer())
        .count_only(|response| response.status == StatusCode::UNAUTHORIZED);
    let limit = RateLimitLayer::builder(MemoryStore::new()).limit(failures).build()?;

    let app = Router::new().route("/login", post(login).layer(limit));
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("Correct passwords are unlimited. Of 200 wrong passwords, only five are checked:");
    println!("  curl -i -d 'open sesame' http://127.0.0.1:3000/login");
    println!(
        "  for i in {{1..200}}; do curl -s -d guess http://127.0.0.1:3000/login & done | sort | uniq -c"
    );
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
