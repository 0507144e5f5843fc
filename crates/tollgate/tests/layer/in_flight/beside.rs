//! Concurrency limits together with other features: costs, headers, settling.

use http::Method;
use serde_json::json;
use tollgate::key::Key;
use tollgate::layer::LayerError;
use tollgate::limit::Reserve;
use tollgate::policy::Cost;
use tollgate::{Costs, Limit, StoreExt};

use super::{at_once, limited};
use crate::support::*;

#[tokio::test]
async fn permits_are_independent_of_other_costs() {
    let (_, store) = memory();
    let limits = [Limit::global(at_once(3)), Limit::global(log("all", 100)).cost(10)];
    let service = limited(&store, limits);
    let held = ask(&service, request(Method::DELETE, "/")).await;
    assert_eq!(left(&store, &at_once(3)).await, 2);
    assert_eq!(left(&store, &log("all", 100)).await, 90);
    drop(held);
    assert_eq!(left(&store, &at_once(3)).await, 3);
    assert_eq!(left(&store, &log("all", 100)).await, 90);
    let heavy = Limit::global(at_once(3)).costs(Costs::flat(Cost::new(2))).shadow();
    let held = ask(&limited(&store, [heavy]), get()).await;
    assert_eq!(left(&store, &at_once(3)).await, 1, "a shadow limit counts as well");
    drop(held);
    assert_eq!(left(&store, &at_once(3)).await, 3);
}

#[tokio::test]
async fn denial_has_short_retry_after() {
    let (_, store) = memory();
    let service = limited(&store, [Limit::global(at_once(1)), Limit::global(log("all", 100))]);
    let held = ask(&service, get()).await;
    assert_eq!(
        rate_fields(held.headers()),
        [
            "ratelimit: \"at-once\";r=0, \"all\";r=99;t=60",
            "ratelimit-policy: \"at-once\";q=1;qu=\"concurrent-requests\", \"all\";q=100;w=60",
            "x-ratelimit-limit: 1",
            "x-ratelimit-remaining: 0",
            &format!("x-ratelimit-reset: {}", START + 1),
        ]
    );
    let denied = ask(&service, get()).await;
    assert_eq!(denied.status(), 429);
    assert_eq!(field(denied.headers(), "retry-after").as_deref(), Some("1"));
    let limits = "\"at-once\";r=0;t=1, \"all\";r=99;t=60";
    assert_eq!(field(denied.headers(), "ratelimit").as_deref(), Some(limits));
    let body = json(denied).await;
    let detail =
        "The quota is 1 unit at a time. This request costs 1; 0 remain. Retry in 1 second.";
    for (member, value) in [
        ("code", json!("quota-exceeded")),
        ("detail", json!(detail)),
        ("limit", json!(1)),
        ("quota_unit", json!("concurrent-requests")),
        ("retry_after", json!(1)),
        ("violated-policies", json!(["at-once"])),
    ] {
        assert_eq!(body[member], value, "{member}");
    }
    assert!(body.get("window").is_none());
    // If a rate limit denies too, its longer wait is reported.
    let minute = log("minute", 1);
    let both = limited(&store, [Limit::global(at_once(1)), Limit::global(minute.clone())]);
    store.charge(&minute, &Key::GLOBAL, Cost::ONE).await.unwrap();
    let denied = ask(&both, get()).await;
    assert_eq!(field(denied.headers(), "retry-after").as_deref(), Some("60"));
    drop(held);
}

#[test]
fn concurrency_limits_cannot_settle() {
    let (_, store) = memory();
    let limit = || Limit::global(at_once(1));
    for limit in [limit().count_only(|_| true), limit().reserve(Reserve::by_handler())] {
        let error = builder(&store, [limit]).build().unwrap_err();
        assert_eq!(error, LayerError::SettlesInFlight("at-once".into()));
        assert!(error.to_string().ends_with("on a limit of another kind [TG0119]"), "{error}");
    }
}
