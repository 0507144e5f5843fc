//! Overrides: set, listed and removed by operators.

use axum::Router;
use axum::body::Body;
use http::Request;
use serde_json::{Value, json};
use tollgate::key::{ApiKeys, ClientIp};
use tollgate::limit::{Mode, OnMissingKey};
use tollgate::policy::{Calendar, Strikes};
use tollgate::store::{Micros, Timestamp};
use tollgate::tier::{ClientQuota, QuotaLookup};
use tollgate::{Limit, Limiter, MemoryStore, Policy, Quota};
use tollgate_admin::Admin;
use tower::Layer;

use crate::support::*;
use crate::{TOKEN, admin, example, operate, send};

const PATH: &str = "/overrides/client/ip:192.0.2.1";

fn members(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[tokio::test]
async fn override_is_set_listed_and_removed() {
    let (clock, store) = memory();
    let layer = layer(&store, [Limit::new(log("client", 1), ClientIp::peer())]);
    let (admin, service) = (admin(&layer), layer.layer(hello()));
    assert_eq!([status(&service).await, status(&service).await], [200, 429]);
    assert_eq!(operate(&admin, "GET", PATH, "").await.0, 404);

    let (code, set) = operate(&admin, "PUT", PATH, r#"{"limit": 3, "for": 30}"#).await;
    assert_eq!((code, &set["limit"], &set["left"]), (200, &json!(3), &json!(30.0)));
    assert_eq!((&set["subject"], &set["blocked"]), (&json!("ip:192.0.2.*"), &json!(false)));
    assert_eq!(set["until"], "2024-01-01T00:00:30.000Z");
    assert_eq!(
        [status(&service).await, status(&service).await, status(&service).await],
        [200, 200, 429]
    );
    let (_, shown) = operate(&admin, "GET", "/status/client/ip:192.0.2.1", "").await;
    assert_eq!((&shown["limit"], &shown["remaining"]), (&json!(3), &json!(0)));

    clock.advance(Micros::new(10_000_000));
    let (_, list) = operate(&admin, "GET", "/overrides", "").await;
    let documented = example("GET /overrides");
    assert_eq!(members(&list), members(&documented));
    assert_eq!(members(&list["overrides"][0]), members(&documented["overrides"][0]));
    assert_eq!((&list["overrides"][0]["left"], &list["max"]), (&json!(20.0), &json!(10_000)));
    assert_eq!(operate(&admin, "GET", PATH, "").await.1, list["overrides"][0]);

    assert_eq!(operate(&admin, "DELETE", PATH, "").await.0, 204);
    assert_eq!(operate(&admin, "DELETE", PATH, "").await.0, 404);
    let body = r#"{"block": true, "until": "2024-01-01T01:00:00Z"}"#;
    let (code, blocked) = operate(&admin, "PUT", PATH, body).await;
    assert_eq!((code, &blocked["blocked"], &blocked["left"]), (200, &json!(true), &json!(3590.0)));
    clock.advance(Micros::new(3_000_000_000));
    assert_eq!(status(&service).await, 429);
    // The page shows subjects masked, so it removes overrides by ID.
    let id = blocked["id"].as_str().unwrap();
    assert_eq!(operate(&admin, "DELETE", &format!("/overrides/other/id:{id}"), "").await.0, 404);
    assert_eq!(operate(&admin, "DELETE", &format!("/overrides/client/id:{id}"), "").await.0, 204);
    assert_eq!(status(&service).await, 200);
}

/// The members of the documented request are known, and no others.
#[tokio::test]
async fn documented_request_is_accepted() {
    let (_, store) = memory();
    let layer = layer(&store, [Limit::new(log("client", 1), ClientIp::peer())]);
    let body = example("PUT /overrides/{policy}/{subject}").to_string();
    assert_eq!(operate(&admin(&layer), "PUT", PATH, &body).await.0, 200);
}

#[tokio::test]
async fn overrides_need_the_token() {
    let (_, store) = memory();
    let layer = layer(&store, [Limit::new(log("client", 1), ClientIp::peer())]);
    let admin = admin(&layer);
    for (method, path) in [("GET", "/overrides"), ("GET", PATH), ("PUT", PATH), ("DELETE", PATH)] {
        for token in [None, Some("another-token-that-is-long")] {
            let request = Request::builder().method(method).uri(path).header("host", "localhost");
            let request = match token {
                Some(token) => request.header("authorization", format!("Bearer {token}")),
                None => request,
            };
            let body = Body::from(r#"{"limit": 3, "for": 30}"#);
            let response = send(&admin, request.body(body).unwrap()).await;
            assert_eq!(response.status(), 401, "{method} {path}");
        }
    }
    assert!(store_is_unchanged(&admin).await);
}

async fn store_is_unchanged(admin: &Router) -> bool {
    operate(admin, "GET", "/overrides", "").await.1["overrides"] == json!([])
}

/// Each row contains a policy and an optional subject, a body, the expected status, and a part of
/// the problem's detail.
const WRONG: &str = r#"
other | {"limit": 3, "for": 30} | 404 | There is no such policy.
client user:ann | {"limit": 3, "for": 30} | 404 | no subjects of this kind
client ann | {"limit": 3, "for": 30} | 400 | The subject:
client | {} | 400 | write either `limit` or `"block": true`
client | {"limit": 3} | 400 | write either `for` in seconds or `until`
client | {"limit": 0, "for": 30} | 400 | `limit` must be at least 1
client | {"limit": 3, "for": -1} | 400 | `for` must be a number
client | {"limit": 3, "for": 1e9} | 400 | at most 366 days
client | {"limit": 3, "until": "2023-12-31T23:59:59Z"} | 400 | `until` must be in the future: it is 2024-01-01T00:00:00.000Z now
client | {"limit": 3, "until": "tomorrow"} | 400 | a time in UTC
client | {"limit": 3, "for": 3, "window": 0} | 400 | `window`
client | {"block": true, "for": 3, "window": 1} | 400 | remove them
client | {"limits": 3, "for": 3} | 400 | unknown field `limits`
client | {"limit": 3, "for": 3, "burst": 5} | 422 | burst
bucket | {"limit": 123457, "for": 3} | 422 | 123457
banned | {"limit": 3, "for": 3} | 422 | is a penalty
day | {"limit": 3, "for": 3, "window": 9} | 422 | only its limit
soft | {"block": true, "for": 3} | 422 | is not enforced
"#;

#[tokio::test]
async fn wrong_overrides_name_the_cure() {
    let (_, store) = memory();
    let client = Limit::new(log("client", 9), ClientIp::peer());
    let days = [0, 1, 2].map(|days| Timestamp::from_micros((START + days * 86_400) * 1_000_000));
    let calendar = Calendar::new("day of this test", days).unwrap();
    let day = Policy::fixed_window_counter("day", Quota::per_calendar(9, calendar));
    let limits = [
        client
            .penalty("banned", Strikes::of_denials(3, std::time::Duration::from_secs(9)))
            .unwrap(),
        client.clone().mode(Mode::Annotate).fraction("soft", 1, 1).unwrap(),
        Limit::new(day.unwrap(), ClientIp::peer()),
        Limit::new(Policy::token_bucket("bucket", Quota::per_day(9)).unwrap(), ClientIp::peer()),
        client,
    ];
    let admin = admin(&layer(&store, limits));
    for row in WRONG.trim().lines() {
        let [target, body, status, cure] = row.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        let (policy, subject) = target.split_once(' ').unwrap_or((target, "ip:192.0.2.1"));
        let path = format!("/overrides/{policy}/{subject}");
        let (code, answer) = operate(&admin, "PUT", &path, body).await;
        let detail = answer["detail"].as_str().unwrap_or_default();
        assert!(code.to_string() == status && detail.contains(cure), "{row}: {code} {detail}");
    }
    assert!(store_is_unchanged(&admin).await);
    assert_eq!(
        operate(&admin, "PUT", "/overrides/day/ip:192.0.2.1", r#"{"limit": 3, "for": 3}"#).await.0,
        200
    );
}

/// Layers over one store share its overrides, and each other store gets its own.
#[tokio::test]
async fn every_store_with_the_policy_is_changed() {
    let (_, shared) = memory();
    let limit = || Limit::new(log("client", 1), ClientIp::peer());
    let layers =
        [layer(&shared, [limit()]), layer(&shared, [limit()]), layer(&memory().1, [limit()])];
    let admin = layers.iter().fold(Admin::builder().token(TOKEN), |it, layer| it.layer(layer));
    let admin = admin.build().unwrap();
    let (code, _) = operate(&admin, "PUT", PATH, r#"{"limit": 2, "for": 30}"#).await;
    assert_eq!(code, 200);
    let (_, list) = operate(&admin, "GET", "/overrides", "").await;
    assert_eq!(list["overrides"].as_array().unwrap().len(), 2);
    for layer in &layers {
        assert_eq!(status(&layer.layer(hello())).await, 200);
    }
    assert_eq!(operate(&admin, "DELETE", PATH, "").await.0, 204);
    assert!(store_is_unchanged(&admin).await);
}

#[tokio::test]
async fn secrets_are_never_shown() {
    let (_, store) = memory();
    let keys = ApiKeys::from_keys(["k-7f3a"]);
    let limit = Limit::per_api_key(log("key", 1), keys);
    let layer = builder(&store, [limit]).on_missing_key(OnMissingKey::Deny).build().unwrap();
    let admin = admin(&layer);
    let (code, set) =
        operate(&admin, "PUT", "/overrides/key/api-key:k-7f3a", r#"{"limit": 2, "for": 30}"#).await;
    assert_eq!(code, 200);
    assert!(set["subject"].as_str().unwrap().starts_with("key:"), "{set}");
    assert!(!set.to_string().contains("7f3a"), "{set}");
}

#[tokio::test]
async fn limiters_have_overrides_too() {
    let jobs = Policy::token_bucket("jobs", Quota::per_minute(1)).unwrap();
    let limiter = Limiter::builder(MemoryStore::new()).policy(jobs).build().unwrap();
    let admin = Admin::builder().token(TOKEN).limiter(&limiter).build().unwrap();
    // "ann" in hex.
    let path = "/overrides/jobs/key:616e6e";
    assert_eq!(operate(&admin, "PUT", path, r#"{"limit": 2, "for": 30}"#).await.0, 200);
    let key = tollgate::key::Key::from("ann");
    assert!(limiter.try_acquire(&key, 2).await.unwrap().is_some());
    assert!(limiter.try_acquire(&key, 1).await.unwrap().is_none());
}

/// `/subjects` also contains a level's base policy.
fn without_level(policy: &Value) -> Value {
    let mut members = policy.as_object().unwrap().clone();
    assert_eq!(members.remove("level_of"), Some(Value::Null));
    members.into()
}

/// As the layer's own status does.
#[tokio::test]
async fn blocked_client_has_nothing_left() {
    let (clock, store) = memory();
    let limit = Limit::new(log("client", 60), ClientIp::peer());
    let soft = limit.fraction("soft", 1, 1).unwrap().mode(Mode::Annotate);
    let layer = layer(&store, [limit, soft]);
    let admin = admin(&layer);
    let (code, _) = operate(&admin, "PUT", PATH, r#"{"block": true, "for": 90}"#).await;
    assert_eq!(code, 200);
    let (_, one) = operate(&admin, "GET", "/status/client/ip:192.0.2.1", "").await;
    let blocked = json!({
        "policy": "client", "tier": null, "limit": 60, "remaining": 0, "reset_after": 90.0,
        "source": "store", "blocked": true, "override_ends_after": 90.0,
    });
    assert_eq!(one, blocked);
    let (_, all) = operate(&admin, "GET", "/subjects/ip:192.0.2.1", "").await;
    assert_eq!(without_level(&all["policies"][0]), blocked);
    assert_eq!(
        (&all["policies"][1]["blocked"], &all["policies"][1]["remaining"]),
        (&json!(false), &json!(60))
    );
    clock.advance(Micros::new(90_000_000));
    let (_, one) = operate(&admin, "GET", "/status/client/ip:192.0.2.1", "").await;
    assert_eq!((&one["blocked"], &one["remaining"]), (&json!(false), &json!(60)));
}

/// The policy's own quota does not apply to such a client, unless an operator overrides it.
#[tokio::test]
async fn unlimited_client_has_no_quota() {
    let (_, store) = memory();
    let lookup =
        QuotaLookup::new(async |_| Ok::<_, std::io::Error>(Some(ClientQuota::unlimited())));
    let limit = Limit::new(log("client", 60), ClientIp::peer()).quota_from(&lookup);
    let layer = layer(&store, [limit]);
    let admin = admin(&layer);
    assert_eq!(status(&layer.layer(hello())).await, 200);
    let numbers = async || {
        let (_, one) = operate(&admin, "GET", "/status/client/ip:192.0.2.1", "").await;
        let (_, all) = operate(&admin, "GET", "/subjects/ip:192.0.2.1", "").await;
        assert_eq!(without_level(&all["policies"][0]), one);
        ["limit", "remaining"].map(|name| one[name].clone())
    };
    assert_eq!(numbers().await, [Value::Null, Value::Null]);
    assert_eq!(operate(&admin, "PUT", PATH, r#"{"limit": 3, "for": 90}"#).await.0, 200);
    assert_eq!(numbers().await, [json!(3), json!(3)]);
}
