//! `LlmBudget` in levels: which budget counts, and what a denial says.

use axum::Router;
use axum::body::Body;
use axum::routing::post;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tollgate::key::{ApiKey, ApiKeyGroups, ApiKeys, Global};
use tollgate::{MemoryStore, Policy, Quota};
use tollgate_llm::{Budget, DOLLAR, LlmBudget, Model, Models, Price};
use tower::ServiceExt;

/// Two teams of an organisation with two keys each, and a key without a team.
const TEAMS: [(&str, &str); 4] = [("ann", "red"), ("bob", "red"), ("eve", "blue"), ("joe", "blue")];

fn policy(name: &str, limit: u64) -> Policy {
    Policy::fixed_window_counter(name, Quota::per_hour(limit)).expect("a valid policy")
}

/// A proxy with these budgets in tokens and money for each key, for a team, and for all. A token
/// costs a millionth of a dollar, so that both count the same.
fn app(key: Option<u64>, team: Option<u64>, all: Option<u64>) -> Router {
    let models = Models::new(Model::new(Price::per_million(DOLLAR, DOLLAR)).tokens_per_kilobyte(0));
    let bearer = ApiKey::in_authorization("Bearer");
    let keys = ApiKeys::from_keys(TEAMS.map(|(key, _)| key).into_iter().chain(["solo"]));
    let team_of = bearer.clone().by_group(ApiKeyGroups::from_keys(TEAMS));
    let level = |name: &str, limit: Option<u64>| match limit {
        None => Budget::new(),
        Some(limit) => Budget::new()
            .tokens(policy(&format!("tokens/{name}"), limit))
            .money(policy(&format!("budget/{name}"), 2 * limit)),
    };
    let mut budget = LlmBudget::builder(MemoryStore::new(), bearer.one_of(keys), models)
        .requests(policy("requests", 1_000));
    if let Some(limit) = key {
        budget = budget.tokens(policy("tokens", limit));
    }
    let budget = budget
        .per(team_of, level("team", team))
        .per(Global, level("company", all))
        .build()
        .expect("valid limits");
    let status = budget.status();
    let models = Router::new().route("/v1/completions", post(model)).layer(budget);
    models.route_service("/rate-limit", status)
}

/// A model that uses as many tokens as the request says.
async fn model(headers: HeaderMap) -> String {
    let used = headers["x-used"].to_str().expect("a text").parse::<u64>().expect("a number");
    json!({"usage": {"prompt_tokens": 0, "completion_tokens": used}}).to_string()
}

/// Sends a request that reserves `max` tokens, and whose response reports `used` tokens.
async fn send(app: &Router, key: &str, max: u64, used: u64) -> Response<Body> {
    let request = Request::post("/v1/completions").header("authorization", format!("Bearer {key}"));
    let body = json!({"max_tokens": max}).to_string();
    let request = request.header("x-used", used).body(Body::from(body)).expect("a valid request");
    app.clone().oneshot(request).await.expect("an infallible service")
}

/// Uses tokens, all of which are reserved.
async fn spend(app: &Router, key: &str, tokens: u64) -> Result<(), String> {
    let response = send(app, key, tokens, tokens).await;
    let status = response.status();
    let body = response.into_body().collect().await.expect("an infallible body").to_bytes();
    if status.is_success() {
        return Ok(());
    }
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    let body: Value = serde_json::from_slice(&body).expect("an error body");
    Err(body["error"]["message"].as_str().expect("a message").to_owned())
}

/// Every level that is present counts, whichever is the tightest. The numbers are issues of LiteLLM
/// in which users ask which budget counts.
#[tokio::test]
async fn every_level_counts() {
    let (team_denies, company_denies) = (Some("`tokens/team`."), Some("`tokens/company`."));
    for (issue, [key, team, all], before, next, denied_by) in [
        // 14995: key 0.5, team 1. The key's budget is used up first.
        ("14995, key", [Some(50), Some(100), None], &[("ann", 50)][..], "ann", None),
        // 14995: key 2, team 1. The team's budget is used up first, and the key does not bypass it.
        ("14995, team", [Some(200), Some(100), None], &[("ann", 100)], "ann", team_denies),
        // 11962: a key with a team keeps its own budget, and so does a key without a team.
        ("11962, team", [Some(50), Some(100), None], &[("bob", 50)], "bob", None),
        ("11962, no team", [Some(50), Some(100), None], &[("solo", 50)], "solo", None),
        // 19105: several keys of a team use up its budget together, also a key that used none.
        ("19105", [Some(80), Some(100), None], &[("ann", 60), ("bob", 40)], "bob", team_denies),
        // 14097: a key without its own budget has its team's, and its organisation's.
        ("14097, team", [None, Some(100), Some(150)], &[("eve", 100)], "joe", team_denies),
        (
            "14097, organisation",
            [None, Some(100), Some(150)],
            &[("ann", 90), ("eve", 60)],
            "joe",
            company_denies,
        ),
        // The organisation's budget includes keys without a team.
        ("no team", [None, Some(100), Some(150)], &[("solo", 150)], "ann", company_denies),
    ] {
        let app = app(key, team, all);
        for (key, tokens) in before {
            assert_eq!(spend(&app, key, *tokens).await, Ok(()), "{issue}: {key}");
        }
        let denied = spend(&app, next, 1).await.expect_err(issue);
        let level = denied.rsplit_once("The limit is ").map(|(_, level)| level);
        assert_eq!(level, denied_by, "{issue}: {denied}");
    }
}

#[tokio::test]
async fn teams_do_not_affect_each_other() {
    let app = app(Some(80), Some(100), Some(1_000));
    assert_eq!(spend(&app, "ann", 80).await, Ok(()));
    assert_eq!(spend(&app, "bob", 20).await, Ok(()));
    spend(&app, "bob", 1).await.expect_err("the team has used its budget");
    assert_eq!(spend(&app, "eve", 80).await, Ok(()));
    assert_eq!(spend(&app, "solo", 80).await, Ok(()));
}

/// All or none: a denial by one level charges no other level, and does not reach the model.
#[tokio::test]
async fn denied_requests_charge_no_level() {
    let app = app(Some(100), Some(150), Some(200));
    assert_eq!(spend(&app, "ann", 100).await, Ok(()));
    for _ in 0..3 {
        spend(&app, "bob", 60).await.expect_err("the team has 50 left");
    }
    assert_eq!(spend(&app, "bob", 50).await, Ok(()));
    assert_eq!(spend(&app, "eve", 50).await, Ok(()));
}

/// The response's usage settles tokens and money on every level.
#[tokio::test]
async fn usage_settles_every_level() {
    let app = app(Some(100), Some(100), Some(100));
    let response = send(&app, "ann", 100, 10).await;
    let used = response.into_body().collect().await.expect("an infallible body");
    assert!(!used.to_bytes().is_empty());
    let shown = send(&app, "bob", 0, 0).await;
    // The key has 100 left, but its team and the company have 90.
    for (name, expected) in [
        ("x-ratelimit-remaining-tokens", "90"),
        ("x-ratelimit-limit-tokens", "100"),
        ("x-ratelimit-remaining-budget", "190"),
    ] {
        assert_eq!(shown.headers()[name], expected, "{name}");
    }
    let ratelimit = shown.headers()["ratelimit"].to_str().expect("a text");
    for policy in ["tokens\";r=100", "tokens/team\";r=90", "budget/company\";r=190"] {
        assert!(ratelimit.contains(policy), "{ratelimit}");
    }
    // A client that leaves pays for the text that it received, on every level.
    drop(send(&app, "bob", 90, 90).await);
    assert_eq!(spend(&app, "eve", 90).await, Ok(()));
}

/// No limit has the client's key, and no request without one may reach the model.
#[tokio::test]
async fn levels_alone_require_a_key() {
    let models = Models::new(Model::new(Price::per_million(0, DOLLAR)));
    let bearer = ApiKey::in_authorization("Bearer");
    let team_of = bearer.clone().by_group(ApiKeyGroups::from_keys(TEAMS));
    let key = bearer.one_of(ApiKeys::from_keys(["ann"]));
    let budget = LlmBudget::builder(MemoryStore::new(), key, models)
        .per(team_of, Budget::new().tokens(policy("tokens/team", 500)))
        .per(Global, Budget::new().money(policy("budget/company", 500)))
        .build()
        .expect("valid limits");
    async fn never() -> StatusCode {
        panic!("the model is called")
    }
    let app = Router::new().route("/v1/completions", post(never).get(never)).layer(budget);
    for (keys, status) in [(&[][..], 401), (&["stranger"], 401), (&["ann", "ann"], 400)] {
        for method in ["POST", "GET"] {
            let mut request = Request::builder().method(method).uri("/v1/completions");
            for key in keys {
                request = request.header("authorization", format!("Bearer {key}"));
            }
            let request = request.body(Body::from("{}")).expect("a request");
            let response = app.clone().oneshot(request).await.expect("infallible");
            assert_eq!(response.status(), status, "{method} {keys:?}");
        }
    }
}

/// Money on a level is a quota in OpenAI's sense, and the denial names the level.
#[tokio::test]
async fn level_budget_is_insufficient_quota() {
    let models = Models::new(Model::new(Price::per_million(0, DOLLAR)).tokens_per_kilobyte(0));
    let key = ApiKey::in_authorization("Bearer").one_of(ApiKeys::from_keys(["ann"]));
    let budget = LlmBudget::builder(MemoryStore::new(), key, models)
        .per(Global, Budget::new().money(policy("budget/company", 50)))
        .build()
        .expect("valid limits");
    let app = Router::new().route("/v1/completions", post(model)).layer(budget);
    assert_eq!(spend(&app, "ann", 50).await, Ok(()));
    let response = send(&app, "ann", 1, 1).await;
    let body = response.into_body().collect().await.expect("an infallible body").to_bytes();
    let body: Value = serde_json::from_slice(&body).expect("an error body");
    assert_eq!(body["error"]["code"], "insufficient_quota");
    let message = body["error"]["message"].as_str().expect("a message");
    assert!(message.ends_with("The limit is `budget/company`."), "{message}");
}

#[tokio::test]
async fn status_shows_every_level() {
    let app = app(Some(100), Some(150), Some(200));
    assert_eq!(spend(&app, "ann", 100).await, Ok(()));
    for (key, expected) in [
        ("ann", &[("tokens", 0), ("tokens/team", 50), ("tokens/company", 100)][..]),
        ("bob", &[("tokens", 100), ("tokens/team", 50), ("tokens/company", 100)]),
        ("solo", &[("tokens", 100), ("tokens/company", 100)]),
    ] {
        let request = Request::get("/rate-limit").header("authorization", format!("Bearer {key}"));
        let request = request.body(Body::empty()).expect("a valid request");
        let response = app.clone().oneshot(request).await.expect("an infallible service");
        let body = response.into_body().collect().await.expect("an infallible body").to_bytes();
        let body: Value = serde_json::from_slice(&body).expect("JSON");
        let limits = body["limits"].as_array().expect("a list").iter();
        let tokens = limits.filter_map(|limit| {
            let policy = limit["policy"].as_str()?;
            policy.starts_with("tokens").then_some((policy, limit["remaining"].as_u64()?))
        });
        assert_eq!(tokens.collect::<Vec<_>>(), expected, "{key}");
    }
}
