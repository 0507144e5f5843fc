//! The example of docs/testing-limits.md, and the table that it shows.

#![expect(clippy::unwrap_used, reason = "this crate is all tests, including their helpers")]

use std::panic;
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use tollgate::key::ClientIp;
use tollgate::{Limit, Policy, Quota, RateLimitLayer, Store};
use tollgate_testing::{Expected, Requests, Simulation, Test};

/// A service with a login, which allows `per_minute` attempts.
fn service(store: impl Store, per_minute: u64) -> Router {
    let policy = Policy::token_bucket("login", Quota::per_minute(per_minute)).unwrap();
    let limit = Limit::new(policy, ClientIp::peer());
    let layer = RateLimitLayer::builder(store).limit(limit).build().unwrap();
    Router::new()
        .route("/login", post(|| async { "welcome" }))
        .layer(layer)
        .route("/items", get(|| async { "hat, shoe" }))
}

fn app(store: impl Store) -> Router {
    service(store, 5)
}

/// The page's test.
mod page {
    use super::*;

    #[test]
    fn a_password_cannot_be_guessed_quickly() {
        let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3_600));
        let attempts = Requests::post("/login").every(second).during(hour);
        let test = Test::new("a password cannot be guessed quickly")
            .send(attempts.expect(Expected::allowed(..=305)))
            .expect(Expected::never_more_than(10, Duration::from_secs(60)));
        Simulation::of(app).assert(&test);
    }

    #[test]
    fn limits_pass_the_file() {
        Simulation::of(app).assert_all(&tollgate_testing::read("tests/login.test.yaml").unwrap());
    }
}

#[test]
fn page_shows_this_code_and_its_table() {
    let page = include_str!("../../../docs/testing-limits.md");
    let source = include_str!("login.rs");
    let code = page.split("```rust").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    // The page's code is indented less.
    let lines = code.lines().map(str::trim).filter(|line| !line.is_empty());
    for line in lines.skip(1) {
        assert!(source.contains(line), "{line}");
    }
    let file = page.split("```text\n").find(|part| part.starts_with("tests:")).unwrap();
    let file = file.split("```").next().unwrap();
    assert_eq!(file.trim(), include_str!("login.test.yaml").trim());
    let lines = code.lines().filter(|line| !line.trim().is_empty()).count();
    assert!(lines <= 15, "{lines} lines");

    let tests = tollgate_testing::read("tests/login.test.yaml").unwrap();
    let lenient = Simulation::of(|store| service(store, 6));
    let failed = panic::catch_unwind(panic::AssertUnwindSafe(|| lenient.assert_all(&tests)));
    let message = *failed.unwrap_err().downcast::<String>().unwrap();
    let table = page.split("```text\n").find(|part| part.starts_with("FAIL  sixth")).unwrap();
    let table = table.split("```").next().unwrap();
    assert_eq!(message.trim(), table.trim());
}
