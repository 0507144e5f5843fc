//! cargo run -p examples --bin lockout
//!
//! Three wrong passwords in a minute lock a client out for ten seconds, then for twenty, and so on
//! up to an hour. Attempts during a lockout do not extend it. After an hour without a lockout, the
//! next one lasts ten seconds again.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::post;
use http::StatusCode;
use tokio::net::TcpListener;
use tollgate::key::ClientIp;
use tollgate::policy::{OnStoreError, Strikes};
use tollgate::{Limit, MemoryStore, Policy, RateLimitLayer};

async fn login(password: String) -> (StatusCode, &'static str) {
    if password == "open sesame" {
        (StatusCode::OK, "welcome\n")
    } else {
        (StatusCode::UNAUTHORIZED, "wrong\n")
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let hour = Duration::from_secs(3_600);
    // One attempt at a time. Otherwise many concurrent attempts could start before the first fails.
    let one_by_one = Policy::concurrent_requests("login", 1, Duration::from_secs(30))?
        .with_on_store_error(OnStoreError::Closed);
    let one_by_one = Limit::new(one_by_one, ClientIp::peer());
    let failures = Strikes::of_failures(3, Duration::from_secs(60))
        .block(Duration::from_secs(10))
        .growing(2, hour)
        .forgotten_after(hour);
    let lockout = one_by_one
        .penalty("lockout", failures)?
        .count_only(|response| response.status == StatusCode::UNAUTHORIZED);
    let limit =
        RateLimitLayer::builder(MemoryStore::new()).limit(one_by_one).limit(lockout).build()?;

    let app = Router::new().route("/login", post(login).layer(limit));
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("After three wrong passwords, even the correct password is denied:");
    println!("  for i in 1 2 3; do curl -d guess http://127.0.0.1:3000/login; done");
    println!("  curl -i -d 'open sesame' http://127.0.0.1:3000/login");
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
