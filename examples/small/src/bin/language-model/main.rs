//! cargo run -p examples --bin language-model
//!
//! A proxy in front of a language model. One decision covers requests and tokens per minute, dollars
//! per month and concurrent requests. The reported usage settles tokens and dollars.

use std::{error::Error, sync::Arc, time::Duration};

use axum::response::{IntoResponse, Response};
use axum::{Extension, Router, body::Body, extract::State, routing::post};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Request, StatusCode, Uri};
use http_body_util::BodyExt;
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;
use tollgate::key::{ApiKey, ApiKeys, RequestHead};
use tollgate::layer::{Reservation, Tally};
use tollgate::limit::{OnMissingKey, Reserve};
use tollgate::{Costs, Limit, MemoryStore, Policy, Quota, RateLimitLayer};
use tollgate::{body::ExtractLayer, headers::HeaderOptions, policy::calendar};
use tollgate_llm::{
    DOLLAR, Model, Models, Price, Request as ModelRequest, Usage, UsageEventFilter, UsageReader,
};

mod model;
#[cfg(test)]
mod tests;

type Proxy = (Client<HttpConnector, Body>, Uri, Arc<Models>);

/// A client that leaves pays for its input and for the text that it has received.
async fn chat(
    State((client, server, models)): State<Proxy>,
    reservation: Reservation,
    request: Option<Extension<ModelRequest>>,
    body: Bytes,
) -> Result<Response, StatusCode> {
    // The reservation is refunded if the model does not work on the request.
    let refunded = |status| {
        reservation.settle(0);
        status
    };
    let Extension(request) = request.ok_or_else(|| refunded(StatusCode::BAD_REQUEST))?;
    let asking = request.ask_for_usage(&body);
    let mut filter = asking.is_some().then(UsageEventFilter::default);
    let body = asking.map_or(body, Bytes::from);
    let forwarded = Request::post(server).header(CONTENT_TYPE, "application/json");
    let forwarded = forwarded.header(AUTHORIZATION, "Bearer your-key");
    let forwarded = forwarded.body(Body::from(body)).expect("a valid request");
    let answer = client.request(forwarded).await;
    let answer = answer.map_err(|_| refunded(StatusCode::BAD_GATEWAY))?;
    if !answer.status().is_success() {
        reservation.settle(0);
        return Ok(answer.map(Body::new));
    }

    let model = *models.get(&request.model);
    let charge = move |tally: &Tally, usage: &Usage| {
        tally.set_policy("tokens", usage.total());
        tally.set_policy("dollars", model.price().of(usage));
    };
    let (head, answer) = answer.into_parts();
    let content_type = head.headers.get(CONTENT_TYPE).cloned();
    let content_type = content_type.unwrap_or(HeaderValue::from_static("application/json"));
    let mut reader = UsageReader::for_content_type(content_type.to_str().unwrap_or_default());
    let tally = reservation.tally();
    charge(&tally, &reader.usage(&request, &model));
    let body = tally.body_with(answer, move |tally, chunk| {
        reader.read(chunk);
        charge(tally, &reader.usage(&request, &model));
    });
    let body = body.map_frame(move |frame| {
        frame.map_data(|data| match &mut filter {
            Some(filter) => filter.filter(&data).into(),
            None => data,
        })
    });
    Ok(([(CONTENT_TYPE, content_type)], Body::new(body)).into_response())
}

fn app(server: Uri) -> Result<Router, Box<dyn Error>> {
    let mini = Model::new(Price::per_million(DOLLAR / 4, 2 * DOLLAR)).max_output(500);
    let other = Model::new(Price::per_million(15 * DOLLAR, 120 * DOLLAR));
    let models = Arc::new(Models::new(other).with("mini", mini));
    let key = ApiKey::in_authorization("Bearer").one_of(ApiKeys::from_keys(["k-7f3a"]));
    let per_key = |policy| Limit::new(policy, key.clone()).on_missing_key(OnMissingKey::Deny);
    let estimated = |policy, units: fn(&Usage, &Model) -> u64| {
        let models = Arc::clone(&models);
        let costs = Costs::default().from_fn(move |head: &RequestHead<'_>| {
            let request: &ModelRequest = head.extensions.get()?;
            let model = models.get(&request.model);
            Some(units(&request.estimate(model), model))
        });
        per_key(policy).costs(costs).reserve(Reserve::by_handler())
    };
    let tokens = Policy::token_bucket("tokens", Quota::per_minute(10_000))?;
    let month = Quota::per_calendar(50 * DOLLAR, calendar::month("UTC")?);
    let dollars = Policy::fixed_window_counter("dollars", month)?;
    let limits = RateLimitLayer::builder(MemoryStore::new())
        .limit(per_key(Policy::token_bucket("requests", Quota::per_minute(60))?))
        .limit(per_key(Policy::concurrent_requests("streams", 4, Duration::from_secs(10))?))
        .limit(estimated(tokens, |usage, _| usage.total()))
        .limit(estimated(dollars, |usage, model| model.price().of(usage)))
        .headers(HeaderOptions::default().x_ratelimit_by_policy())
        .build()?;
    let reads = ExtractLayer::new(1 << 20, |_, body| ModelRequest::parse(body).ok());
    let client = Client::builder(TokioExecutor::new()).build_http();
    let chat = Router::new().route("/v1/chat/completions", post(chat)).layer(limits);
    Ok(chat.layer(reads.only_with(key)).with_state((client, server, models)))
}

const CURL: &str =
    "curl -iN http://127.0.0.1:3000/v1/chat/completions -H 'Authorization: Bearer k-7f3a' -d";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let app = app(model::start().await?)?;
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    println!("An answer of 18 tokens, and the headers x-ratelimit-remaining-tokens and -dollars:");
    println!("  {CURL} '{{\"model\": \"mini\", \"stream\": true, \"messages\": []}}'");
    println!("An unknown model has the highest price, so this exceeds the quotas:");
    println!("  {CURL} '{{\"model\": \"other\", \"max_tokens\": 1000000, \"messages\": []}}'");
    axum::serve(listener, app).await?;
    Ok(())
}
