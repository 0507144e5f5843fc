//! The admin router: whom it answers, and what.

use axum::Router;
use axum::body::Body;
use http::{HeaderName, Method, Request, Response};
use serde_json::{Value, json};
use tollgate::admin::{Admin, AdminError};
use tollgate::failure::{Breaker, Fallback};
use tollgate::key::{
    ApiKey, ApiKeys, ClientIp, Extension, Global, Header, KeySource, MatchedRoute, Shown, from_fn,
};
use tollgate::{
    Calendar, Limit, MemoryStore, Micros, OnMissingKey, OnStoreError, Outcome, RateLimitLayer,
    ReceiptId, RoutePattern, Store, StoreExt, SubjectKind, Timestamp,
};
use tower::{Layer, ServiceExt};

use crate::stage::{Fault, Staged};
use crate::support::*;

const TOKEN: &str = "0123456789abcdef";

fn admin<St: tollgate::status::Inspect>(layer: &RateLimitLayer<St>) -> Router {
    Admin::builder().token(TOKEN).layer(layer).build().unwrap()
}

/// Asks as an operator does, with the token.
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

#[test]
fn there_is_no_router_without_a_token_that_is_worth_the_name() {
    let build = |token: Option<&str>| {
        let builder = Admin::builder();
        let builder = if let Some(token) = token { builder.token(token) } else { builder };
        builder.build().map(|_| ()).unwrap_err()
    };
    assert_eq!(build(None), AdminError::NoToken);
    for weak in ["", "short", "0123456789abcde", "with a space in it", "mit-Umläuten-darin"] {
        let error = build(Some(weak));
        assert_eq!(error, AdminError::WeakToken, "{weak}");
        assert!(weak.is_empty() || !error.to_string().contains(weak));
    }
    for host in ["admin.local:80", "http://admin.local", "a b", ""] {
        let error = Admin::builder().token(TOKEN).allow_host(host).build().map(|_| ());
        assert_eq!(error, Err(AdminError::Host(host.to_owned())));
    }
}

#[tokio::test]
async fn what_names_subjects_or_changes_anything_needs_the_token() {
    let (_, store) = memory();
    let admin = admin(&layer(&store, [Limit::global(log("all", 9))]));
    let ask = async |method: &str, path: &str, authorization: &[&str]| {
        let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
        for value in authorization {
            request = request.header("authorization", *value);
        }
        // From loopback, as far as anybody can tell: that is no permission.
        let request = from_peer(1, request.body(Body::empty()).unwrap());
        send(&admin, request).await
    };
    let right = format!("Bearer {TOKEN}");
    for (method, path) in [
        ("GET", "/status/all/global"),
        ("HEAD", "/status/all/global"),
        ("DELETE", "/status/all/global"),
        ("POST", "/status/all/global"),
        ("GET", "/status/no-such/global"),
        ("GET", "/top"),
    ] {
        for wrong in [
            &[][..],
            &["Bearer"],
            &["Bearer "],
            &["Bearer 0123456789abcdeF"],
            &["Bearer 0123456789abcdef0"],
            &["Basic 0123456789abcdef"],
            &[TOKEN],
            &[&right, &right],
        ] {
            let response = ask(method, path, wrong).await;
            assert_eq!(response.status(), 401, "{method} {path} {wrong:?}");
            assert_eq!(response.headers()["www-authenticate"], "Bearer");
            assert_eq!(response.headers()["content-type"], "application/problem+json");
        }
        let response = ask(method, path, &[&right]).await;
        assert_ne!(response.status(), 401, "{method} {path}");
    }
    assert_eq!(ask("GET", "/status", &[]).await.status(), 200);
}

#[tokio::test]
async fn websites_are_refused_whatever_name_they_come_by() {
    let (_, store) = memory();
    let layer = layer(&store, [Limit::global(log("all", 9))]);
    let admin = Admin::builder().token(TOKEN).layer(&layer).allow_host("admin.local");
    let admin = admin.build().unwrap();
    for (headers, expected) in [
        (&[("host", "localhost")][..], 200),
        (&[("host", "LOCALHOST:9000")], 200),
        (&[("host", "127.0.0.1:9000")], 200),
        (&[("host", "[::1]:9000")], 200),
        (&[("host", "admin.local.")], 200),
        // A name of the attacker's that leads to this address.
        (&[("host", "rebound.example")], 421),
        (&[("host", "localhost.rebound.example")], 421),
        (&[("host", "10.0.0.7")], 421),
        (&[], 400),
        (&[("host", "localhost"), ("host", "localhost")], 400),
        (&[("host", "eve@localhost")], 400),
        (&[("host", "localhost"), ("origin", "https://evil.example")], 403),
        (&[("host", "localhost"), ("origin", "null")], 403),
        (&[("host", "localhost"), ("origin", "http://localhost:8000")], 403),
        (&[("host", "localhost:9000"), ("origin", "http://localhost:9000")], 200),
        (&[("host", "localhost"), ("sec-fetch-site", "cross-site")], 403),
        (&[("host", "localhost"), ("sec-fetch-site", "same-site")], 403),
        (&[("host", "localhost"), ("sec-fetch-site", "same-origin")], 200),
    ] {
        // The token does not help where the site is wrong.
        let mut request = Request::builder().uri("/status");
        request = request.header("authorization", format!("Bearer {TOKEN}"));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = send(&admin, request.body(Body::empty()).unwrap()).await;
        assert_eq!(response.status(), expected, "{headers:?}");
        assert!(!response.headers().contains_key("access-control-allow-origin"));
    }
    // HTTP/2 has the host in the target.
    for (uri, expected) in [("http://localhost/status", 200), ("http://evil.example/status", 421)] {
        let request = Request::builder().uri(uri).body(Body::empty()).unwrap();
        assert_eq!(send(&admin, request).await.status(), expected, "{uri}");
    }
}

#[tokio::test]
async fn status_reads_without_using() {
    let (_, store) = memory();
    let limits = [
        Limit::global(log("all", 9).with_on_store_error(OnStoreError::Closed)),
        Limit::new(log("each", 5), ClientIp::peer()).shadow(),
    ];
    let layer = layer(&store, limits);
    let admin = admin(&layer);
    let service = layer.layer(hello());
    for _ in 0..7 {
        status(&service).await;
    }
    for _ in 0..3 {
        let (code, body) = operate(&admin, "GET", "/status", "").await;
        assert_eq!(code, 200);
        let [all, each] = &body["policies"].as_array().unwrap()[..] else { panic!("{body}") };
        assert_eq!((&all["policy"], &all["remaining"]), (&json!("all"), &json!(2)));
        assert_eq!((&all["global"], &all["on_store_error"]), (&json!(true), &json!("closed")));
        assert_eq!((&each["enforced"], &each["remaining"]), (&json!(false), &Value::Null));
        assert_eq!(each["decisions"]["shadow_deny"], 2);
        assert_eq!(all["decisions"]["allow"], 7);
        assert_eq!(body["stores"][0]["memory"]["keys"], 2);

        let (code, body) = operate(&admin, "GET", "/status/each/ip:192.0.2.1", "").await;
        assert_eq!((code, &body["remaining"]), (200, &json!(0)));
        assert_eq!((&body["limit"], &body["reset_after"]), (&json!(5), &json!(60.0)));
    }
}

#[tokio::test]
async fn layers_of_one_policy_that_count_apart_are_shown_together() {
    let (_, store) = memory();
    let limits = || [Limit::new(log("each", 1), ClientIp::peer())];
    let (one, two) = (layer(&store, limits()), layer(&store, limits()));
    // The second twice: what is counted once is not shown twice.
    let admin = Admin::builder().token(TOKEN).layer(&one).layer(&two).layer(&two);
    let admin = admin.show_subjects(Shown::Clear).build().unwrap();
    let (one, two) = (one.layer(hello()), two.layer(hello()));
    assert_eq!(status(&one).await, 200);
    for service in [&one, &two, &two] {
        assert_eq!(status(service).await, 429);
    }
    let other = || from_peer(2, get());
    assert_eq!(ask(&two, other()).await.status(), 200);
    assert_eq!(ask(&two, other()).await.status(), 429);

    let (_, body) = operate(&admin, "GET", "/status", "").await;
    assert_eq!(body["policies"].as_array().unwrap().len(), 1, "{body}");
    let decisions = &body["policies"][0]["decisions"];
    assert_eq!((&decisions["allow"], &decisions["deny"]), (&json!(2), &json!(4)));
    let (_, body) = operate(&admin, "GET", "/top", "").await;
    let denied = |last: u8, count: u8| json!({"subject": format!("ip:192.0.2.{last}"), "client": "ip", "count": count, "error": 0});
    let expected = json!([{ "policy": "each", "denied": [denied(1, 3), denied(2, 1)] }]);
    assert_eq!(body["policies"], expected);
}

#[derive(Clone)]
struct User(&'static str);

#[tokio::test]
async fn an_operator_finds_the_key_that_requests_have() {
    let header = |name: &'static str| HeaderName::from_static(name);
    let keys = || ApiKeys::from_keys(["k-7f3a"]);
    let user = || Extension::<User>::borrowed(|user| Some(user.0));
    let tenant = from_fn(|head| head.headers.get("x-tenant").cloned());
    let sources: [(&str, std::sync::Arc<dyn KeySource>, &str, &str); 12] = [
        ("global", std::sync::Arc::new(Global), "global", "global"),
        ("ip", std::sync::Arc::new(ClientIp::peer()), "ip:192.0.2.1", "ip:192.0.2.1"),
        (
            "ip6",
            std::sync::Arc::new(ClientIp::from_fn(|_| "2001:db8:0:7::9".parse().ok())),
            "ip:2001:db8:0:7::1",
            "ip:2001:db8:0:7::/64",
        ),
        (
            "key",
            std::sync::Arc::new(ApiKey::in_x_api_key().one_of(keys())),
            "api-key:k-7f3a",
            "key:",
        ),
        ("user", std::sync::Arc::new(user()), "user:alice", "user:alice"),
        (
            "header",
            std::sync::Arc::new(Header::trust_unverified(header("x-tenant"))),
            "header:acme",
            "key:",
        ),
        ("route", std::sync::Arc::new(MatchedRoute), "route:%2Fa%2F%7Bb%7D", "route:/a/{b}"),
        ("closure", std::sync::Arc::new(tenant), "other:acme", "other:acme"),
        ("named", std::sync::Arc::new(tenant.of_kind(SubjectKind::User)), "user:acme", "user:acme"),
        (
            "chain",
            std::sync::Arc::new(ApiKey::in_x_api_key().verified_by(|_| false).or(ClientIp::peer())),
            "ip:192.0.2.1",
            "ip:192.0.2.1",
        ),
        (
            "pair",
            std::sync::Arc::new((MatchedRoute, ClientIp::peer())),
            "route:/a/{b},ip:192.0.2.1",
            "key:",
        ),
        (
            "missing",
            std::sync::Arc::new(Header::trust_unverified(header("x-none"))),
            "missing",
            "missing",
        ),
    ];
    for (policy, source, name, shown) in sources {
        let (_, store) = memory();
        let limit = Limit::new(log(policy, 1), source).on_missing_key(OnMissingKey::Share);
        let layer = layer(&store, [limit]);
        let admin = Admin::builder().token(TOKEN).layer(&layer).show_subjects(Shown::Clear);
        let admin = admin.build().unwrap();
        let service = layer.layer(hello());
        let request = || {
            let mut request = request(Method::GET, "/");
            request.headers_mut().insert("x-api-key", "k-7f3a".parse().unwrap());
            request.headers_mut().insert("x-tenant", "acme".parse().unwrap());
            request.extensions_mut().insert(User("alice"));
            request.extensions_mut().insert(RoutePattern::new("/a/{b}"));
            request
        };
        let path = format!("/status/{policy}/{}", name.replace('{', "%7B").replace('}', "%7D"));
        assert_eq!(ask(&service, request()).await.status(), 200, "{policy}");
        assert_eq!(ask(&service, request()).await.status(), 429, "{policy}");
        let (code, body) = operate(&admin, "GET", &path, "").await;
        assert_eq!((code, &body["remaining"]), (200, &json!(0)), "{policy}: {body}");
        assert_eq!(operate(&admin, "DELETE", &path, "").await.0, 204, "{policy}");
        assert_eq!(ask(&service, request()).await.status(), 200, "{policy}");

        // What `/top` shows names the same subject.
        let (_, top) = operate(&admin, "GET", "/top", "").await;
        let subject = top["policies"][0]["denied"][0]["subject"].as_str().unwrap().to_owned();
        assert!(subject.starts_with(shown), "{policy}: {subject}");
        let subject = subject.replace('{', "%7B").replace('}', "%7D");
        let (code, body) = operate(&admin, "GET", &format!("/status/{policy}/{subject}"), "").await;
        assert_eq!((code, &body["remaining"]), (200, &json!(0)), "{policy}: {subject} {body}");
    }
}

#[tokio::test]
async fn what_is_not_there_is_said() {
    let (_, store) = memory();
    let keys = ApiKey::in_x_api_key().one_of(ApiKeys::from_keys(["k-7f3a"]));
    let limit = Limit::new(log("each", 1), keys).on_missing_key(OnMissingKey::Deny);
    let admin = admin(&layer(&store, [limit]));
    for (method, path, expected, detail) in [
        ("GET", "/status/other/global", 404, "no such policy"),
        ("GET", "/status/each/global", 404, "no such subject"),
        ("GET", "/status/each/missing", 404, "no such subject"),
        ("GET", "/status/each/api-key:k-0000", 404, "no such subject"),
        ("GET", "/status/each/sk_live_1", 400, "expected `global`"),
        ("GET", "/status/each/%FF", 400, "UTF-8"),
        ("PUT", "/status/each/global", 405, "Allow"),
        ("POST", "/status", 405, "Allow"),
        ("GET", "/no-such", 404, "/status, /top, /events and /metrics"),
        ("GET", "/metrics", 404, "without"),
        ("GET", "/top?most=0", 400, "1 to 128"),
        ("POST", "/status/each/key:00", 400, "EOF"),
    ] {
        let (code, body) = operate(&admin, method, path, "").await;
        assert_eq!(code, expected, "{method} {path}");
        assert_eq!(body["status"], expected);
        let said = body["detail"].as_str().unwrap();
        assert!(said.contains(detail) && !said.contains("sk_live"), "{method} {path}: {said}");
    }
    let (code, body) = operate(&admin, "POST", "/status/each/key:00", &"x".repeat(5_000)).await;
    assert_eq!((code, &body["status"]), (413, &json!(413)));
}

#[tokio::test]
async fn a_charge_is_settled_once() {
    let (_, store) = memory();
    let policy = log("all", 9);
    let admin = admin(&layer(&store, [Limit::global(policy.clone())]));
    let verdict = store.charge(&policy, &tollgate::Key::GLOBAL, 6.into()).await.unwrap();
    let Outcome::Allow { charged_at, .. } = verdict.decisions()[0].outcome else { panic!() };
    let settle = |id: &str| {
        json!({"id": id, "cost": 6, "charged_at": charged_at.as_micros(), "actual": 2}).to_string()
    };
    let id = format!("{:032x}", ReceiptId(7).0);
    for (expected, units) in [("returned", 4), ("repeated", 0)] {
        let (code, body) = operate(&admin, "POST", "/status/all/global", &settle(&id)).await;
        assert_eq!(code, 200, "{body}");
        assert_eq!((&body["settlement"], &body["units"]), (&json!(expected), &json!(units)));
        let (_, body) = operate(&admin, "GET", "/status/all/global", "").await;
        assert_eq!(body["remaining"], 7);
    }
    for wrong in [
        settle("7"),
        settle(&"g".repeat(32)),
        settle(&format!("+{}", "0".repeat(31))),
        "{}".to_owned(),
        "[".to_owned(),
    ] {
        assert_eq!(operate(&admin, "POST", "/status/all/global", &wrong).await.0, 400, "{wrong}");
    }
}

#[tokio::test]
async fn the_subjects_of_the_top_are_shown_as_the_operator_chose() {
    let (_, store) = memory();
    let chain = Extension::<User>::borrowed(|user| Some(user.0)).or(ClientIp::peer());
    let layer = layer(&store, [Limit::new(log("each", 1), chain)]);
    let service = layer.clone().layer(hello());
    for n in 0..20 {
        ask(&service, from_peer(n % 3, request(Method::GET, "/"))).await;
    }
    for _ in 0..9 {
        let mut request = request(Method::GET, "/");
        request.extensions_mut().insert(User("alice"));
        ask(&service, request).await;
    }
    let top = async |shown: Shown, path: &str| {
        let admin = Admin::builder().token(TOKEN).layer(&layer).show_subjects(shown).build();
        let (_, body) = operate(&admin.unwrap(), "GET", path, "").await;
        let denied = body["policies"][0]["denied"].as_array().unwrap().clone();
        let list = denied
            .iter()
            .map(|it| (it["subject"].as_str().unwrap().to_owned(), it["count"].as_u64().unwrap()));
        list.collect::<Vec<_>>()
    };
    let clear = top(Shown::Clear, "/top").await;
    assert_eq!(clear[0], ("user:alice".to_owned(), 8));
    assert!(clear.len() == 4 && clear[1] == ("ip:192.0.2.0".to_owned(), 6), "{clear:?}");
    assert_eq!(top(Shown::Clear, "/top?most=1").await.len(), 1);
    let masked = top(Shown::Masked, "/top").await;
    assert_eq!((&*masked[0].0, &*masked[1].0), ("user:al…", "ip:192.0.2.*"));
    let hashed = top(Shown::Hash, "/top").await;
    assert!(hashed[0].0.starts_with("user:#") && hashed[0].0.len() == 22, "{hashed:?}");
}

#[tokio::test]
async fn an_outage_is_said_and_counted() {
    let (_, memory_store) = memory();
    let staged = Staged::new(memory_store.clone());
    let policy = log("all", 9).with_on_store_error(OnStoreError::Closed);
    let layer = layer(&Looked(staged.clone()), [Limit::global(policy)]);
    let admin = admin(&layer);
    staged.fail(Fault::NotCharged);
    let (code, body) = operate(&admin, "GET", "/status", "").await;
    assert_eq!((code, &body["policies"][0]["remaining"]), (200, &Value::Null));
    for method in ["GET", "DELETE"] {
        let (code, body) = operate(&admin, method, "/status/all/global", "").await;
        assert_eq!(code, 503, "{method}");
        assert!(body["detail"].as_str().unwrap().contains("unplugged"), "{body}");
    }
}

/// A staged store that can be looked at.
#[derive(Clone)]
struct Looked<S>(Staged<S>);

impl<S: Store> Store for Looked<S> {
    type Future<T: Send + 'static> = <Staged<S> as Store>::Future<T>;

    fn decide(&self, charges: &[tollgate::Charge<'_>]) -> Self::Future<tollgate::Verdict> {
        self.0.decide(charges)
    }

    fn settle(
        &self,
        receipt: &tollgate::Receipt,
        actual: tollgate::Cost,
    ) -> Self::Future<tollgate::Settlement> {
        self.0.settle(receipt, actual)
    }

    fn renew(&self, receipt: &tollgate::Receipt) -> Self::Future<Option<tollgate::Receipt>> {
        self.0.renew(receipt)
    }

    fn reset(&self, policy: &tollgate::Policy, key: &tollgate::Key) -> Self::Future<()> {
        self.0.reset(policy, key)
    }
}

impl<S: Store> tollgate::status::Inspect for Looked<S> {
    fn inspect(&self) -> tollgate::status::StoreReport {
        tollgate::status::StoreReport::new("stage", 0)
    }
}

/// The examples of docs/admin.md have the members of real answers, and no others.
#[tokio::test]
async fn the_documentation_shows_what_is_answered() {
    let store = Fallback::new(Breaker::new(MemoryStore::new()), MemoryStore::new());
    let limits = [Limit::global(log("global", 1)), Limit::new(log("client", 9), ClientIp::peer())];
    let layer = layer(&store, limits);
    let admin = admin(&layer);
    let service = layer.layer(hello());
    for _ in 0..2 {
        status(&service).await;
    }
    for (heading, path) in [
        ("GET /status", "/status"),
        ("GET /status/{policy}/{subject}", "/status/global/global"),
        ("GET /top", "/top"),
    ] {
        let (code, body) = operate(&admin, "GET", path, "").await;
        assert_eq!(code, 200, "{path}");
        assert_eq!(shape(&example(heading)), shape(&body), "{heading}");
    }
    let settle = example("POST /status/{policy}/{subject}").to_string();
    let (code, _) = operate(&admin, "POST", "/status/global/global", &settle).await;
    assert_eq!(code, 200, "its example is a body that is understood");
    let (_, problem) = operate(&admin, "GET", "/no", "").await;
    assert_eq!(shape(&example("Errors")), shape(&problem));
}

/// The example under a heading of docs/admin.md.
pub(crate) fn example(heading: &str) -> Value {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/admin.md");
    let document = std::fs::read_to_string(file).unwrap();
    let section = document.split(&format!("## `{heading}`")).nth(1).expect(heading);
    let block = section.split("```json\n").nth(1).and_then(|rest| rest.split("```").next());
    serde_json::from_str(block.expect(heading)).unwrap()
}

/// The members, without their values; of a list the first.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            members.iter().map(|(name, value)| (name.clone(), shape(value))).collect()
        }
        Value::Array(items) => items.first().map_or(Value::Null, shape),
        _ => Value::Null,
    }
}

#[tokio::test]
async fn a_subject_is_read_under_the_quota_of_its_tier() {
    let (_, store) = memory();
    let keys = || ApiKeys::from_keys(["k-pro"]);
    let tiers = tollgate::tier::ApiKeyTiers::new(ApiKey::in_x_api_key()).with("pro", keys());
    let source = ApiKey::in_x_api_key().one_of(keys()).or(ClientIp::peer());
    let limit = Limit::new(log("client", 10), source)
        .in_tier("pro", tollgate::Quota::per_minute(100))
        .unwrap();
    let layer = builder(&store, [limit]).tiers(tiers).build().unwrap();
    let admin = admin(&layer);
    let service = layer.layer(hello());
    for _ in 0..4 {
        let mut request = get();
        request.headers_mut().insert("x-api-key", "k-pro".parse().unwrap());
        assert_eq!(ask(&service, request).await.status(), 200);
    }
    for (path, tier, limit, remaining) in [
        ("/status/client/api-key:k-pro", json!("pro"), 100, 96),
        ("/status/client/api-key:k-pro?tier=pro", json!("pro"), 100, 96),
        ("/status/client/ip:192.0.2.9", json!(null), 10, 10),
        ("/status/client/ip:192.0.2.9?tier=pro", json!("pro"), 100, 100),
    ] {
        let (code, status) = operate(&admin, "GET", path, "").await;
        assert_eq!((code, &status["tier"]), (200, &tier), "{path}");
        assert_eq!((&status["limit"], &status["remaining"]), (&json!(limit), &json!(remaining)));
    }
    let (code, _) = operate(&admin, "GET", "/status/client/ip:192.0.2.9?tier=gold", "").await;
    assert_eq!(code, 404);
    let (_, all) = operate(&admin, "GET", "/status", "").await;
    let pro = json!([
        { "tier": "pro", "limit": 100, "window": 60.0, "calendar": null, "capacity": 100 }
    ]);
    assert_eq!(all["policies"][0]["tiers"], pro);
}

/// Whoever read the longest period alone would take February for January.
#[tokio::test]
async fn a_calendar_says_which_period_it_is_in() {
    let (clock, store) = memory();
    let days = |days: u64| Timestamp::from_micros((START + days * 86_400) * 1_000_000);
    let calendar = Calendar::new("month of this test", [0, 31, 60].map(days)).unwrap();
    let monthly = |name| {
        tollgate::Policy::fixed_window_counter(name, tollgate::Quota::per_calendar(5, calendar))
    };
    let shared = Limit::global(monthly("shared").unwrap());
    let each = Limit::new(monthly("each").unwrap(), ClientIp::peer());
    let layer = layer(&store, [shared, each, Limit::global(log("minute", 9))]);
    let admin = admin(&layer);
    let policies = async || operate(&admin, "GET", "/status", "").await.1["policies"].take();
    let january = policies().await;
    let day = 86_400.0;
    let name = "month of this test";
    let expected = json!({ "name": name, "period": 31.0 * day, "ends_after": 31.0 * day });
    assert_eq!(january[0]["calendar"], expected);
    assert_eq!(january[0]["window"], 31.0 * day);
    // The store is not asked about those of single clients: this is by the clock of the machine,
    // whose time the table does not reach to.
    assert_eq!(january[1]["calendar"]["name"], name);
    assert!(january[1]["calendar"]["period"].as_f64().unwrap() > 1e9);
    assert_eq!(january[2]["calendar"], json!(null));
    clock.advance(Micros::new(41 * 86_400_000_000));
    let expected = json!({ "name": name, "period": 29.0 * day, "ends_after": 19.0 * day });
    assert_eq!(policies().await[0]["calendar"], expected);
}
