//! Tests the body and headers of denials.

use std::marker::PhantomData;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{Method, Request, Response, StatusCode};
use proptest::prelude::*;
use serde_json::{Value, json};
use tollgate_core::{Calendar, Decision, Policy, Quota};

use super::*;
use crate::head::RequestHead;
use crate::headers::{RATELIMIT, X_RATELIMIT_LIMIT, X_RATELIMIT_REMAINING, X_RATELIMIT_RESET};

/// 2026-09-21T14:13:20.5Z
const NOW: Timestamp = Timestamp::from_micros(1_790_000_000_500_000);

fn fields(name: &str, quota: Quota) -> PolicyFields {
    PolicyFields::new(&Policy::token_bucket(name, quota).unwrap())
}

fn denying(fields: &PolicyFields, outcome: Outcome, reset_after: u64) -> Decision {
    Decision {
        outcome,
        limit: fields.policy.capacity(),
        remaining: 0,
        reset_after: Micros::new(reset_after),
    }
}

fn deny(micros: u64) -> Outcome {
    Outcome::Deny { retry_after: Micros::new(micros) }
}

/// Makes the response like the layer does.
fn render(policies: &[ShownPolicy<'_>], options: HeaderOptions) -> Response<Bytes> {
    let denial = Denial::of_verdict(NOW, policies.iter().copied(), &options, 7);
    let mut response = denial.respond(ResponseFormat::Http, &Problem::default());
    options.write(response.headers_mut(), NOW, true, policies.iter().copied());
    response
}

fn body(response: &Response<Bytes>) -> Value {
    assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
    assert_eq!(response.headers()[CACHE_CONTROL], "no-store");
    let body: Value = serde_json::from_slice(response.body()).unwrap();
    assert_eq!(body["status"], response.status().as_u16());
    body
}

#[test]
fn text_response_gets_denial_status() {
    let text = ResponseFromFn(|denial: &Denial<'_>| denial.reason().code().to_owned(), PhantomData);
    let response = Denial::missing_key().respond(ResponseFormat::Http, &text);
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    assert_eq!(response.headers()[CONTENT_TYPE], "text/plain; charset=utf-8");
    assert_eq!(response.body(), "missing-key");
}

#[test]
fn spent_quota_is_429() {
    let fields =
        [fields("default", Quota::per_minute(100)), fields(r#"a "b" \c"#, Quota::per_second(1))];
    let spent = denying(&fields[0], deny(4_100_000), 59_000_000);
    let also = denying(&fields[1], deny(900_000), 900_000);
    let policies = [(&fields[0], &spent, Cost::ONE), (&fields[1], &also, Cost::ONE)];
    let response = render(&policies, HeaderOptions::all());
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(
        body(&response),
        json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Quota Exceeded",
            "status": 429,
            "detail": "The quota is 100 units per 60 seconds. This request costs 1; 0 remain. Retry in 5 seconds.",
            "code": "quota-exceeded",
            "limit": 100,
            "remaining": 0,
            "cost": 1,
            "window": "60 seconds",
            "retry_after": 5,
            "reset_at": "2026-09-21T14:14:20Z",
            "violated-policies": ["default", r#"a "b" \c"#],
        })
    );
    for (name, expected) in [
        (RETRY_AFTER, "5"),
        (RATELIMIT, r#""default";r=0;t=5, "a \"b\" \\c";r=0;t=1"#),
        (X_RATELIMIT_LIMIT, "100"),
        (X_RATELIMIT_REMAINING, "0"),
        (X_RATELIMIT_RESET, "1790000060"),
    ] {
        assert_eq!(response.headers()[name], expected);
    }
}

#[test]
fn calendar_shows_name_and_end() {
    let midnights = [1_789_948_800, 1_790_035_200].map(|s| Timestamp::from_micros(s * 1_000_000));
    let calendar = Calendar::new(r#"day at "home""#, midnights).unwrap();
    let policy = Policy::fixed_window_counter("daily", Quota::per_calendar(5, calendar)).unwrap();
    let left = midnights[1].since(NOW);
    let fields = PolicyFields::new(&policy);
    let spent = denying(&fields, Outcome::Deny { retry_after: left }, left.get());
    let response = render(&[(&fields, &spent, Cost::ONE)], HeaderOptions::all());
    let body = body(&response);
    assert_eq!(body["window"], r#"calendar day at "home""#);
    assert_eq!(body["reset_at"], "2026-09-22T00:00:00Z");
    assert_eq!(
        body["detail"],
        r#"The quota is 5 units per calendar day at "home". This request costs 1; 0 remain. Retry in 35200 seconds."#
    );
    assert_eq!(response.headers()[X_RATELIMIT_RESET], "1790035200");
}

#[test]
fn excessive_cost_is_403_without_wait() {
    let fields = [
        fields("upload", Quota::per_hour(1_000).burst(50)),
        fields("default", Quota::per_minute(100)),
    ];
    let never = denying(&fields[0], Outcome::ExceedsCapacity, 0);
    let later = denying(&fields[1], deny(4_100_000), 59_000_000);
    let policies = [(&fields[0], &never, Cost::new(60)), (&fields[1], &later, Cost::new(60))];
    let response = render(&policies, HeaderOptions::all());
    assert_eq!(response.status(), StatusCode::FORBIDDEN);
    assert!(!response.headers().contains_key(RETRY_AFTER));
    assert_eq!(
        body(&response),
        json!({
            "type": "https://github.com/tollgate-rs/tollgate/blob/main/docs/http.md#cost-exceeds-quota",
            "title": "Cost Exceeds Quota",
            "status": 403,
            "detail": "The request costs more than the largest grant of 50 units, so waiting does not help.",
            "code": "cost-exceeds-quota",
            "limit": 50,
            "remaining": 0,
            "cost": 60,
            "window": "180 seconds",
            "reset_at": "2026-09-21T14:13:21Z",
            "violated-policies": ["upload", "default"],
        })
    );
}

#[test]
fn excessive_cost_overrides_any_wait() {
    let fields = fields("default", Quota::per_minute(100));
    let (late, never) = (deny(u64::MAX), Outcome::ExceedsCapacity);
    for outcomes in [[late, never], [never, late]] {
        let decisions = outcomes.map(|outcome| denying(&fields, outcome, 1));
        let policies = decisions.iter().map(|decision| (&fields, decision, Cost::ONE));
        let denial = Denial::of_verdict(NOW, policies, &HeaderOptions::all(), 7);
        assert_eq!(denial.reason(), Reason::CostExceedsQuota);
        assert_eq!(denial.retry_after_secs(), None);
    }
}

#[test]
fn denials_without_verdict_have_no_numbers() {
    let fields = [fields("login", Quota::per_minute(5))];
    let problem = |denial: &Denial<'_>| {
        let response = denial.respond(ResponseFormat::Http, &Problem::default());
        let retry_after = response.headers().get(RETRY_AFTER).cloned();
        (body(&response), retry_after)
    };
    let (json, retry_after) = problem(&Denial::store_unavailable(&fields, Micros::new(2_500_000)));
    assert_eq!(retry_after.unwrap(), "3");
    assert_eq!(
        json,
        json!({
            "type": "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
            "title": "Temporary Reduced Capacity",
            "status": 503,
            "detail": "The rate limiter cannot decide at the moment. Retry in 3 seconds.",
            "code": "temporary-reduced-capacity",
            "retry_after": 3,
            "violated-policies": ["login"],
        })
    );
    let (json, retry_after) = problem(&Denial::quota_exceeded("tokens", Micros::new(1_500_000)));
    assert_eq!(retry_after.unwrap(), "2");
    assert_eq!((&json["status"], &json["retry_after"]), (&json!(429), &json!(2)));
    assert_eq!(json["violated-policies"], json!(["tokens"]));
    let (json, retry_after) = problem(&Denial::missing_key());
    assert_eq!(retry_after, None);
    assert_eq!((&json["status"], &json["code"]), (&json!(403), &json!("missing-key")));
    let (json, retry_after) = problem(&Denial::ambiguous_key());
    assert_eq!(retry_after, None);
    assert_eq!((&json["status"], &json["code"]), (&json!(400), &json!("ambiguous-key")));
    let (json, retry_after) = problem(&Denial::misconfigured());
    assert_eq!(retry_after, None);
    assert_eq!(json["status"], 500);
    let detail = "The rate limiter is misconfigured. The server logs the reason.";
    assert_eq!(json["detail"], detail);
}

#[test]
fn custom_status_applies_to_body() {
    let denial = Denial::missing_key().with_status(StatusCode::UNAUTHORIZED);
    let response = denial.respond(ResponseFormat::Http, &Problem::default());
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
    let body = body(&response);
    assert_eq!((&body["status"], &body["code"]), (&json!(401), &json!("missing-key")));
    let call = denial.respond(ResponseFormat::Grpc, &Problem::default());
    assert_eq!(
        (call.status(), &call.headers()["grpc-status"]),
        (StatusCode::OK, &"16".parse().unwrap())
    );
}

#[test]
fn retry_after_is_at_least_one_second() {
    let denial = Denial::store_unavailable([], Micros::ZERO);
    assert_eq!(denial.retry_after_secs(), Some(1));
}

#[test]
fn problem_includes_custom_members() {
    let members = Members::new().with("server_id", "api \"1\"").unwrap();
    let problem = Problem::with_members(members.with("shard", 7).unwrap());
    let response = Denial::missing_key().respond(ResponseFormat::Http, &problem);
    let body = body(&response);
    assert_eq!(body["server_id"], "api \"1\"");
    assert_eq!(body["shard"], 7);
}

#[test]
fn other_errors_have_the_same_form() {
    let status = StatusCode::from_u16(799).unwrap();
    let response = problem_response(status, Some("a\"b"), "line\nline");
    assert_eq!(response.status(), status);
    assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
    assert_eq!(response.headers()[CACHE_CONTROL], "no-store");
    let expected = json!({
        "type": "about:blank", "title": "Error", "status": 799, "detail": "line\nline",
        "code": "a\"b",
    });
    assert_eq!(body(&response), expected);
}

#[test]
fn head_response_has_no_body() {
    let denial = Denial::store_unavailable([], Micros::new(1));
    let request = Request::builder().method(Method::HEAD).body(()).unwrap();
    let format = ResponseFormat::of(&RequestHead::of(&request), false);
    let head = denial.respond(format, &Problem::default());
    let get = denial.respond(ResponseFormat::Http, &Problem::default());
    assert!(head.body().is_empty() && !get.body().is_empty());
    assert_eq!(head.status(), get.status());
    assert_eq!(head.headers(), get.headers());
}

#[test]
fn closure_cannot_override_common_headers() {
    let teapot = |denial: &Denial<'_>| {
        let mut response = Response::new(Bytes::from(denial.policies().join(",")));
        *response.status_mut() = StatusCode::IM_A_TEAPOT;
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("max-age=60"));
        response
    };
    let fields = [fields("login", Quota::per_minute(5))];
    let denial = Denial::store_unavailable(&fields, Micros::new(1));
    let response = denial.respond(ResponseFormat::Http, &teapot);
    assert_eq!(response.status(), StatusCode::IM_A_TEAPOT);
    assert_eq!(response.body(), "login");
    assert_eq!(response.headers()[RETRY_AFTER], "1");
    assert_eq!(response.headers()[CACHE_CONTROL], "no-store");
    assert!(denial.respond(ResponseFormat::Head, &teapot).body().is_empty());
    // The closure does not affect gRPC responses either.
    let grpc = denial.respond(ResponseFormat::Grpc, &teapot);
    assert_eq!(grpc.headers()["grpc-status"], "14");
}

#[test]
fn grpc_status_is_in_headers() {
    let fields = [fields("default", Quota::per_minute(100))];
    let (spent, never) =
        (denying(&fields[0], deny(4_100_000), 1), denying(&fields[0], Outcome::ExceedsCapacity, 1));
    let of = |decision| {
        let options = HeaderOptions::all();
        Denial::of_verdict(NOW, [(&fields[0], decision, Cost::ONE)], &options, 7)
    };
    let request = Request::post("/pkg.Service/Call").header(CONTENT_TYPE, "application/grpc+json");
    let request = request.body(()).unwrap();
    let format = ResponseFormat::of(&RequestHead::of(&request), true);
    for (denial, status) in [
        (of(&spent), "8"),
        (of(&never), "7"),
        (Denial::store_unavailable(&fields, Micros::new(1)), "14"),
        (Denial::missing_key(), "7"),
        (Denial::ambiguous_key(), "3"),
        (Denial::denied_subject(), "7"),
        (Denial::misconfigured(), "13"),
    ] {
        let response = denial.respond(format, &Problem::default());
        assert_eq!(response.status(), StatusCode::OK);
        assert!(response.body().is_empty());
        let headers = response.headers();
        assert_eq!(headers[CONTENT_TYPE], "application/grpc");
        assert_eq!(headers["grpc-status"], status);
        assert!(!headers["grpc-message"].is_empty());
        let retry_after = denial.retry_after_secs().map(|seconds| seconds.to_string());
        let sent = headers.get(RETRY_AFTER).map(|value| value.to_str().unwrap());
        assert_eq!(sent, retry_after.as_deref());
    }
}

proptest! {
    #[test]
    fn body_matches_headers(
        retry_after in 0..u64::MAX,
        reset_after in 0..u64::MAX,
        jitter in 0..100_u64,
        name in "[ -~]{1,128}",
    ) {
        let fields = fields(&name, Quota::per_minute(100));
        let decision = denying(&fields, deny(retry_after), reset_after);
        let options = HeaderOptions::all().retry_jitter(Duration::from_secs(jitter));
        let response = render(&[(&fields, &decision, Cost::ONE)], options);
        let body = body(&response);
        let header = |name| {
            let value: &HeaderValue = &response.headers()[name];
            value.to_str().unwrap().parse::<u64>().unwrap()
        };
        prop_assert_eq!(&body["limit"], header(X_RATELIMIT_LIMIT));
        prop_assert_eq!(&body["remaining"], header(X_RATELIMIT_REMAINING));
        prop_assert_eq!(body["retry_after"].as_u64().unwrap(), header("retry-after".parse().unwrap()));
        prop_assert_eq!(
            body["reset_at"].as_str().unwrap(),
            problem::date(header(X_RATELIMIT_RESET)).to_string()
        );
        prop_assert_eq!(&body["violated-policies"], &json!([name]));
    }
}

#[test]
fn instants_format_as_dates() {
    for (seconds, expected) in [
        (0, "1970-01-01T00:00:00Z"),
        (951_782_400, "2000-02-29T00:00:00Z"),
        (4_107_542_399, "2100-02-28T23:59:59Z"),
        (4_107_542_400, "2100-03-01T00:00:00Z"),
        (u64::MAX, "9999-12-31T23:59:59Z"),
    ] {
        assert_eq!(problem::date(seconds).to_string(), expected);
    }
}
