//! Several policies in one layer, and nested layers.

use axum::Router;
use axum::routing::get as on_get;
use http::{Method, StatusCode};
use tollgate::key::{ClientIp, Header};
use tollgate::limit::OnMissingKey;
use tollgate::policy::{Algorithm, LeakyMode, Refill};
use tollgate::{Limit, Policy, Quota};

use crate::support::*;

/// One policy per algorithm, with different keys. Each allows three GETs.
fn one_of_each() -> Vec<Limit> {
    let minute = Quota::per_minute(3);
    let tenant = || Header::trust_unverified(http::HeaderName::from_static("x-tenant"));
    [
        (Algorithm::FixedWindowCounter, Limit::global as fn(Policy) -> Limit),
        (Algorithm::SlidingWindowCounter, |policy| Limit::new(policy, ClientIp::peer())),
        (Algorithm::TokenBucket { refill: Refill::Greedy }, Limit::global),
        (Algorithm::LeakyBucket { mode: LeakyMode::Meter }, Limit::global),
    ]
    .into_iter()
    .map(|(algorithm, limit)| {
        limit(Policy::new(algorithm.to_string(), minute, algorithm).expect("a valid policy"))
    })
    .chain([Limit::new(log("tenant", 3), tenant()).on_missing_key(OnMissingKey::Share)])
    .collect()
}

#[tokio::test]
async fn all_algorithms_decide_together() {
    let (_, store) = memory();
    let service = limited(&store, one_of_each());
    for remaining in [2, 1, 0] {
        let response = ask(&service, get()).await;
        assert_eq!(response.status(), StatusCode::OK);
        let members = field(response.headers(), "ratelimit").unwrap();
        let expected = format!(";r={remaining};");
        assert_eq!(members.matches(&expected).count(), 5, "{members}");
    }
    let response = ask(&service, get()).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    let problem = json(response).await;
    assert_eq!(problem["violated-policies"].as_array().map(Vec::len), Some(5), "{problem}");
}

#[tokio::test]
async fn policies_use_their_own_keys() {
    let (_, store) = memory();
    let by_ip = Limit::new(log("ip", 1), ClientIp::peer());
    let service = limited(&store, [by_ip, Limit::global(log("all", 2))]);
    assert_eq!(ask(&service, from_peer(1, get())).await.status(), 200);
    assert_eq!(ask(&service, from_peer(1, get())).await.status(), 429, "ip is used up");
    assert_eq!(ask(&service, from_peer(2, get())).await.status(), 200, "another address");
    let problem = json(ask(&service, from_peer(3, get())).await).await;
    assert_eq!(problem["violated-policies"], serde_json::json!(["all"]));
}

#[tokio::test]
async fn denial_charges_no_policy() {
    let (clock, store) = memory();
    let tight = Policy::fixed_window_counter("tight", Quota::per_second(1)).unwrap();
    let service = limited(&store, [Limit::global(tight), Limit::global(log("wide", 3))]);
    assert_eq!(status(&service).await, 200);
    for _ in 0..20 {
        let response = ask(&service, get()).await;
        assert_eq!(response.status(), 429);
        let members = field(response.headers(), "ratelimit").unwrap();
        assert!(members.contains(r#""wide";r=2;"#), "{members}");
    }
    for _ in 0..2 {
        clock.advance(seconds(1));
        assert_eq!(status(&service).await, 200, "denied requests did not charge `wide`");
    }
}

#[tokio::test]
async fn concurrent_requests_match_the_tighter_limit() {
    let (_, store) = memory();
    let by_ip = Limit::new(log("ip", 40), ClientIp::peer());
    let service = limited(&store, [by_ip, Limit::global(log("all", 100))]);
    let tasks: Vec<_> = (0..400_u16)
        .map(|n| {
            let service = service.clone();
            let peer = u8::try_from(n % 4).unwrap();
            tokio::spawn(async move { ask(&service, from_peer(peer, get())).await.status() })
        })
        .collect();
    let mut passed = 0;
    for task in tasks {
        passed += usize::from(task.await.unwrap() == StatusCode::OK);
    }
    assert_eq!(passed, 100);
}

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
