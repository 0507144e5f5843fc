//! cargo run -p examples --bin tier-lookup
//!
//! Tiers from a database. The lookup caches each account's tier for a while, and drops an account
//! from the cache when it pays.

use std::collections::HashMap;
use std::convert::Infallible;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::{Path, Request};
use axum::middleware::{self, Next};
use axum::routing::{get, post};
use tokio::net::TcpListener;
use tollgate::key::FromExtension;
use tollgate::limit::OnMissingKey;
use tollgate::tier::{self, Tier, TierLookup};
use tollgate::{Limit, MemoryStore, Policy, Quota, RateLimitLayer};

#[derive(Clone)]
struct Account(String);

/// Stands in for a database.
type Plans = Arc<Mutex<HashMap<String, &'static str>>>;

async fn plan_of(plans: Plans, account: String) -> Result<Option<Tier>, Infallible> {
    println!("looking up the plan of {account} in the database");
    let plans = plans.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(plans.get(&account).map(|plan| Tier::from(*plan)))
}

/// Stands in for real authentication.
async fn authenticate(mut request: Request, next: Next) -> axum::response::Response {
    let account = request.headers().get("x-account").and_then(|value| value.to_str().ok());
    if let Some(account) = account.map(|name| Account(name.to_owned())) {
        request.extensions_mut().insert(account);
    }
    next.run(request).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let plans = Plans::default();
    let asked = Arc::clone(&plans);
    let lookup = TierLookup::new(
        |head| head.extensions.get::<Account>().map(|account| account.0.clone()),
        move |account| plan_of(Arc::clone(&asked), account),
    );
    let free = Policy::sliding_window_log("account", Quota::per_minute(3))?;
    let account = FromExtension::<Account>::new(|account| Some(account.0.clone()));
    let account = Limit::new(free, account)
        .on_missing_key(OnMissingKey::Deny)
        .in_tier("pro", Quota::per_minute(10))?;
    let limit = RateLimitLayer::builder(MemoryStore::new())
        .tiers(tier::in_extensions())
        .limit(account)
        .build()?;

    let remembered = lookup.clone();
    let pay = move |Path(account): Path<String>| async move {
        plans.lock().unwrap_or_else(PoisonError::into_inner).insert(account.clone(), "pro");
        remembered.forget(&account).await;
        "thank you\n"
    };
    // From the inside out: the limit needs the tier, and the lookup needs the account.
    let limited = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .layer(limit)
        .layer(lookup)
        .layer(middleware::from_fn(authenticate));
    let app = limited.merge(Router::new().route("/pay/{account}", post(pay)));
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!(
        "ann may send three requests. After she pays, her limit is ten, of which three are used:"
    );
    println!("  for i in 1 2 3 4; do curl -s -H 'X-Account: ann' http://127.0.0.1:3000; done");
    println!("  curl -d '' http://127.0.0.1:3000/pay/ann");
    println!("  curl -i -H 'X-Account: ann' http://127.0.0.1:3000");
    axum::serve(listener, app).await?;
    Ok(())
}
