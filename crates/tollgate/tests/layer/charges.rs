//! Charges: request costs and free requests such as preflights and exempt paths.

use std::time::Duration;

use axum::Router;
use axum::routing::any;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response};
use http_body_util::Full;
use tollgate::key::ClientIp;
use tollgate::layer::{LayerError, LimitVerdict, Verdicts};
use tollgate::limit::Paths;
use tollgate::policy::{Cost, Strikes};
use tollgate::{Costs, Limit, MemoryStore, Policy, Quota};
use tower::{Layer, ServiceExt};

use crate::stage::Staged;
use crate::support::*;

type Counted = Staged<MemoryStore<tollgate::store::ManualClock>>;

fn counted() -> Counted {
    Staged::new(memory().1)
}

fn remaining(headers: &http::HeaderMap) -> u64 {
    field(headers, "x-ratelimit-remaining").unwrap().parse().unwrap()
}

#[tokio::test]
async fn all_policies_share_one_store_call() {
    for policies in [1, 2, 5, 20] {
        let store = counted();
        let limits = (0..policies).map(|n| Limit::global(log(&format!("p{n}"), 1)));
        let service = limited(&store, limits);
        assert_eq!((status(&service).await, status(&service).await), (200, 429));
        assert_eq!(store.calls(), 2, "one for each request, denied or not");
    }
}

#[tokio::test]
async fn only_cors_preflights_are_exempt() {
    let store = counted();
    let service = limited(&store, [Limit::global(log("global", 1))]);
    let options = |headers: &[&'static str]| {
        let mut request = request(Method::OPTIONS, "/");
        for name in headers {
            request.headers_mut().insert(*name, HeaderValue::from_static("x"));
        }
        request
    };
    for _ in 0..3 {
        let preflight = options(&["origin", "access-control-request-method"]);
        let response = ask(&service, preflight).await;
        assert_eq!(response.status(), 200);
        assert_eq!(rate_fields(response.headers()), Vec::<String>::new());
    }
    assert_eq!(store.calls(), 0);
    assert_eq!(ask(&service, options(&["origin"])).await.status(), 200);
    for headers in [&[][..], &["origin"], &["access-control-request-method"]] {
        assert_eq!(ask(&service, options(headers)).await.status(), 429, "{headers:?}");
    }
    // A GET with preflight headers is not a preflight.
    let mut pretender = options(&["origin", "access-control-request-method"]);
    *pretender.method_mut() = Method::GET;
    assert_eq!(ask(&service, pretender).await.status(), 429);
}

#[tokio::test]
async fn preflights_can_be_limited() {
    let store = counted();
    let layer = builder(&store, [Limit::global(log("global", 1))]).exempt_preflights(false);
    let service = layer.build().unwrap().layer(hello());
    for expected in [200, 429] {
        let mut preflight = request(Method::OPTIONS, "/");
        for name in ["origin", "access-control-request-method"] {
            preflight.headers_mut().insert(name, HeaderValue::from_static("x"));
        }
        assert_eq!(ask(&service, preflight).await.status(), expected);
    }
    assert_eq!(store.calls(), 2);
}

#[tokio::test]
async fn exempt_paths_do_not_touch_the_store() {
    let store = counted();
    let limits = [Limit::global(log("global", 1)), Limit::new(log("ip", 1), ClientIp::peer())];
    let service = builder(&store, limits)
        .exempt_paths(Paths::new(["/healthz", "/static/*", "/검색"]).unwrap())
        .exempt(|head| head.headers.contains_key("x-internal"))
        .build()
        .unwrap()
        .layer(hello());
    let mut internal = get();
    internal.headers_mut().insert("x-internal", HeaderValue::from_static("yes"));
    // A health check is exempt even if the server does not know the peer address.
    let healthz = Request::builder().uri("/healthz").body(()).unwrap();
    let asset = request(Method::GET, "/static/app.css?v=2");
    let search = request(Method::GET, "/%EA%B2%80%EC%83%89?q=%ED%86%A8");
    for exempt in [internal, healthz, asset, search] {
        let response = ask(&service, exempt).await;
        assert_eq!(response.status(), 200);
        assert_eq!(rate_fields(response.headers()), Vec::<String>::new());
    }
    assert_eq!(store.calls(), 0);
    let limited =
        ["/healthz/", "/static/../admin", "/static/%2e%2e/admin", "//healthz", "/healt%68z"];
    for path in limited {
        ask(&service, request(Method::GET, path)).await;
    }
    assert_eq!(store.calls(), limited.len());
}

#[tokio::test]
async fn unmatched_paths_do_not_touch_the_store() {
    let store = counted();
    let logins = Limit::global(log("login", 1)).on_paths(Paths::new(["/login"]).unwrap());
    let rest = Limit::global(log("rest", 1)).on_paths(Paths::new(["/api/*"]).unwrap());
    let rest = rest.except_paths(Paths::new(["/api/status"]).unwrap());
    let service = limited(&store, [logins, rest]);
    for path in ["/", "/api/status", "/%EA%B2%80%EC%83%89", "/caf%C3%A9", "/a%20b", "/%6Fther"] {
        let response = ask(&service, request(Method::GET, path)).await;
        assert_eq!(rate_fields(response.headers()), Vec::<String>::new());
    }
    assert_eq!(store.calls(), 0);
    for (path, policy) in [("/login", "login"), ("/api/users", "rest"), ("/api", "rest")] {
        let response = ask(&service, request(Method::GET, path)).await;
        let members = field(response.headers(), "ratelimit").unwrap();
        assert_eq!(members, format!(r#""{policy}";r=0;t=60"#));
    }
}

#[tokio::test]
async fn cost_depends_on_route_pattern() {
    let costs = Costs::by_method().route("/reports/{id}", Cost::new(50));
    let limit = Limit::global(log("global", 100)).costs(costs);
    let app = Router::new()
        .route("/reports/{id}", any(|| async { "a report" }))
        .route("/other", any(|| async { "another" }))
        .layer(layer(&counted(), [limit]));
    for (path, method, expected) in [
        ("/reports/7", Method::GET, 50),
        ("/other", Method::DELETE, 40),
        ("/other?to=/reports/7", Method::GET, 39),
        ("/missing", Method::POST, 34),
    ] {
        let response = ask_router(&app, request(method, path)).await;
        assert_eq!(remaining(response.headers()), expected, "{path}");
    }
}

#[tokio::test]
async fn nested_route_matches_full_pattern() {
    let costs = || Costs::by_method().route("/api/reports/{id}", Cost::new(50));
    let limit = || layer(&counted(), [Limit::global(log("global", 100)).costs(costs())]);
    let api = || Router::new().route("/reports/{id}", any(|| async { "a report" }));
    let inside = Router::new().nest("/api", api().layer(limit()));
    let outside = Router::new().nest("/api", api()).layer(limit());
    for app in [inside, outside] {
        let response = ask_router(&app, request(Method::GET, "/api/reports/7")).await;
        assert_eq!(remaining(response.headers()), 50);
    }
}

#[tokio::test]
async fn policies_have_separate_costs() {
    let bytes = Costs::flat(Cost::new(1)).with_fn(|head| {
        let length = head.headers.get("content-length")?.to_str().ok()?.parse().ok()?;
        Some(Cost::new(length))
    });
    let upload = Policy::token_bucket("bytes", Quota::per_second(1_000)).unwrap();
    let limits = [
        Limit::global(log("requests", 10)).costs(Costs::flat(Cost::ONE)),
        Limit::global(upload).costs(bytes),
        Limit::global(log("units", 10)).costs(Costs::by_method()),
    ];
    let service = limited(&counted(), limits);
    let mut post = request(Method::POST, "/");
    post.headers_mut().insert("content-length", HeaderValue::from_static("900"));
    let response = ask(&service, post).await;
    let members = field(response.headers(), "ratelimit").unwrap();
    for member in [r#""requests";r=9;"#, r#""bytes";r=100;"#, r#""units";r=5;"#] {
        assert!(members.contains(member), "{members}");
    }
}

#[tokio::test]
async fn verdicts_are_ordered_outermost_first() {
    let store = counted();
    let exposing = |name: &str, limit| {
        let limits = [Limit::global(log(name, limit))];
        builder(&store, limits).expose_verdicts(true).build().unwrap()
    };
    let handler = tower::service_fn(|request: Request<()>| async move {
        let verdicts = request.extensions().get::<Verdicts>().unwrap();
        let left: Vec<_> = verdicts.iter().map(|verdict| verdict.decision().remaining).collect();
        Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::from(format!("{left:?}"))))
    });
    let silent = layer(&store, [Limit::global(log("silent", 99))]);
    let inner = exposing("inner", 2).layer(handler);
    let service = exposing("outer", 9).layer(silent.layer(inner));
    let limits = |response: &Response<_>| {
        let verdicts = response.extensions().get::<Verdicts>().unwrap();
        verdicts.iter().map(|verdict| verdict.decision().limit).collect::<Vec<_>>()
    };
    let response = service.clone().oneshot(get()).await.unwrap();
    assert_eq!(limits(&response.map(drop)), [9, 2]);
    let response = service.clone().oneshot(get()).await.unwrap();
    assert_eq!(text(response).await, "[7, 0]");
    // A denial carries verdicts as well because an outer layer may log them.
    let response = service.oneshot(get()).await.unwrap();
    assert_eq!(response.status(), 429);
    let verdicts = response.extensions().get::<Verdicts>().unwrap();
    let exceeded: Vec<_> = verdicts.iter().map(LimitVerdict::is_exceeded).collect();
    assert_eq!(exceeded, [false, true]);
    assert_eq!(limits(&response.map(drop)), [9, 2]);
}

#[tokio::test(start_paused = true)]
async fn queued_requests_carry_their_verdict() {
    let store = Staged::new(on_tokio_time());
    let queue = Policy::leaky_bucket("queue", Quota::per_second(10).burst(5)).unwrap();
    let builder = builder(&store, [Limit::global(queue)]);
    let handler = tower::service_fn(|request: Request<()>| async move {
        let verdicts = request.extensions().get::<Verdicts>().unwrap();
        let delay = verdicts.get("queue").unwrap().decision().delay();
        Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::from(format!(
            "after {delay}"
        ))))
    });
    let service = builder.expose_verdicts(true).build().unwrap().layer(handler);
    store.hold();
    let tasks: Vec<_> = (0..2).map(|_| tokio::spawn(service.clone().oneshot(get()))).collect();
    tokio::task::yield_now().await;
    store.release();
    let mut answers = Vec::new();
    for task in tasks {
        let response = task.await.unwrap().unwrap();
        assert!(response.extensions().get::<Verdicts>().is_some());
        answers.push(text(response).await);
    }
    assert_eq!(answers, ["after 0 seconds", "after 100 milliseconds"]);
}

#[tokio::test]
async fn verdicts_are_hidden_by_default() {
    let store = counted();
    let handler = tower::service_fn(|request: Request<()>| async move {
        assert!(request.extensions().get::<Verdicts>().is_none());
        Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::default()))
    });
    let service = layer(&store, [Limit::global(log("global", 1))]).layer(handler);
    for expected in [200, 429] {
        let response = service.clone().oneshot(get()).await.unwrap();
        assert_eq!(response.status(), expected);
        assert!(response.extensions().get::<Verdicts>().is_none());
    }
}

#[test]
fn cost_above_capacity_does_not_build() {
    let (_, store) = memory();
    let error = |limit: Limit| builder(&store, [limit]).build().err().map(|it| it.to_string());
    let bucket = Policy::token_bucket("bucket", Quota::per_second(5)).unwrap();
    let bucket = || Limit::global(bucket.clone());
    assert_eq!(
        error(bucket().costs(Costs::by_method())).unwrap(),
        "policy `bucket` grants at most 5 units at the same time, but a DELETE request costs 10, so \
         it would always be denied with 403: raise the limit or the burst to at least 10, lower \
         this cost, or give the limit its own costs, for example `.cost(1)` [TG0107]"
    );
    for (costs, expected) in [
        (Costs::flat(6), "but a request costs 6,"),
        (Costs::default().route("/reports/{id}", 50), "but a request to `/reports/{id}` costs 50,"),
        (Costs::default().method(Method::TRACE, 7), "but a TRACE request costs 7,"),
    ] {
        let found = error(bucket().costs(costs)).unwrap();
        assert!(found.contains(expected), "{found}");
    }
    // The layer's costs apply to limits without their own costs.
    let by_method = builder(&store, [bucket()]).costs(Costs::by_method()).build();
    let Err(LayerError::CostAboveCapacity(found)) = by_method else { panic!("{by_method:?}") };
    assert_eq!((found.cost, found.capacity), (Cost::new(10), 5));
    let tier = bucket().cost(5).in_tier("small", Quota::per_second(4)).unwrap();
    let tier = builder(&store, [tier]).tiers(tollgate::tier::from_fn(|_| None::<String>)).build();
    let found = tier.unwrap_err().to_string();
    assert!(found.starts_with("policy `bucket` in tier `small` grants at most 4 units"), "{found}");

    assert_eq!(error(bucket()), None, "by default each request costs 1");
    assert_eq!(error(bucket().costs(Costs::flat(5))), None);
    // A cost that depends on the request is unknown at build time: such requests get 403.
    assert_eq!(error(bucket().costs(Costs::from_fn(|_| Some(6)))), None);
    let penalty = bucket().penalty("banned", Strikes::of_denials(2, Duration::from_secs(60)));
    let both = builder(&store, [bucket(), penalty.unwrap()]).build();
    assert!(both.is_ok(), "a penalty charges no units");
}
