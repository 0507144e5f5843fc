//! `Status`: where a caller stands, without a charge.

use std::time::Duration;

use axum::Router;
use axum::routing::get as route;
use http::{Method, Request, Response};
use serde_json::{Value, json};
use tollgate::key::{ApiKey, ApiKeys, ClientIp};
use tollgate::layer::Status;
use tollgate::limit::{OnMissingKey, Paths};
use tollgate::policy::{OnStoreError, Strikes};
use tollgate::{Limit, Policy, Quota, Store};
use tower::{Layer, ServiceExt};

use crate::stage::{Fault, Staged};
use crate::support::*;

async fn standing<St: Store>(status: &Status<St>, request: Request<()>) -> Response<String> {
    status.clone().oneshot(request).await.expect("an infallible service")
}

async fn limits<St: Store>(status: &Status<St>) -> Value {
    let answer = standing(status, request(Method::GET, "/rate-limit")).await;
    assert_eq!(answer.status(), 200);
    json(answer).await["limits"].take()
}

#[tokio::test]
async fn status_charges_nothing() {
    let (clock, store) = memory();
    let client = Limit::new(log("client", 2), ClientIp::peer());
    let layer = layer(&store, [client, Limit::global(log("all", 9))]);
    let (service, status) = (layer.layer(hello()), layer.status());
    let all = |remaining: u64, reset: &str| {
        json!({"policy": "all", "limit": 9, "remaining": remaining, "window": "60 seconds",
               "reset_at": format!("2024-01-01T00:0{reset}Z")})
    };
    let fresh = json!({"policy": "client", "limit": 2, "remaining": 2, "window": "60 seconds",
                       "reset_at": "2024-01-01T00:00:00Z"});
    for _ in 0..3 {
        assert_eq!(limits(&status).await, json!([fresh, all(9, "0:00")]));
    }
    for expected in [200, 200, 429] {
        assert_eq!(ask(&service, get()).await.status(), expected);
    }
    let mut used = json!({"policy": "client", "limit": 2, "remaining": 0, "window": "60 seconds",
                          "retry_after": 60, "reset_at": "2024-01-01T00:01:00Z"});
    for _ in 0..3 {
        assert_eq!(limits(&status).await, json!([used, all(7, "1:00")]));
    }
    clock.advance(seconds(20));
    used["retry_after"] = json!(40);
    let answer = standing(&status, get()).await;
    assert_eq!(
        field(answer.headers(), "ratelimit").as_deref(),
        Some("\"client\";r=0;t=40, \"all\";r=7;t=47")
    );
    assert_eq!(field(answer.headers(), "x-ratelimit-remaining").as_deref(), Some("0"));
    assert_eq!(field(answer.headers(), "cache-control").as_deref(), Some("no-store"));
    assert_eq!(json(answer).await["limits"], json!([used, all(7, "1:00")]));
    // Another client has its own quota.
    let other = standing(&status, from_peer(2, get())).await;
    assert_eq!(json(other).await["limits"][0], fresh_at(&fresh, "2024-01-01T00:00:20Z"));
}

fn fresh_at(fresh: &Value, reset: &str) -> Value {
    let mut fresh = fresh.clone();
    fresh["reset_at"] = json!(reset);
    fresh
}

#[tokio::test]
async fn hidden_and_shadow_policies_are_not_shown() {
    let (_, store) = memory();
    let named = |name: &str| Limit::global(log(name, 9));
    let paths = Paths::new(["/login"]).unwrap();
    let layer = layer(
        &store,
        [
            named("shadow").shadow(),
            named("hidden").hide_headers(),
            named("login").on_paths(paths.clone()),
            named("rest").except_paths(paths),
            named("writes").when(|head| *head.method == Method::POST),
        ],
    );
    let shown = limits(&layer.status()).await;
    let names: Vec<_> = shown.as_array().unwrap().iter().map(|it| &it["policy"]).collect();
    assert_eq!(names, ["login", "rest"]);
}

/// A penalty appears while it blocks, and asking is not a strike. A permit is not taken.
#[tokio::test]
async fn status_shows_penalties_and_permits() {
    let (_, store) = memory();
    let minute = Duration::from_secs(60);
    let client = Limit::new(log("client", 1), ClientIp::peer());
    let banned = client.penalty("banned", Strikes::of_denials(2, minute)).unwrap();
    let permits = Policy::concurrent_requests("streams", 2, minute).unwrap();
    let permits = Limit::new(permits, ClientIp::peer());
    let layer = layer(&store, [client, banned, permits]);
    let (status, service) = (layer.status(), layer.any_body().layer(hello()));
    assert_eq!(ask(&service, get()).await.status(), 200);
    for _ in 0..5 {
        let shown = limits(&status).await;
        assert_eq!(shown.as_array().map(Vec::len), Some(2), "{shown}");
        let streams = json!({"policy": "streams", "limit": 2, "remaining": 2,
                             "quota_unit": "concurrent-requests"});
        assert_eq!((&shown[0]["remaining"], &shown[1]), (&json!(0), &streams));
    }
    let held = ask(&service, from_peer(2, get())).await;
    let other = standing(&status, from_peer(2, get())).await;
    assert_eq!(json(other).await["limits"][1]["remaining"], 1);
    drop(held);
    for _ in 0..2 {
        assert_eq!(ask(&service, get()).await.status(), 429);
    }
    let shown = limits(&status).await;
    assert_eq!(shown[1], json!({"policy": "banned", "blocked": true, "retry_after": 60}));
}

#[tokio::test]
async fn callers_without_a_key_are_denied() {
    let (_, store) = memory();
    let key = ApiKey::in_x_api_key().one_of(ApiKeys::from_keys(["k"]));
    let limit =
        |on_missing_key| Limit::new(log("key", 9), key.clone()).on_missing_key(on_missing_key);
    let denies = layer(&store, [limit(OnMissingKey::Deny)]).status();
    let answer = standing(&denies, get()).await;
    assert_eq!(answer.status(), 403);
    assert_eq!(json(answer).await["code"], "missing-key");
    let passes = layer(&store, [limit(OnMissingKey::Pass)]).status();
    assert_eq!(limits(&passes).await, json!([]));
    let head = standing(&passes, request(Method::HEAD, "/")).await;
    assert_eq!((head.status().as_u16(), head.body().len()), (200, 0));
    let length = r#"{"limits":[]}"#.len().to_string();
    assert_eq!(field(head.headers(), "content-length"), Some(length));
    let post = standing(&passes, request(Method::POST, "/")).await;
    assert_eq!(post.status(), 405);
    assert_eq!(field(post.headers(), "allow").as_deref(), Some("GET, HEAD"));
}

#[tokio::test]
async fn status_needs_the_store() {
    let store = Staged::new(memory().1);
    let open = log("client", 2).with_on_store_error(OnStoreError::Open);
    let status = layer(&store, [Limit::global(open)]).status();
    store.fail(Fault::NotCharged);
    let answer = standing(&status, get()).await;
    assert_eq!(answer.status(), 503);
    assert!(field(answer.headers(), "retry-after").is_some());
    assert_eq!(json(answer).await["code"], "temporary-reduced-capacity");
}

/// Each layer's store answers for its own limits, also if both layers have a policy of the same name.
#[tokio::test]
async fn status_shows_several_layers() {
    let per_ip = |limit| tollgate::RateLimitLayer::per_ip(Quota::per_minute(limit)).unwrap();
    let (all, search) = (per_ip(9), per_ip(5));
    assert_eq!(ask(&search.layer(hello()), get()).await.status(), 200);
    let of_search = search.status().showing(|_| Some(vec!["GET /search".to_owned()]));
    let shown = limits(&all.status().and(&of_search)).await;
    let numbers = |limit: &Value| {
        (limit["remaining"].as_u64(), limit.get("applies_to").map(ToString::to_string))
    };
    let shown: Vec<_> = shown.as_array().unwrap().iter().map(numbers).collect();
    assert_eq!(shown, [(Some(9), None), (Some(4), Some(r#"["GET /search"]"#.to_owned()))]);
    // The headers are as short as a single layer's.
    let many = (0..100).fold(Status::default(), |status, _| status.and(&of_search));
    let answer = standing(&many, get()).await;
    let named = field(answer.headers(), "ratelimit").unwrap().matches("client").count();
    assert_eq!((named, json(answer).await["limits"].as_array().unwrap().len()), (64, 100));
    // A hidden limit stays hidden.
    let hidden = of_search.showing(|limit| (limit.policy().name() != "client").then(Vec::new));
    let hidden = hidden.showing(|_| Some(Vec::new()));
    assert_eq!(limits(&hidden).await, json!([]));
}

/// The layer is not around the status, so that a client without units can still ask.
#[tokio::test]
async fn router_serves_the_status() {
    let layer = tollgate::RateLimitLayer::per_ip(Quota::per_minute(1)).unwrap();
    let app: Router = Router::new()
        .route("/", route(|| async { "hello" }))
        .layer(layer.clone())
        .route_service("/rate-limit", layer.status());
    for expected in [200, 429, 429] {
        assert_eq!(ask_router(&app, get()).await.status(), expected);
    }
    let answer = ask_router(&app, request(Method::GET, "/rate-limit")).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(json(answer).await["limits"][0]["remaining"], 0);
}
