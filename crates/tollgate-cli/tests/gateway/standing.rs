//! The path at which clients read their limits.

use bytes::Bytes;
use http::Response;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tollgate_test_servers::Redis;

use crate::support::{Answer, Client, Gateway, Seen, Upstream};

/// The keys `ann` and `bob` of the team `red`, and `solo`.
const KEYS: &str = "\
identity: apiKey
onMissingKey: {deny: 401}
apiKeys:
  scheme: Bearer
  keys:
    - {sha256: 49915e0d7d4b402e3017d010bc1c0e83cac6c797d6c16e66340fe3268693a6a1, levels: {team: red}}
    - {sha256: 81b637d8fcd2c6da6359e6963113a1170de795e4b725b84d1e0b4cfd9ec58ce9, levels: {team: red}}
    - {sha256: 5364f2f2fc4f54e9d47ad29cfb08ef430c8153394bf2a0dff5cbe77a0ffef861}
levels: {team: apiKey}
strategy: sliding_window_log
statusPath: /rate-limit
";

async fn ask(client: &Client, method: &str, path: &str, key: &str) -> Answer {
    let bearer = format!("Bearer {key}");
    client.send(method, path, &[("authorization", &bearer)], "").await.unwrap()
}

async fn limits(client: &Client, key: &str) -> Vec<Value> {
    let answer = ask(client, "GET", "/rate-limit", key).await;
    assert_eq!(answer.status, 200);
    answer.json()["limits"].as_array().unwrap().clone()
}

/// Each limit's policy, its requests and what remains of it.
fn brief(limits: &[Value]) -> Vec<(&str, String, u64)> {
    let brief = |limit: &'_ Value| -> (String, u64) {
        let requests = limit.get("applies_to").map(ToString::to_string).unwrap_or_default();
        (requests.replace('"', ""), limit["remaining"].as_u64().unwrap())
    };
    limits
        .iter()
        .map(|limit| {
            let (requests, remaining) = brief(limit);
            (limit["policy"].as_str().unwrap(), requests, remaining)
        })
        .collect()
}

/// A model that uses 5000 tokens.
fn model(
    _: &Seen,
) -> Response<http_body_util::combinators::BoxBody<Bytes, std::convert::Infallible>> {
    let body = json!({"usage": {"prompt_tokens": 0, "completion_tokens": 5_000}}).to_string();
    Response::new(Full::from(body).boxed())
}

/// Two gateways show the same numbers, budgets for language models included.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_show_budgets_and_routes() {
    let upstream = Upstream::answering(model).await;
    let redis = Redis::start();
    let target = upstream.target();
    let url = target.trim().trim_start_matches("target: ");
    let lines = format!(
        "{target}{KEYS}store: {{redis: {{url: '{}', timeout: 300ms}}}}\n\
         client: {{limit: 9, windowSeconds: 3600, concurrency: 4}}\n\
         llm:\n  monthlyBudget: 0.006\n  levels: {{team: {{monthlyBudget: 0.02}}}}\n  \
         models: {{other: {{output: 1, tokensPerKilobyte: 1}}}}\n\
         routes:\n  \
         - {{name: shop, path: /shop/*, target: {url}, client: {{limit: 8, windowSeconds: 3600}}}}\n  \
         - {{name: other, host: other.example, target: {url}, global: {{limit: 7, windowSeconds: 3600}}}}\n",
        redis.url()
    );
    let gateways = [(); 2].map(|()| Gateway::start(&lines));
    let [one, two] = gateways.each_ref().map(|gateway| Client::new(gateway.address));
    let bearer = [("authorization", "Bearer ann")];
    let body = json!({"prompt": "Hi", "max_tokens": 4_900}).to_string();
    assert_eq!(one.send("POST", "/v1/completions", &bearer, &body).await.unwrap().status, 200);
    let shown = limits(&two, "ann").await;
    let model = "[POST /(completions|responses|embeddings|messages|batches)/?$]".to_owned();
    let shop = || "[/shop/*]".to_owned();
    assert_eq!(
        brief(&shown),
        [
            ("shop/client", shop(), 8),
            ("budget", model.clone(), 1_000),
            ("budget/team", model, 15_000),
            ("client", String::new(), 8),
            ("client/inflight", String::new(), 4),
        ]
    );
    assert!(shown[1]["reset_at"].as_str().unwrap().ends_with("-01T00:00:00Z"), "{shown:?}");
    // The same numbers everywhere, and no charge.
    assert_eq!(brief(&limits(&one, "ann").await), brief(&shown));
    let headers = [bearer[0], ("host", "Other.example:80")];
    let answer = one.get_with("/rate-limit", &headers).await;
    let other = answer.json()["limits"].as_array().unwrap().clone();
    let policies: Vec<_> = brief(&other).into_iter().map(|(policy, ..)| policy).collect();
    assert_eq!(
        policies,
        ["shop/client", "budget", "budget/team", "other/global", "client", "client/inflight"]
    );
    redis.kill();
    let failed = ask(&one, "GET", "/rate-limit", "ann").await;
    assert_eq!(failed.header("x-ratelimit-reason"), "temporary-reduced-capacity");
}
