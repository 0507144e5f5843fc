//! Penalties: clients are blocked after repeated denials or failures.

use std::time::Duration;

use serde_json::json;
use tollgate::key::ClientIp;
use tollgate::layer::LayerError;
use tollgate::limit::{Mode, Reserve};
use tollgate::policy::{OnStoreError, Strikes};
use tollgate::{Limit, Policy, Quota, StoreExt};

use crate::stage::{Fault, Staged};
use crate::support::*;

const MINUTE: Duration = Duration::from_secs(60);

/// Two requests per minute and client.
fn client() -> Limit {
    Limit::new(log("client", 2), ClientIp::peer())
}

/// Three denials in a minute block for 5 minutes, then 10, and at most 20.
fn strikes() -> Strikes {
    let strikes = Strikes::of_denials(3, MINUTE).block(5 * MINUTE);
    strikes.growing(2, 20 * MINUTE).forgotten_after(60 * MINUTE)
}

#[tokio::test]
async fn repeated_denials_block_the_client() {
    let (clock, store) = memory();
    let banned = client().penalty("banned", strikes()).unwrap();
    let service = limited(&store, [client(), banned]);
    for expected in [200, 200, 429, 429] {
        let answer = ask(&service, get()).await;
        assert_eq!(answer.status(), expected);
        let fields = rate_fields(answer.headers()).join(" ");
        assert!(fields.contains("client") && !fields.contains("banned"), "{fields}");
    }
    // The denial that starts the block already shows it. Further requests do not extend it.
    for waits in [300, 299, 298] {
        let denied = ask(&service, get()).await;
        assert_eq!(denied.status(), 429);
        assert_eq!(field(denied.headers(), "retry-after"), Some(waits.to_string()));
        let limits = field(denied.headers(), "ratelimit").unwrap();
        assert!(limits.contains(&format!("\"banned\";r=0;t={waits}")), "{limits}");
        let policies = field(denied.headers(), "ratelimit-policy").unwrap();
        assert_eq!(policies, "\"client\";q=2;w=60, \"banned\";q=0");
        assert_eq!(field(denied.headers(), "x-ratelimit-limit").as_deref(), Some("0"));
        let reset = (START + 300).to_string();
        assert_eq!(field(denied.headers(), "x-ratelimit-reset"), Some(reset));
        let body = json(denied).await;
        assert_eq!(
            body["type"],
            "https://github.com/tollgate-rs/tollgate/blob/main/docs/http.md#blocked"
        );
        assert_eq!((&body["code"], &body["retry_after"]), (&json!("blocked"), &json!(waits)));
        assert!(body["violated-policies"].as_array().unwrap().contains(&json!("banned")));
        assert!(body.get("limit").is_none() && body.get("window").is_none(), "{body}");
        clock.advance(seconds(1));
    }
    // The quota is full again long before the block expires.
    clock.advance(seconds(296));
    assert_eq!(status(&service).await, 429);
    clock.advance(seconds(1));
    assert_eq!(status(&service).await, 200);
    assert_eq!(ask(&service, from_peer(2, get())).await.status(), 200, "not blocked");
}

#[tokio::test]
async fn shadow_penalty_is_invisible() {
    let (_, store) = memory();
    let banned = client().penalty("banned", strikes()).unwrap();
    let service = limited(&store, [client(), banned.clone().shadow()]);
    for _ in 0..10 {
        let answer = ask(&service, get()).await;
        assert!(!rate_fields(answer.headers()).join(" ").contains("banned"));
    }
    let now_enforced = limited(&store, [client(), banned]);
    assert_eq!(json(ask(&now_enforced, get()).await).await["code"], "blocked");
}

#[tokio::test]
async fn strikes_need_no_extra_store_call() {
    let (_, memory) = memory();
    let store = Staged::new(memory.clone());
    let all = Limit::global(log("all", 1).with_on_store_error(OnStoreError::Local));
    let banned = all.penalty("banned", strikes()).unwrap();
    assert_eq!(banned.policy().on_store_error(), Some(OnStoreError::Local));
    let policy = banned.policy().clone();
    let local = crate::support::memory().1;
    let service = limited(&store.clone().or_local(local), [all, banned]);
    for calls in 1..=2 {
        ask(&service, get()).await;
        assert_eq!(store.calls(), calls);
    }
    assert_eq!(left(&memory, &policy).await, 2);
    store.fail(Fault::NotCharged);
    // The local store gets a share of the quota, but the full number of strikes.
    assert_eq!(status(&service).await, 200, "this process has its own quota");
    for code in ["quota-exceeded", "quota-exceeded", "blocked", "blocked"] {
        assert_eq!(json(ask(&service, get()).await).await["code"], code);
    }
    store.recover();
    assert_eq!(left(&memory, &policy).await, 2, "local strikes are not sent to the store");
}

#[test]
fn invalid_penalties_do_not_build() {
    let (_, store) = memory();
    let failures = || client().penalty("locked", Strikes::of_failures(3, MINUTE)).unwrap();
    for limit in [failures(), failures().count_only(|_| true).reserve(Reserve::by_handler())] {
        let error = builder(&store, [client(), limit]).build().unwrap_err();
        assert_eq!(error, LayerError::NoFailures("locked".into()));
    }
    let patient = client().mode(Mode::Wait(MINUTE));
    let banned = patient.penalty("banned", strikes()).unwrap();
    let error = builder(&store, [patient.clone(), banned]).build().unwrap_err();
    let (name, waiting) = ("banned".into(), "client".into());
    assert_eq!(error, LayerError::PenaltyBesideWaiting(name, waiting));
    let locked = failures().count_only(|_| true);
    assert!(builder(&store, [patient, locked]).build().is_ok());
    let bucket = Policy::token_bucket("client", Quota::per_second(1)).unwrap();
    let wrong = Limit::global(bucket).penalty("x", Strikes::of_denials(0, MINUTE));
    assert!(wrong.is_err());
}
