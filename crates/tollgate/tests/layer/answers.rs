//! Response headers and the bodies of denials.

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use tollgate::headers::HeaderOptions;
use tollgate::layer::RateLimit;
use tollgate::policy::Cost;
use tollgate::{Costs, Limit, Store};
use tower::Layer;

use crate::support::*;

/// A service that allows ten requests per minute and has already served `used` of these.
async fn used(used: usize) -> RateLimit<Hello, impl Store> {
    let (_, store) = memory();
    let service = limited(&store, [Limit::global(log("global", 10))]);
    for _ in 0..used {
        assert_eq!(status(&service).await, 200);
    }
    service
}

#[tokio::test]
async fn denial_adds_retry_after() {
    let service = used(10).await;
    let response = ask(&service, get()).await;
    assert_eq!(response.status(), 429);
    assert_eq!(
        rate_fields(response.headers()),
        [
            r#"ratelimit: "global";r=0;t=60"#,
            r#"ratelimit-policy: "global";q=10;w=60"#,
            "retry-after: 60",
            "x-ratelimit-limit: 10",
            "x-ratelimit-remaining: 0",
            &format!("x-ratelimit-reset: {}", START + 60),
        ]
    );
    assert_eq!(response.headers()["cache-control"], "no-store");
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    assert_eq!(json(response).await["violated-policies"], serde_json::json!(["global"]));
    let head = ask(&service, request(Method::HEAD, "/")).await;
    assert_eq!(head.headers()["retry-after"], "60");
    assert_eq!(text(head).await, "");
}

#[tokio::test]
async fn jitter_is_stable_per_key_and_only_adds() {
    let (_, store) = memory();
    let by_ip = Limit::new(log("ip", 1), tollgate::key::ClientIp::peer());
    let options = HeaderOptions::all().retry_jitter(std::time::Duration::from_secs(30));
    let service = builder(&store, [by_ip]).headers(options).build().unwrap().layer(hello());
    let mut seen = std::collections::BTreeSet::new();
    for peer in 0..20 {
        assert_eq!(ask(&service, from_peer(peer, get())).await.status(), 200);
        let mut answers = Vec::new();
        for _ in 0..3 {
            let response = ask(&service, from_peer(peer, get())).await;
            answers.push(field(response.headers(), "retry-after").unwrap().parse::<u64>().unwrap());
        }
        answers.dedup();
        assert_eq!(answers.len(), 1, "retrying does not change the jitter");
        seen.extend(answers);
    }
    assert!(seen.iter().all(|seconds| (60..=90).contains(seconds)), "{seen:?}");
    assert!(seen.len() > 5, "clients must retry at different times: {seen:?}");
}

#[tokio::test]
async fn custom_denial_may_have_several_chunks() {
    let stream = |chunks: [&'static str; 3]| {
        let chunks = chunks.map(Ok::<_, std::convert::Infallible>);
        axum::body::Body::from_stream(tokio_stream::iter(chunks))
    };
    let (_, store) = memory();
    let limits = [Limit::global(log("global", 1))];
    let layer =
        builder(&store, limits).on_denied(move |_| Response::new(stream(["sl", "ow", "ly"])));
    let service = layer.build().expect("a valid layer").layer(hello());
    assert_eq!(status(&service).await, 200);
    assert_eq!(text(ask(&service, get()).await).await, "slowly");
}

#[tokio::test]
async fn hidden_limit_denies_without_headers() {
    let (_, store) = memory();
    let limits = [Limit::global(log("hidden", 1)).hide_headers(), Limit::global(log("shown", 9))];
    let service = limited(&store, limits);
    let response = ask(&service, get()).await;
    assert_eq!(field(response.headers(), "ratelimit").unwrap(), r#""shown";r=8;t=54"#);
    let response = ask(&service, get()).await;
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["retry-after"], "60");
    assert_eq!(field(response.headers(), "ratelimit-policy").unwrap(), r#""shown";q=9;w=60"#);
    assert_eq!(field(response.headers(), "x-ratelimit-limit").unwrap(), "9");
    assert_eq!(json(response).await["violated-policies"], serde_json::json!(["hidden"]));
}

#[tokio::test]
async fn cost_above_quota_is_forbidden() {
    let (_, store) = memory();
    // A cost that a closure returns is not known when the layer is built.
    let costs = Costs::from_fn(|_| Some(11));
    let used_up = Limit::global(log("used-up", 1)).costs(Costs::flat(Cost::ONE));
    let service = limited(&store, [Limit::global(log("global", 10)).costs(costs), used_up]);
    let response = ask(&service, get()).await;
    assert_eq!(response.status(), 403);
    assert!(!response.headers().contains_key("retry-after"), "no wait would help");
    assert_eq!(field(response.headers(), "x-ratelimit-limit").as_deref(), Some("10"));
    let problem = json(response).await;
    assert_eq!(problem["code"], "cost-exceeds-quota");
    assert_eq!(problem.get("retry_after"), None);
    assert_eq!(problem["violated-policies"], serde_json::json!(["global"]));
}

#[tokio::test]
async fn service_headers_are_preserved() {
    let (_, store) = memory();
    let theirs = tower::service_fn(|_: Request<()>| async {
        let response = Response::builder()
            .status(503)
            .header("retry-after", "7")
            .header("cache-control", "max-age=60")
            .header("ratelimit", r#""theirs";r=1;t=1"#);
        Ok::<_, std::convert::Infallible>(response.body(Full::<Bytes>::from("busy")).unwrap())
    });
    let service = layer(&store, [Limit::global(log("global", 10))]).layer(theirs);
    let response = tower::ServiceExt::oneshot(service, get()).await.unwrap();
    assert_eq!(response.status(), 503);
    assert_eq!(lines(response.headers(), "retry-after"), ["7"]);
    assert_eq!(lines(response.headers(), "cache-control"), ["max-age=60"]);
    assert_eq!(
        lines(response.headers(), "ratelimit"),
        [r#""theirs";r=1;t=1"#, r#""global";r=9;t=54"#]
    );
    assert_eq!(text(response).await, "busy");
}
