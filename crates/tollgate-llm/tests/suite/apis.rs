//! The API by path, and its errors.

use serde_json::{Value, json};
use tollgate_llm::{Api, Call, DOLLAR, Model, Models, Price};

#[test]
fn last_segment_decides_the_api() {
    for (path, api) in [
        ("/v1/chat/completions", Api::Completions),
        ("/v1/completions/", Api::Completions),
        ("/openai/deployments/gpt-5/chat/completions", Api::Completions),
        ("/v1/messages", Api::Messages),
        ("/anthropic/v1/messages//", Api::Messages),
        ("/v1/messages/batches", Api::Messages),
        ("/v1/embeddings", Api::Embeddings),
        ("/v1/responses", Api::OpenAi),
        ("/v1/batches", Api::OpenAi),
        ("/v1/messages/count_tokens", Api::OpenAi),
        ("/completions/other", Api::OpenAi),
        ("/v1/mycompletions", Api::OpenAi),
        ("/", Api::OpenAi),
        ("", Api::OpenAi),
    ] {
        assert_eq!(Api::of_path(path), api, "{path}");
    }
}

#[test]
fn errors_have_the_types_of_their_api() {
    let openai = |kind: &str, code: Option<&str>| json!({"error": {"message": "No.", "type": kind, "param": null, "code": code}});
    let anthropic = |kind| json!({"type": "error", "error": {"type": kind, "message": "No."}});
    let invalid = "invalid_request_error";
    for (status, policy, of_openai, of_anthropic) in [
        (400, None, openai(invalid, None), invalid),
        (401, None, openai(invalid, Some("invalid_api_key")), "authentication_error"),
        (403, None, openai(invalid, Some("invalid_api_key")), "permission_error"),
        // The key is valid, but its quota is smaller than the request.
        (403, Some("tokens"), openai(invalid, None), "permission_error"),
        (413, None, openai(invalid, None), "request_too_large"),
        (415, None, openai(invalid, None), invalid),
        (429, None, openai("requests", Some("rate_limit_exceeded")), "rate_limit_error"),
        (429, Some("tokens"), openai("tokens", Some("rate_limit_exceeded")), "rate_limit_error"),
        (
            429,
            Some(Api::BUDGET),
            openai("insufficient_quota", Some("insufficient_quota")),
            "rate_limit_error",
        ),
        (500, None, openai("server_error", None), "api_error"),
        (503, Some("tokens"), openai("server_error", None), "api_error"),
    ] {
        let error = |api: Api| -> Value {
            serde_json::from_str(&api.error(status, policy, "No.")).expect("valid JSON")
        };
        for api in [Api::Completions, Api::Embeddings, Api::OpenAi] {
            assert_eq!(error(api), of_openai, "{status} {policy:?}");
        }
        assert_eq!(error(Api::Messages), anthropic(of_anthropic), "{status} {policy:?}");
    }
}

/// Prices a request. A token costs 1 dollar with the listed model and 9 dollars with any other.
fn price(path: &str, body: &Value) -> u64 {
    let [listed, other] = [1, 9].map(|dollars| {
        let price = Price::per_million(0, dollars * DOLLAR);
        Model::new(price).max_output(100)
    });
    let models = Models::new(other).with("listed", listed);
    let (call, _) = Call::parse(path, body.to_string().as_bytes(), &models).expect("a request");
    call.model().price().of(&call.estimate())
}

#[test]
fn path_overrides_the_model() {
    let azure = "/openai/deployments/listed/chat/completions";
    for (path, body, expected) in [
        (azure, json!({}), 100),
        (azure, json!({"model": "dear"}), 100),
        ("/openai/deployments/dear/chat/completions", json!({"model": "listed"}), 900),
        ("/openai/deployments/listed-2025-08-07/chat/completions", json!({}), 100),
        ("/openai/deployments/", json!({"model": "listed"}), 900),
        ("/openai/deployments", json!({"model": "listed"}), 100),
        ("/v1/chat/completions", json!({"model": "listed"}), 100),
        ("/listed/v1/chat/completions", json!({}), 900),
    ] {
        assert_eq!(price(path, &body), expected, "{path} {body}");
    }
}

#[test]
fn embeddings_have_no_output() {
    assert_eq!(price("/v1/embeddings", &json!({"input": "text"})), 0);
    assert_eq!(price("/v1/responses", &json!({"input": "text"})), 900);
}

#[test]
fn batches_sum_their_requests() {
    let path = "/v1/messages/batches";
    let params = |model, max: Option<u64>| json!({"params": {"model": model, "max_tokens": max}});
    for (body, expected) in [
        (json!({"requests": [params("listed", Some(7)), params("listed", Some(30))]}), 37),
        (json!({"requests": [params("listed", Some(7)), params("listed", None)]}), 107),
        (json!({"requests": [params("listed", None), params("listed", None)]}), 200),
        // Different models have the price of unlisted models.
        (json!({"requests": [params("listed", Some(7)), params("dear", Some(30))]}), 9 * 37),
        (json!({"requests": [params("dear", Some(7)), params("listed", Some(30))]}), 9 * 37),
        (
            json!({"requests": [params("listed", Some(1)), params("dear", Some(1)), params("listed", Some(1))]}),
            9 * 3,
        ),
        // The server ignores the batch's other members.
        (json!({"model": "listed", "max_tokens": 1, "requests": [params("dear", Some(7))]}), 63),
        (json!({"requests": [{"custom_id": "a"}], "model": "listed"}), 100),
        (json!({"requests": [], "model": "listed", "max_tokens": 3}), 3),
    ] {
        assert_eq!(price(path, &body), expected, "{body}");
    }
    // Other APIs ignore `requests`.
    let body = json!({"requests": [params("listed", Some(1))], "model": "dear", "max_tokens": 5});
    assert_eq!(price("/v1/messages", &body), 45);
    let odd = json!({"requests": "all"}).to_string();
    assert!(Call::parse(path, odd.as_bytes(), &Models::new(crate::model())).is_err());
}
