//! The example of docs/testing-limits.md, and the table that it shows.

#![expect(clippy::unwrap_used, reason = "this crate is all tests, including their helpers")]

#[path = "login/page.rs"]
mod page;

use std::panic;

use axum::Router;
use axum::routing::{get, post};
use tollgate::key::ClientIp;
use tollgate::{Limit, Policy, Quota, RateLimitLayer, Store};
use tollgate_testing::Simulation;

/// The page's service, with 6 attempts instead of 5.
fn lenient(store: impl Store) -> Router {
    let policy = Policy::token_bucket("login", Quota::per_minute(6)).unwrap();
    let limit = Limit::new(policy, ClientIp::peer());
    let layer = RateLimitLayer::builder(store).limit(limit).build().unwrap();
    Router::new()
        .route("/login", post(|| async { "welcome" }))
        .layer(layer)
        .route("/items", get(|| async { "hat, shoe" }))
}

#[test]
fn page_shows_this_code_and_its_table() {
    let page = include_str!("../../../docs/testing-limits.md");
    let code = page.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    assert_eq!(code, include_str!("login/page.rs"));
    let file = page.split("```text\n").find(|part| part.starts_with("tests:")).unwrap();
    let file = file.split("```").next().unwrap();
    assert_eq!(file.trim(), include_str!("login.test.yaml").trim());

    let tests = tollgate_testing::read("tests/login.test.yaml").unwrap();
    let simulation = Simulation::of(lenient);
    let failed = panic::catch_unwind(panic::AssertUnwindSafe(|| simulation.assert_all(&tests)));
    let message = *failed.unwrap_err().downcast::<String>().unwrap();
    let table = page.split("```text\n").find(|part| part.starts_with("FAIL  sixth")).unwrap();
    let table = table.split("```").next().unwrap();
    assert_eq!(message.trim(), table.trim());
}
