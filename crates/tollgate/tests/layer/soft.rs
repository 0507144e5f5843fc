//! Soft limits, and the decisions that handlers read by name.

use std::time::Duration;

use axum::Router;
use axum::routing::get as on_get;
use http::{HeaderMap, Method, Response, StatusCode};
use tollgate::layer::{Reservation, Verdicts};
use tollgate::limit::{Mode, OnMissingKey, Reserve};
use tollgate::policy::{OnStoreError, Strikes};
use tollgate::{Limit, Policy, Quota};

use crate::stage::{Fault, Staged};
use crate::support::*;

fn soft(name: &str, limit: u64) -> Limit {
    Limit::global(log(name, limit)).mode(Mode::Annotate)
}

/// The exceeded soft limits, as the handler reads them.
async fn exceeded(verdicts: Verdicts) -> String {
    let names = verdicts.exceeded().map(|verdict| verdict.policy().name());
    names.collect::<Vec<_>>().join(" ")
}

fn exceeded_header(headers: &HeaderMap) -> Option<String> {
    field(headers, "x-ratelimit-exceeded")
}

#[tokio::test]
async fn soft_limit_marks_excess_requests() {
    let (clock, store) = memory();
    let app = Router::new().route("/", on_get(exceeded));
    let app = app.layer(layer(&store, [soft("planned", 1), Limit::global(log("hard", 9))]));
    for (limit, header, seen) in
        [(0, None, ""), (0, Some(r#""planned""#), "planned"), (0, Some(r#""planned""#), "planned")]
    {
        let response = ask_router(&app, get()).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(exceeded_header(response.headers()).as_deref(), header);
        let shown = field(response.headers(), "ratelimit").unwrap();
        assert!(shown.starts_with(&format!(r#""planned";r={limit};"#)), "{shown}");
        assert!(!response.headers().contains_key("retry-after"));
        assert_eq!(text(response).await, seen);
    }
    // Marked requests were not charged, so the next window has its full quota.
    clock.advance(Duration::from_secs(60));
    assert_eq!(exceeded_header(ask_router(&app, get()).await.headers()), None);
}

#[tokio::test]
async fn denial_describes_the_limit_that_denies() {
    let (_, store) = memory();
    let longer = Quota::new(1, Duration::from_secs(120));
    let longer = Policy::sliding_window_log("soft", longer).unwrap();
    let soft = Limit::global(longer).mode(Mode::Annotate);
    let service = limited(&store, [soft, Limit::global(log("hard", 2))]);
    for (status, limit) in [(200, "1"), (200, "1"), (429, "2")] {
        let response = ask(&service, get()).await;
        assert_eq!(response.status(), status);
        assert_eq!(field(response.headers(), "x-ratelimit-limit").as_deref(), Some(limit));
    }
}

#[tokio::test]
async fn failing_soft_limit_never_rejects() {
    let store = Staged::new(memory().1);
    store.fail(Fault::NotCharged);
    let policy = log("soft", 1).with_on_store_error(OnStoreError::Closed);
    let failing = Limit::global(policy).mode(Mode::Annotate);
    assert_eq!(status(&limited(&store, [failing])).await, 200);

    let (_, store) = memory();
    let tenant = tollgate::key::Header::trust_unverified(http::HeaderName::from_static("x-tenant"));
    let keyless = Limit::new(log("tenant", 1), tenant).on_missing_key(OnMissingKey::Deny);
    let keyless = keyless.mode(Mode::Annotate);
    assert_eq!(status(&limited(&store, [keyless])).await, 200);
}

#[tokio::test]
async fn shadow_hides_soft_limits() {
    let (_, store) = memory();
    let limit = soft("shadow", 1).shadow();
    assert!(limit.is_shadow() && !limit.is_soft() && !limit.is_enforced());
    let shadow = limited(&store, [limit]);
    let hidden = limited(&store, [soft("hidden", 1).hide_headers()]);
    for service in [&shadow, &shadow, &hidden, &hidden] {
        assert_eq!(rate_fields(ask(service, get()).await.headers()), Vec::<String>::new());
    }
}

#[test]
fn soft_limit_penalty_is_enforced() {
    let minute = Duration::from_secs(60);
    let penalty = soft("soft", 1).penalty("banned", Strikes::of_denials(5, minute)).unwrap();
    assert!(penalty.is_enforced());
}

#[tokio::test]
async fn handlers_read_decisions_by_name() {
    let (_, store) = memory();
    let tokens = Limit::global(log("tokens", 100)).cost(30).reserve(Reserve::by_handler());
    let limits = [tokens, soft("soft", 5), Limit::global(log("shadow", 1)).shadow()];
    let layer = builder(&store, limits).expose_verdicts(true).build().unwrap();
    let handler = |verdicts: Verdicts, reservation: Reservation| async move {
        reservation.settle(10);
        let names = verdicts.iter().map(|verdict| {
            let marks = (verdict.is_soft(), verdict.is_shadow(), verdict.is_exceeded());
            format!("{} {marks:?}", verdict.policy().name())
        });
        let mut names: Vec<_> = names.collect();
        names.push(verdicts.get("tokens").unwrap().decision().remaining.to_string());
        names.push(verdicts.get("other").is_none().to_string());
        names.join("\n")
    };
    let app = Router::new().route("/", on_get(handler)).layer(layer);
    let after = |response: &Response<axum::body::Body>| {
        let verdicts = response.extensions().get::<Verdicts>().unwrap();
        verdicts.get("tokens").unwrap().decision().remaining
    };
    let response = ask_router(&app, get()).await;
    assert_eq!(after(&response), 90, "the response has the settled cost");
    let seen = "tokens (false, false, false)\nsoft (true, false, false)\n\
                shadow (false, true, false)\n70\ntrue";
    assert_eq!(text(response).await, seen);
    let response = ask_router(&app, get()).await;
    assert!(text(response).await.contains("shadow (false, true, true)"));
}

#[tokio::test]
async fn verdicts_are_empty_without_layer() {
    let app = Router::new().route("/", on_get(exceeded));
    let response = ask_router(&app, request(Method::GET, "/")).await;
    assert_eq!(text(response).await, "");
}
