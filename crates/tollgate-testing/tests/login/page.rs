use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use tollgate::key::ClientIp;
use tollgate::{Limit, Policy, Quota, RateLimitLayer, Store};
use tollgate_testing::{Expected, Requests, Simulation, Test};

fn app(store: impl Store) -> Router {
    let policy = Policy::token_bucket("login", Quota::per_minute(5)).unwrap();
    let limit = Limit::new(policy, ClientIp::peer());
    let layer = RateLimitLayer::builder(store).limit(limit).build().unwrap();
    Router::new()
        .route("/login", post(|| async { "welcome" }))
        .layer(layer)
        .route("/items", get(|| async { "hat, shoe" }))
}

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
    let tests = tollgate_testing::read("tests/login.test.yaml").unwrap();
    Simulation::of(app).assert_all(&tests);
}
