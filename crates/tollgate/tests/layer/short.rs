//! The layer's short constructors, and conveniences for closures and handlers.

use axum::extract::State;
use axum::routing::{get as on_get, post};
use axum::{Json, Router};
use http::{Method, Request, StatusCode};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tollgate::body::InFlight;
use tollgate::denial::{Denial, Reason};
use tollgate::key::{ApiKeys, Key, PathParam, RequestHead};
use tollgate::layer::Reservation;
use tollgate::limit::{OnMissingKey, Reserve};
use tollgate::store::AnyStore;
use tollgate::tier::{self, TierSource};
use tollgate::{Limit, Policy, Quota, RateLimitLayer, StoreExt};
use tower::Layer;

use crate::support::*;

#[tokio::test]
async fn short_forms_charge_each_request_once() {
    let quota = Quota::per_minute(2);
    let post = || request(Method::POST, "/");
    let global = RateLimitLayer::global(quota).unwrap().layer(hello());
    let per_ip = RateLimitLayer::per_ip(quota).unwrap().layer(hello());
    for (service, other) in [(global, 429), (per_ip, 200)] {
        for expected in [200, 200, 429] {
            assert_eq!(ask(&service, post()).await.status(), expected);
        }
        assert_eq!(ask(&service, from_peer(2, post())).await.status(), other);
    }
    let keys = ApiKeys::from_keys(["k-7f3a"]);
    let per_key = RateLimitLayer::per_api_key(quota, keys).unwrap().layer(hello());
    for (key, expected) in [("k-7f3a", 200), ("k-7f3a", 200), ("k-7f3a", 429), ("other", 403)] {
        let request = Request::builder().header("x-api-key", key).body(()).unwrap();
        assert_eq!(ask(&per_key, request).await.status(), expected);
    }
}

#[tokio::test]
async fn denial_closure_returns_any_axum_response() {
    let (_, store) = memory();
    let layer = |name: &str| builder(&store, [Limit::global(log(name, 1)).cost(1)]);
    let page = layer("page").on_denied(|denial| {
        assert_eq!((denial.reason(), denial.policies()), (Reason::QuotaExceeded, &["page"][..]));
        assert_eq!((denial.limit(), denial.remaining()), (Some(1), Some(0)));
        let path = denial.request().map_or("", |head| head.uri.path());
        (StatusCode::IM_A_TEAPOT, [("x-path", path.to_owned())], "no more tea")
    });
    let service = page.build().unwrap().layer(hello());
    assert_eq!(status(&service).await, 200);
    let response = ask(&service, request(Method::GET, "/tea")).await;
    assert_eq!(
        (response.status(), &response.headers()["x-path"]),
        (StatusCode::IM_A_TEAPOT, &"/tea".parse().unwrap())
    );
    assert_eq!(rate_fields(response.headers()).len(), 6);
    assert_eq!(response.headers()["cache-control"], "no-store");
    assert_eq!(text(response).await, "no more tea");

    let object = layer("object")
        .on_denied(|denial| denial.json(&serde_json::json!({"wait": denial.retry_after_secs()})));
    let service = object.build().unwrap().layer(hello());
    assert_eq!(status(&service).await, 200);
    let response = ask(&service, get()).await;
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["content-type"], "application/json");
    assert_eq!(json(response).await, serde_json::json!({"wait": 60}));
}

#[tokio::test]
async fn denial_status_is_the_default() {
    let (_, store) = memory();
    let layer = |name: &str| builder(&store, [Limit::global(log(name, 1))]);
    let wait = serde_json::json!({"wait": 60});
    let value = Json(wait.clone());
    let services = [
        layer("json").on_denied(move |_| value.clone()),
        layer("text").on_denied(|_| "slow down"),
        layer("bytes").on_denied(|_| http::Response::new(bytes::Bytes::from("slow down"))),
    ];
    for builder in services {
        let service = builder.build().unwrap().layer(hello());
        assert_eq!(status(&service).await, 200);
        assert_eq!(status(&service).await, 429);
    }
    // An implementation of `DenialResponse` may still choose 200.
    let fine = |_: &Denial<'_>| http::Response::new(bytes::Bytes::from("{}"));
    let service = layer("rpc").denial_response(fine).build().unwrap().layer(hello());
    assert_eq!(status(&service).await, 200);
    assert_eq!(text(ask(&service, get()).await).await, "{}");
    assert_eq!(status(&service).await, 200);
}

#[tokio::test]
async fn reservation_extractor_never_fails() {
    let (_, store) = memory();
    let handler = |reservation: Reservation| async move { reservation.settle(2) };
    let free = Router::new().route("/", on_get(handler));
    assert_eq!(ask_router(&free, get()).await.status(), 200);
    let policy = log("tokens", 10);
    let limit = Limit::global(policy.clone()).cost(5).reserve(Reserve::by_handler());
    assert_eq!(ask_router(&free.layer(layer(&store, [limit])), get()).await.status(), 200);
    let verdict = store.peek(&policy, &Key::GLOBAL).await.unwrap();
    assert_eq!(verdict.decisions()[0].remaining, 8);
}

#[tokio::test]
async fn handler_can_extend_permits() {
    let (_, store) = memory();
    let policies = ["outer", "inner"]
        .map(|name| Policy::concurrent_requests(name, 1, Duration::from_secs(30)).unwrap());
    let [outer, inner] = policies.clone().map(|policy| layer(&store, [Limit::global(policy)]));
    let kept = Arc::new(Mutex::new(Vec::new()));
    let handler = |State(kept): State<Arc<Mutex<Vec<_>>>>, permits: InFlight| async move {
        kept.lock().push(permits);
    };
    let app = Router::new().route("/keep", post(handler)).route("/", on_get(|| async {}));
    let app = app.layer(inner).layer(outer).with_state(Arc::clone(&kept));
    let left = async || {
        let mut left = Vec::new();
        for policy in &policies {
            let verdict = store.peek(policy, &Key::GLOBAL).await.unwrap();
            left.push(verdict.decisions()[0].remaining);
        }
        left
    };
    drop(ask_router(&app, get()).await);
    assert_eq!(left().await, [1, 1], "the extensions alone hold no permit");
    drop(ask_router(&app, request(Method::POST, "/keep")).await);
    assert_eq!(left().await, [0, 0]);
    assert_eq!(ask_router(&app, get()).await.status(), 429);
    kept.lock().clear();
    assert_eq!(left().await, [1, 1]);
}

#[tokio::test]
async fn path_param_key_works_with_any_store() {
    let (_, store) = memory();
    let tenant = Limit::new(log("tenant", 1), PathParam::new("tenant"));
    let limit = layer(&AnyStore::new(store), [tenant.on_missing_key(OnMissingKey::Pass).cost(1)]);
    let orders = Router::new().route("/orders", on_get(|| async {})).layer(limit);
    let app = Router::new().nest("/tenants/{tenant}", orders);
    for (path, expected) in [
        ("/tenants/acme/orders", 200),
        ("/tenants/%61cme/orders", 429),
        ("/tenants/other/orders", 200),
    ] {
        assert_eq!(ask_router(&app, request(Method::GET, path)).await.status(), expected, "{path}");
    }
}

#[test]
fn tier_sources_fall_through() {
    let named = |name: &'static str| {
        tier::from_fn(move |head: &RequestHead<'_>| head.headers.contains_key(name).then_some(name))
    };
    let source = named("gold").or(named("silver"));
    for (header, expected) in [("gold", Some("gold")), ("silver", Some("silver")), ("x", None)] {
        let request = Request::builder().header(header, "1").body(()).unwrap();
        let tier = source.tier(&RequestHead::of(&request));
        assert_eq!(tier.as_ref().map(tier::Tier::as_str), expected);
    }
}

#[test]
fn error_debug_equals_display() {
    let error = RateLimitLayer::builder(memory().1).build().unwrap_err();
    assert_eq!(format!("{error:?}"), error.to_string());
    let error = RateLimitLayer::per_ip(Quota::per_day(123_457)).unwrap_err();
    assert!(format!("{error:?}").ends_with("limit that works is 123456 [TG0104]"), "{error:?}");
}
