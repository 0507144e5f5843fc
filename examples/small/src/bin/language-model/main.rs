//! cargo run -p examples --bin language-model
//!
//! A proxy in front of a language model. One decision covers requests and tokens per minute, dollars
//! per month and concurrent requests. The reported usage settles tokens and dollars.

use std::{error::Error, time::Duration};

use axum::{Router, body::Body, extract::State, response::Response, routing::post};
use http::header::{AUTHORIZATION, HeaderValue};
use http::{Request, StatusCode, Uri};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;
use tollgate::key::{ApiKey, ApiKeys};
use tollgate::{MemoryStore, Policy, Quota, policy::calendar};
use tollgate_llm::{Api, DOLLAR, LlmBudget, Model, Models, Price};

mod model;
#[cfg(test)]
mod tests;

type Proxy = (Client<HttpConnector, Body>, Uri);

/// Forwards a request, with the proxy's own key.
async fn forward(
    State((client, server)): State<Proxy>,
    mut request: Request<Body>,
) -> Result<Response, StatusCode> {
    *request.uri_mut() = server;
    request.headers_mut().insert(AUTHORIZATION, HeaderValue::from_static("Bearer your-key"));
    let response = client.request(request).await.map_err(|_| StatusCode::BAD_GATEWAY)?;
    Ok(response.map(Body::new))
}

fn app(server: Uri) -> Result<Router, Box<dyn Error>> {
    let mini = Model::new(Price::per_million(DOLLAR / 4, 2 * DOLLAR)).max_output(500);
    // Clients choose the model, so all other models have the highest price.
    let other = Model::new(Price::per_million(15 * DOLLAR, 120 * DOLLAR));
    let key = ApiKey::in_authorization("Bearer").one_of(ApiKeys::from_keys(["k-7f3a"]));
    let month = Quota::per_calendar(50 * DOLLAR, calendar::month("UTC")?);
    let models = Models::new(other).with("mini", mini);
    let budget = LlmBudget::builder(MemoryStore::new(), key, models)
        .requests(Policy::token_bucket("requests", Quota::per_minute(60))?)
        .requests(Policy::concurrent_requests("streams", 4, Duration::from_secs(10))?)
        .tokens(Policy::token_bucket("tokens", Quota::per_minute(10_000))?)
        .money(Policy::fixed_window_counter(Api::BUDGET, month)?)
        .build()?;
    let client = Client::builder(TokioExecutor::new()).build_http();
    let chat = Router::new().route("/v1/chat/completions", post(forward)).layer(budget);
    Ok(chat.with_state((client, server)))
}

const CURL: &str =
    "curl -iN http://127.0.0.1:3000/v1/chat/completions -H 'Authorization: Bearer k-7f3a' -d";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let app = app(model::start().await?)?;
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("An answer of 18 tokens, and the headers x-ratelimit-remaining-tokens and -budget:");
    println!("  {CURL} '{{\"model\": \"mini\", \"stream\": true, \"messages\": []}}'");
    println!("An unknown model has the highest price, so this exceeds the quotas:");
    println!("  {CURL} '{{\"model\": \"other\", \"max_tokens\": 1000000, \"messages\": []}}'");
    axum::serve(listener, app).await?;
    Ok(())
}
