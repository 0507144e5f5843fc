//! The admin router's responses, depending on the state of limits and store.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use tollgate::feedback::Feedback;
use tollgate::key::{ApiKey, ApiKeys, ClientIp, Key, SubjectFormat};
use tollgate::limit::OnMissingKey;
use tollgate::observe::{ServerReport, StoreReport};
use tollgate::policy::{Calendar, OnStoreError};
use tollgate::store::{Micros, Outcome, ReceiptId, Timestamp};
use tollgate::{Limit, Limiter, MemoryStore, StoreExt};
use tollgate_admin::Admin;
use tower::Layer;

use crate::support::*;
use crate::{TOKEN, admin, example, operate};

#[tokio::test]
async fn status_does_not_charge() {
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
async fn status_sums_layers_with_the_same_policy() {
    let (_, store) = memory();
    let limits = || [Limit::new(log("each", 1), ClientIp::peer())];
    let (one, two) = (layer(&store, limits()), layer(&store, limits()));
    // The second layer is added twice, but its decisions must be counted once.
    let admin = Admin::builder().token(TOKEN).layer(&one).layer(&two).layer(&two);
    let admin = admin.show_subjects(SubjectFormat::Clear).build().unwrap();
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

#[tokio::test]
async fn errors_name_the_problem() {
    let (_, store) = memory();
    let keys = ApiKey::in_x_api_key().one_of(ApiKeys::from_keys(["k-7f3a"]));
    let limit = Limit::new(log("each", 1), keys).on_missing_key(OnMissingKey::Deny);
    let admin = admin(&layer(&store, [limit]));
    for (method, path, expected, detail) in [
        ("GET", "/status/other/global", 404, "no such policy"),
        ("GET", "/status/each/global", 404, "no subjects of this kind"),
        ("GET", "/status/each/missing", 404, "no subjects of this kind"),
        ("GET", "/status/each/api-key:k-0000", 404, "no subjects of this kind"),
        ("GET", "/status/each/sk_live_1", 400, "expected `global`"),
        ("GET", "/status/each/%FF", 400, "UTF-8"),
        ("PUT", "/status/each/global", 405, "Allow"),
        ("POST", "/status", 405, "Allow"),
        ("GET", "/no-such", 404, "/status, /overrides, /top, /events and /metrics"),
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
async fn charge_settles_once() {
    let (_, store) = memory();
    let policy = log("all", 9);
    let admin = admin(&layer(&store, [Limit::global(policy.clone())]));
    let verdict = store.charge(&policy, &Key::GLOBAL, 6.into()).await.unwrap();
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
async fn outages_are_reported() {
    let (_, memory_store) = memory();
    let store = Reported::new(memory_store, StoreReport::new("stage", 0));
    let policy = log("all", 9).with_on_store_error(OnStoreError::Closed);
    let layer = layer(&store, [Limit::global(policy)]);
    let admin = admin(&layer);
    store.unplug();
    let (code, body) = operate(&admin, "GET", "/status", "").await;
    assert_eq!((code, &body["policies"][0]["remaining"]), (200, &Value::Null));
    for method in ["GET", "DELETE"] {
        let (code, body) = operate(&admin, method, "/status/all/global", "").await;
        assert_eq!(code, 503, "{method}");
        assert!(body["detail"].as_str().unwrap().contains("unplugged"), "{body}");
    }
}

#[tokio::test]
async fn redis_servers_show_version_and_warnings() {
    let mut server = ServerReport::default();
    (server.name, server.version) = (Some("Valkey"), Some("8.1.1".to_owned()));
    server.warnings = vec!["it evicts keys".to_owned()];
    let mut report = StoreReport::new("redis", 1);
    (report.redis, report.servers) = (Some([("calls", 7)].into()), vec![server]);
    let (_, store) = memory();
    let admin = admin(&layer(&Reported::new(store, report), [Limit::global(log("all", 9))]));
    let (_, body) = operate(&admin, "GET", "/status", "").await;
    let expected = json!({
        "calls": 7,
        "servers": [{ "name": "Valkey", "version": "8.1.1", "warnings": ["it evicts keys"] }],
    });
    assert_eq!(body["stores"][0]["redis"], expected);
}

#[tokio::test]
async fn limiter_shows_its_queue_and_the_called_service() {
    let (_, store) = memory();
    let minute = Duration::from_secs(60);
    let limiter =
        Limiter::builder(store).global(log("partner", 1)).queue(2 * minute).pausable(minute);
    let limiter = limiter.build().unwrap();
    let admin = Admin::builder().token(TOKEN).limiter(&limiter).build().unwrap();
    let permit = limiter.acquire(&Key::GLOBAL, 1).await.unwrap();
    let headers =
        [("retry-after", "20"), ("x-ratelimit-limit", "60"), ("x-ratelimit-remaining", "0")];
    let headers = headers.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
    let headers = HeaderMap::from_iter(headers);
    let denial = Feedback::read(StatusCode::TOO_MANY_REQUESTS, &headers, SystemTime::UNIX_EPOCH);
    permit.learn(&denial).await.unwrap();
    let waiting = tokio::spawn(async move { limiter.acquire(&Key::GLOBAL, 1).await });
    tokio::task::yield_now().await;

    let (_, body) = operate(&admin, "GET", "/status", "").await;
    let [partner, pause] = body["policies"].as_array().unwrap().as_slice() else {
        panic!("two policies: {body}");
    };
    assert_eq!(partner["service"]["limit"], 60);
    assert_eq!(partner["service"]["remaining"], 0);
    assert_eq!(pause["policy"], "partner-pause");
    assert_eq!(pause["pause"]["header"], "retry-after");
    let left = pause["pause"]["left"].as_f64().unwrap();
    assert!(left > 10.0 && left <= 20.0, "{left}");
    let queued = [partner, pause].map(|policy| policy["waiting"].as_u64().unwrap());
    assert_eq!(queued.iter().sum::<u64>(), 1);
    waiting.abort();
}

/// The examples in docs/admin-api.md have exactly the members of real responses.
#[tokio::test]
async fn documented_responses_match() {
    let store = MemoryStore::new().or_local(MemoryStore::new());
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
        ("GET /subjects/{subject}", "/subjects/ip:192.0.2.1"),
        ("GET /top", "/top"),
    ] {
        let (code, body) = operate(&admin, "GET", path, "").await;
        assert_eq!(code, 200, "{path}");
        assert_eq!(shape(&example(heading)), shape(&body), "{heading}");
    }
    let settle = example("POST /status/{policy}/{subject}").to_string();
    let (code, _) = operate(&admin, "POST", "/status/global/global", &settle).await;
    assert_eq!(code, 200, "the documented body is accepted");
    let (_, problem) = operate(&admin, "GET", "/no", "").await;
    assert_eq!(shape(&example("Errors")), shape(&problem));
}

/// The members without values. Lists are reduced to their first item.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            members.iter().map(|(name, value)| (name.clone(), shape(value))).collect()
        }
        Value::Array(items) => items.first().map_or(Value::Null, shape),
        _ => Value::Null,
    }
}

/// `window` is the longest period, so only `calendar` distinguishes February from January.
#[tokio::test]
async fn calendar_quotas_show_their_period() {
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
    // For quotas per client, the store is not called and the system clock decides. Its time is
    // beyond the calendar's table.
    assert_eq!(january[1]["calendar"]["name"], name);
    assert!(january[1]["calendar"]["period"].as_f64().unwrap() > 1e9);
    assert_eq!(january[2]["calendar"], json!(null));
    clock.advance(Micros::new(41 * 86_400_000_000));
    let expected = json!({ "name": name, "period": 29.0 * day, "ends_after": 19.0 * day });
    assert_eq!(policies().await[0]["calendar"], expected);
}
