//! cargo run -p examples --bin lists
//!
//! A blocklist in a file, and an allowlist. Add lines such as `127.0.0.1` or `sha256:DIGEST` to
//! `deny.txt` while the program runs. They apply within a second.

use std::error::Error;
use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::time::sleep;
use tollgate::access::{AccessLists, SubjectList};
use tollgate::key::{ApiKey, ApiKeys, ClientIp};
use tollgate::{Limit, MemoryStore, Policy, Quota, RateLimitLayer};

/// Reloads the file every second. If a line is invalid, the previous lists remain.
async fn follow(lists: AccessLists, allow: SubjectList) {
    loop {
        // A missing file is an empty blocklist.
        let text = fs::read_to_string("deny.txt").unwrap_or_default();
        let replaced = match text.parse::<SubjectList>() {
            Ok(deny) => lists.replace(&deny, &allow).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = replaced {
            eprintln!("deny.txt: {error}");
        }
        sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let lists =
        AccessLists::new().addresses_by(ClientIp::peer()).api_keys_in(ApiKey::in_x_api_key());
    let partners = SubjectList::new().api_keys(&ApiKeys::from_keys(["partner"]));
    tokio::spawn(follow(lists.clone(), partners));

    let policy = Policy::sliding_window_log("client", Quota::per_minute(3))?;
    let limit = RateLimitLayer::builder(MemoryStore::new())
        .limit(Limit::new(policy, ClientIp::peer()))
        .access_lists(&lists)
        .build()?;
    let app = Router::new().route("/", get(|| async { "hello\n" })).layer(limit);
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!(
        "Three requests per minute pass, a partner has no limit, and a blocked address is denied:"
    );
    println!("  for i in 1 2 3 4; do curl -s http://127.0.0.1:3000; done");
    println!("  curl -H 'X-API-Key: partner' http://127.0.0.1:3000");
    println!("  echo 127.0.0.1 > deny.txt; sleep 2; curl -i http://127.0.0.1:3000");
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
