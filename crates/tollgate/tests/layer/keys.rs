//! Keys: missing keys, servers without a peer address, and layers that do not build.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Extension as Inserted, Request as AxumRequest};
use axum::middleware::{Next, from_fn};
use axum::routing::get as on_get;
use http::{HeaderName, HeaderValue, Method, Request};
use tollgate::headers::HeaderOptions;
use tollgate::key::{
    ClientIp, FromExtension, Global, Header, KeyError, KeySource, MatchedRoute, RequestHead,
    Subject,
};
use tollgate::layer::LayerError;
use tollgate::limit::{Mode, OnMissingKey};
use tollgate::policy::{OnStoreError, Strikes};
use tollgate::{Limit, Policy, Quota, RateLimitLayer};
use tower::Layer;

use crate::stage::Staged;
use crate::support::*;

fn tenant() -> Header {
    Header::trust_unverified(HeaderName::from_static("x-tenant"))
}

fn of_tenant(name: &'static str) -> Request<()> {
    let mut request = get();
    request.headers_mut().insert("x-tenant", HeaderValue::from_static(name));
    request
}

#[test]
fn invalid_layers_do_not_build() {
    let (_, store) = memory();
    let queue =
        |name: &str| Limit::global(Policy::leaky_bucket(name, Quota::per_second(1)).unwrap());
    let many = || (0..65).map(|n| Limit::global(log(&format!("p{n}"), 99)));
    let error = |limits: Vec<Limit>| builder(&store, limits).build().err();
    let name = || "p0".to_owned();
    assert_eq!(error(vec![]), Some(LayerError::NoLimit));
    assert_eq!(error(many().collect()), Some(LayerError::TooManyLimits(65)));
    assert_eq!(error(many().take(LayerError::MAX_LIMITS).collect()), None);
    assert_eq!(
        error(many().take(1).chain(many().take(1)).collect()),
        Some(LayerError::SameName(name()))
    );
    assert_eq!(
        error(vec![Limit::new(log("p0", 99), tenant())]),
        Some(LayerError::MissingKeyUndecided(name()))
    );
    assert_eq!(
        error(vec![queue("q0"), queue("q1")]),
        Some(LayerError::TwoQueues("q0".to_owned(), "q1".to_owned()))
    );
    let local = log("p0", 99).with_on_store_error(OnStoreError::Local);
    assert_eq!(
        error(many().skip(1).take(1).chain([Limit::global(local)]).collect()),
        Some(LayerError::NoLocalStore(name()))
    );
}

#[test]
fn single_policy_is_validated() {
    let (_, store) = memory();
    let error = |policy| builder(&store, [Limit::global(policy)]).build().err();
    let strikes = Strikes::of_failures(1, Duration::from_secs(60));
    let name = || "p0".to_owned();
    let penalty = Policy::penalty("p0", strikes).unwrap();
    assert_eq!(error(penalty), Some(LayerError::NoFailures(name())));
    let local = log("p0", 1).with_on_store_error(OnStoreError::Local);
    assert_eq!(error(local), Some(LayerError::NoLocalStore(name())));
    assert_eq!(error(log("p0", 1)), None);
}

#[test]
fn headers_by_policy_need_distinct_names() {
    let (_, store) = memory();
    let named = |name: &str| Limit::global(log(name, 9));
    let error = |limits: [Limit; 2], options: HeaderOptions| {
        builder(&store, limits).headers(options).build().err()
    };
    let by_policy = || HeaderOptions::default().x_ratelimit_by_policy();
    for (one, other) in [("tokens", "Tokens"), ("a b", "A/b"), ("a-", "a:")] {
        let same = LayerError::SameHeaders(one.to_owned(), other.to_owned());
        assert_eq!(error([named(one), named(other)], by_policy()), Some(same));
        assert_eq!(error([named(one), named(other).hide_headers()], by_policy()), None);
        assert_eq!(error([named(one).shadow(), named(other)], by_policy()), None);
        assert_eq!(error([named(one), named(other)], HeaderOptions::all()), None);
    }
    assert_eq!(error([named("a-b"), named("a_b")], by_policy()), None);
    // Sharing headers is only possible on purpose.
    let shared = |name: &str| named("tokens/team").header_name(name);
    assert_eq!(error([named("tokens"), shared("tokens")], by_policy()), None);
    let same = LayerError::SameHeaders("tokens".to_owned(), "Tokens".to_owned());
    assert_eq!(error([named("tokens"), shared("Tokens")], by_policy()), Some(same));
}

#[test]
fn build_errors_name_a_fix() {
    let name = || "p0".to_owned();
    for (error, cure) in [
        (LayerError::NoLimit, "`.limit(..)`"),
        (LayerError::TooManyLimits(65), "nest two layers"),
        (LayerError::SameName(name()), "give each its own name"),
        (LayerError::SameHeaders(name(), name()), "`.hide_headers()`"),
        (LayerError::MissingKeyUndecided(name()), "`.on_missing_key(OnMissingKey::Deny)`"),
        (LayerError::KeyNeverMissing(name()), "remove it"),
        (LayerError::TwoQueues(name(), name()), "`LeakyMode::Meter`"),
        (LayerError::NoLocalStore(name()), "`store.or_local(MemoryStore::new())`"),
    ] {
        assert!(error.to_string().contains(cure), "{error}");
    }
}

#[test]
fn unneeded_missing_key_answer_is_rejected() {
    let (_, store) = memory();
    let limit =
        |key: Arc<dyn KeySource>| Limit::new(log("p0", 99), key).on_missing_key(OnMissingKey::Pass);
    let error = |limit: Limit| builder(&store, [limit]).build().err();
    // `sources_report_whether_key_can_be_missing` lists the other sources.
    let combined: Arc<dyn KeySource> = Arc::new(tenant().or(ClientIp::peer()));
    let expected = LayerError::KeyNeverMissing("p0".to_owned());
    assert_eq!(error(limit(Arc::clone(&combined))), Some(expected));
    // The layer's answer is only a default for limits whose key can be missing.
    let builder = builder(&store, [Limit::new(log("p0", 99), combined)]);
    assert!(builder.on_missing_key(OnMissingKey::Pass).build().is_ok());
    assert_eq!(error(limit(Arc::new(tenant()))), None);
}

#[tokio::test]
async fn layer_decides_64_limits() {
    let (_, store) = memory();
    let service = limited(&store, (0..64).map(|n| Limit::global(log(&format!("p{n}"), 64 - n))));
    let response = ask(&service, get()).await;
    assert_eq!(response.status(), 200);
    let members = field(response.headers(), "ratelimit").unwrap();
    assert!(members.contains(r#""p0";r=63;"#) && members.ends_with(r#""p63";r=0;t=60"#));
    let problem = json(ask(&service, get()).await).await;
    assert_eq!(problem["violated-policies"], serde_json::json!(["p63"]));
}

#[tokio::test]
async fn missing_key_can_deny() {
    let (_, memory) = memory();
    let store = Staged::new(memory);
    let limits = [Limit::global(log("global", 9)), Limit::new(log("tenant", 9), tenant())];
    let layer = builder(&store, limits).on_missing_key(OnMissingKey::Deny).build().unwrap();
    let service = layer.layer(hello());
    let response = ask(&service, get()).await;
    assert_eq!(response.status(), 403);
    assert_eq!(rate_fields(response.headers()), Vec::<String>::new());
    assert_eq!(response.headers()["cache-control"], "no-store");
    assert_eq!(json(response).await["code"], "missing-key");
    assert_eq!(store.calls(), 0, "the request is not charged");
    assert_eq!(ask(&service, of_tenant("a")).await.status(), 200);
}

#[tokio::test]
async fn repeated_key_is_rejected() {
    let (_, memory) = memory();
    let store = Staged::new(memory);
    let twice = || {
        let mut request = of_tenant("a");
        request.headers_mut().append("x-tenant", HeaderValue::from_static("a"));
        request
    };
    let missing = [OnMissingKey::Deny, OnMissingKey::Pass, OnMissingKey::Share];
    let keyed = |key: Arc<dyn KeySource>| Limit::new(log("tenant", 3), key);
    let alone = missing.map(|answer| keyed(Arc::new(tenant())).on_missing_key(answer));
    let chained = keyed(Arc::new(tenant().or(ClientIp::peer())));
    for limit in alone.into_iter().chain([chained]) {
        let service = limited(&store, [limit.clone()]);
        let calls = store.calls();
        let rejected = ask(&service, twice()).await;
        assert_eq!(rejected.status(), 400);
        assert_eq!(rate_fields(rejected.headers()), Vec::<String>::new());
        assert_eq!(json(rejected).await["code"], "ambiguous-key");
        assert_eq!(store.calls(), calls, "the request is not charged");
        // Limits that reject no request do not reject this one either.
        for limit in [limit.clone().shadow(), limit.mode(Mode::Annotate)] {
            assert_eq!(ask(&limited(&store, [limit]), twice()).await.status(), 200);
        }
    }
}

#[tokio::test]
async fn missing_key_can_skip_the_policy() {
    let (_, store) = memory();
    let by_tenant = Limit::new(log("tenant", 1), tenant()).on_missing_key(OnMissingKey::Pass);
    let service = limited(&store, [by_tenant, Limit::global(log("global", 2))]);
    for expected in [200, 200, 429] {
        let response = ask(&service, get()).await;
        assert_eq!(response.status(), expected);
        let quotas = field(response.headers(), "ratelimit-policy");
        assert_eq!(quotas.as_deref(), Some(r#""global";q=2;w=60"#));
    }
}

#[tokio::test]
async fn missing_keys_can_share_a_quota() {
    let (_, store) = memory();
    let by_tenant = Limit::new(log("tenant", 2), tenant()).on_missing_key(OnMissingKey::Share);
    let service = limited(&store, [by_tenant]);
    for (peer, expected) in [(1, 200), (2, 200), (3, 429)] {
        assert_eq!(ask(&service, from_peer(peer, get())).await.status(), expected);
    }
    assert_eq!(
        ask(&service, of_tenant("a")).await.status(),
        200,
        "a request with a key has its own quota"
    );
    assert_eq!(ask(&service, of_tenant("-")).await.status(), 200, "an ordinary key");
}

#[tokio::test]
async fn missing_key_differs_from_global_key() {
    /// Uses the global key for requests with `x-tenant`, and no key for other requests.
    struct Friends;

    impl KeySource for Friends {
        fn subject(&self, head: &RequestHead<'_>) -> Result<Option<Subject>, KeyError> {
            if head.headers.contains_key("x-tenant") { Global.subject(head) } else { Ok(None) }
        }

        fn can_be_missing(&self) -> bool {
            true
        }
    }

    let (_, store) = memory();
    let friends = Limit::new(log("friends", 1), Friends).on_missing_key(OnMissingKey::Share);
    let service = limited(&store, [friends]);
    assert_eq!(status(&service).await, 200);
    assert_eq!(ask(&service, of_tenant("a")).await.status(), 200);
}

#[tokio::test]
async fn limit_overrides_layer_default() {
    let (_, store) = memory();
    let by_tenant = Limit::new(log("tenant", 1), tenant()).on_missing_key(OnMissingKey::Pass);
    let layer = builder(&store, [by_tenant]).on_missing_key(OnMissingKey::Deny).build().unwrap();
    assert_eq!(status(&layer.layer(hello())).await, 200);
}

#[tokio::test]
async fn missing_peer_address_hides_operator_advice() {
    let (_, store) = memory();
    let service = limited(&store, [Limit::new(log("ip", 9), ClientIp::peer())]);
    let response = ask(&service, Request::new(())).await;
    assert_eq!(response.status(), 500);
    assert_eq!(rate_fields(response.headers()), Vec::<String>::new());
    let problem = json(response).await;
    assert_eq!(problem["code"], "misconfigured");
    let detail = "The rate limiter is misconfigured. The server logs the reason.";
    assert_eq!(problem["detail"], detail);
}

#[tokio::test]
async fn key_reads_outer_extension() {
    #[derive(Clone)]
    struct User(String);

    async fn authenticate(mut request: AxumRequest, next: Next) -> axum::response::Response {
        let user = request.headers().get("authorization").map(|value| value.as_bytes().to_vec());
        if let Some(user) = user {
            request.extensions_mut().insert(User(String::from_utf8(user).unwrap()));
        }
        next.run(request).await
    }

    let (_, store) = memory();
    let user = || FromExtension::<User>::borrowed(|user| Some(&user.0));
    let by_user = || Limit::new(log("user", 1), user()).on_missing_key(OnMissingKey::Deny);
    let limit: RateLimitLayer<_> = layer(&store, [by_user()]);
    let hello = on_get(|Inserted(User(name)): Inserted<User>| async { name });
    let app = |auth_outside: bool| {
        let app = Router::new().route("/", hello.clone());
        // The layer that is added last is the outermost.
        match auth_outside {
            true => app.layer(limit.clone()).layer(from_fn(authenticate)),
            false => app.layer(from_fn(authenticate)).layer(limit.clone()),
        }
    };
    let of = |user: &'static str| {
        let mut request = get();
        request.headers_mut().insert("authorization", HeaderValue::from_static(user));
        request
    };
    for (user, expected) in [("alice", 200), ("alice", 429), ("bob", 200)] {
        assert_eq!(ask_router(&app(true), of(user)).await.status(), expected);
    }
    // In the other order the limiter runs first, and the request has no user yet.
    assert_eq!(ask_router(&app(false), of("carol")).await.status(), 403);
}

#[tokio::test]
async fn route_key_ignores_path_spelling() {
    let (_, store) = memory();
    let policy = log("route", 2);
    let limit = Limit::new(policy.clone(), (MatchedRoute, ClientIp::peer()));
    let limit = layer(&store, [limit.on_missing_key(OnMissingKey::Pass)]);
    let app = Router::new()
        .route("/users/{id}", on_get(|| async { "a user" }))
        .route("/items/{id}", on_get(|| async { "an item" }))
        .layer(limit);
    for (path, expected) in [
        ("/users/7", 200),
        ("/users/%37", 200),
        ("/users/8?page=2", 429),
        ("/items/7", 200),
        ("/nothing/here", 404),
    ] {
        let response = ask_router(&app, request(Method::GET, path)).await;
        assert_eq!(response.status(), expected, "{path}");
    }
}

#[tokio::test]
async fn layer_store_can_peek_and_reset() {
    let (_, store) = memory();
    let policy = log("global", 1);
    let layer = builder(&store, [Limit::global(policy.clone())]).build().unwrap();
    let service = layer.layer(hello());
    assert_eq!((status(&service).await, status(&service).await), (200, 429));
    tollgate::Store::reset(layer.store(), &policy, &tollgate::key::Key::GLOBAL).await.unwrap();
    assert_eq!(left(layer.store(), &policy).await, 1);
    assert_eq!(layer.limits().map(|limit| limit.policy().name()).collect::<Vec<_>>(), ["global"]);
    assert_eq!(status(&service).await, 200);
}
