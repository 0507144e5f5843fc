//! cargo run -p examples --bin tenants
//!
//! The limiter looks up each tenant's quota in another service, over HTTP, and caches it. When a plan
//! changes, the service tells the limiter, so the new quota applies immediately.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::{get, post};
use http::StatusCode;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tollgate::key::Header;
use tollgate::limit::OnMissingKey;
use tollgate::tier::{OnLookupFailure, QuotaLookup};
use tollgate::{Limit, MemoryStore, Policy, Quota, RateLimitLayer};

type BoxError = Box<dyn Error + Send + Sync>;

/// Returns `None` for a tenant that the service does not know.
async fn quota_of(tenant: String) -> Result<Option<Quota>, BoxError> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<&[u8]>>();
    let response = client.get(format!("http://127.0.0.1:3001/plans/{tenant}").parse()?).await?;
    let per_minute = match response.status() {
        StatusCode::OK => response.into_body().collect().await?.to_bytes(),
        StatusCode::NOT_FOUND => return Ok(None),
        status => return Err(format!("the plans service responds with {status}").into()),
    };
    Ok(Some(Quota::per_minute(std::str::from_utf8(&per_minute)?.parse()?)))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let quotas = QuotaLookup::builder(|client| quota_of(client.name))
        .on_failure(OnLookupFailure::LastKnown)
        .build();
    // In a service on the internet, use the tenant that authentication found.
    let tenant = Header::trust_unverified("x-tenant".parse()?);
    let free = Policy::sliding_window_log("tenant", Quota::per_minute(3))?;
    let limit = Limit::new(free, tenant).quota_from(&quotas).on_missing_key(OnMissingKey::Deny);
    let layer = RateLimitLayer::builder(MemoryStore::new()).limit(limit).build()?;

    tokio::spawn(serve_plans());
    let changed = move |Path(tenant): Path<String>| async move { quotas.forget(&tenant) };
    let app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .layer(layer)
        // The plans service calls this route after a change. Otherwise, it would take up to a minute.
        .route("/changed/{tenant}", post(changed));
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("acme may send three requests. Then it has ten, of which three are used:");
    println!("  for i in 1 2 3 4; do curl -s -H 'X-Tenant: acme' http://127.0.0.1:3000; done");
    println!("  curl -d 10 http://127.0.0.1:3001/plans/acme");
    println!("  curl -d '' http://127.0.0.1:3000/changed/acme");
    println!("  curl -i -H 'X-Tenant: acme' http://127.0.0.1:3000");
    axum::serve(listener, app).await?;
    Ok(())
}

/// A replacement for the real plans service.
async fn serve_plans() -> std::io::Result<()> {
    type Plans = Arc<Mutex<HashMap<String, String>>>;
    async fn plan(
        State(plans): State<Plans>,
        Path(tenant): Path<String>,
    ) -> Result<String, StatusCode> {
        plans.lock().await.get(&tenant).cloned().ok_or(StatusCode::NOT_FOUND)
    }
    async fn change(State(plans): State<Plans>, Path(tenant): Path<String>, plan: String) {
        plans.lock().await.insert(tenant, plan);
    }
    let app = Router::new().route("/plans/{tenant}", get(plan).post(change));
    let listener = TcpListener::bind("127.0.0.1:3001").await?;
    axum::serve(listener, app.with_state(Plans::default())).await
}
