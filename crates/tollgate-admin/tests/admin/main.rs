//! The admin router: access, responses and the live page.

#![expect(
    clippy::unwrap_used,
    reason = "the lint exempts only functions with a test attribute, not their helpers"
)]

mod access;
mod answers;
mod overrides;
mod page;
mod subjects;
mod support;

use axum::Router;
use axum::body::Body;
use http::{Request, Response};
use serde_json::Value;
use tollgate::RateLimitLayer;
use tollgate_admin::Admin;
use tower::ServiceExt;

use crate::support::*;

const TOKEN: &str = "0123456789abcdef";

fn admin<St: tollgate::observe::Inspect>(layer: &RateLimitLayer<St>) -> Router {
    Admin::builder().token(TOKEN).layer(layer).build().unwrap()
}

/// Sends a request with the token.
async fn operate(router: &Router, method: &str, path: &str, body: &str) -> (u16, Value) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "localhost:9000")
        .header("authorization", format!("Bearer {TOKEN}"))
        .body(Body::from(body.to_owned()));
    let response = send(router, request.unwrap()).await;
    let status = response.status().as_u16();
    let body = text(response).await;
    (status, serde_json::from_str(&body).unwrap_or(Value::Null))
}

async fn send(router: &Router, request: Request<Body>) -> Response<Body> {
    router.clone().oneshot(request).await.unwrap()
}

/// The example under a heading of docs/admin-api.md.
fn example(heading: &str) -> Value {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/admin-api.md");
    let document = std::fs::read_to_string(file).unwrap();
    let section = document.split(&format!("## `{heading}`")).nth(1).expect(heading);
    let block = section.split("```json\n").nth(1).and_then(|rest| rest.split("```").next());
    serde_json::from_str(block.expect(heading)).unwrap()
}
