//! Nested layers.

use axum::Router;
use axum::routing::get as on_get;
use http::Method;
use tollgate::Limit;

use crate::support::*;

/// `global` (5 units) around all routes, `search` (2 units) around one route.
fn nested() -> Router {
    let (_, store) = memory();
    let outer = layer(&store, [Limit::global(log("global", 5))]);
    let inner = layer(&store, [Limit::global(log("search", 2))]);
    Router::new()
        .route("/search", on_get(|| async { "found" }).route_layer(inner))
        .route("/", on_get(|| async { "home" }))
        .layer(outer)
}

#[tokio::test]
async fn inner_denial_still_charges_outer() {
    let app = nested();
    for expected in [200, 200, 429] {
        let response = ask_router(&app, request(Method::GET, "/search")).await;
        assert_eq!(response.status(), expected);
    }
    let response = ask_router(&app, request(Method::GET, "/")).await;
    assert_eq!(field(response.headers(), "x-ratelimit-remaining").as_deref(), Some("1"));
}

#[tokio::test]
async fn outer_denial_skips_inner_layer() {
    let app = nested();
    for _ in 0..5 {
        ask_router(&app, request(Method::GET, "/")).await;
    }
    let response = ask_router(&app, request(Method::GET, "/search")).await;
    assert_eq!(response.status(), 429);
    assert_eq!(
        field(response.headers(), "ratelimit-policy").as_deref(),
        Some(r#""global";q=5;w=60"#)
    );
}
