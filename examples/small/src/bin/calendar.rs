//! cargo run -p examples --bin calendar
//!
//! Three exports per day and twenty per month for each client, in Berlin time: the daily quota
//! resets at local midnight, even on a day with 25 hours.

use std::error::Error;
use std::net::SocketAddr;

use axum::Router;
use axum::routing::get;
use tokio::net::TcpListener;
use tollgate::key::ClientIp;
use tollgate::policy::calendar;
use tollgate::{Limit, MemoryStore, Policy, Quota, RateLimitLayer};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let daily = Quota::per_calendar(3, calendar::day("Europe/Berlin")?);
    let monthly = Quota::per_calendar(20, calendar::month("Europe/Berlin")?);
    let mut layer = RateLimitLayer::builder(MemoryStore::new());
    for (name, quota) in [("daily", daily), ("monthly", monthly)] {
        let policy = Policy::fixed_window_counter(name, quota)?;
        println!("{policy}");
        layer = layer.limit(Limit::new(policy, ClientIp::peer()));
    }

    let app = Router::new().route("/", get(|| async { "exported\n" })).layer(layer.build()?);
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("The fourth is denied until midnight. `x-ratelimit-reset` has that time, and");
    println!("`ratelimit` has the seconds until midnight and until the end of the month:");
    println!("  for i in {{1..4}}; do curl -i http://127.0.0.1:3000/; done");
    println!(
        "  date -d @$(curl -si http://127.0.0.1:3000/ | grep -oP 'x-ratelimit-reset: \\K\\d+')"
    );
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
