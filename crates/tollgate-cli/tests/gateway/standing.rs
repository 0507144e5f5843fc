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

#[tokio::test(flavor = "multi_thread")]
async fn clients_read_their_limits_without_a_charge() {
    let upstream = Upstream::new().await;
    let lines = format!(
        "{}{KEYS}client: {{limit: 2, windowSeconds: 60, levels: {{team: {{limit: 3, windowSeconds: 60}}}}}}\n\
         apis:\n  \
         - {{identifier: login, path: /login, method: [POST, PUT], limit: 5, windowSeconds: 60}}\n  \
         - {{identifier: trial, path: /trial, limit: 5, windowSeconds: 60, shadow: true}}\n  \
         - {{identifier: hidden, path: /hidden, limit: 5, windowSeconds: 60, hideHeaders: true}}\n\
         deny: {{apiKeys: [{{sha256: 62d6c2330036f64bcf71b95791743d6c77c38e0d7c8cbedcbc525c77c57cf0ee}}]}}\nallow: {{apiKeys: [{{sha256: eabc01f12ec3e7cb6db0ada0f8f37323b0cfe6d08a2a73479e7d5b62d7e63529}}]}}\n",
        upstream.target()
    );
    let (gateway, client) = Gateway::with_client(&lines);
    let login = || "[POST, PUT /login]".to_owned();
    for _ in 0..5 {
        assert_eq!(
            brief(&limits(&client, "ann").await),
            [
                ("client", String::new(), 2),
                ("client/team", String::new(), 3),
                ("login", login(), 5)
            ]
        );
    }
    let denied = ask(&client, "GET", "/", "ann").await;
    assert_eq!(denied.status, 200);
    for (path, expected) in [("/login", 200), ("/", 429), ("/login", 429)] {
        assert_eq!(ask(&client, "POST", path, "ann").await.status, expected);
    }
    let used = limits(&client, "ann").await;
    assert_eq!(
        brief(&used),
        [("client", String::new(), 0), ("client/team", String::new(), 1), ("login", login(), 4)]
    );
    let wait = used[0]["retry_after"].as_u64().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    assert!(used[1].get("retry_after").is_none());
    let answer = ask(&client, "GET", "/rate-limit?now", "ann").await;
    assert_eq!(answer.header("x-ratelimit-remaining"), "0");
    assert_eq!(answer.header("cache-control"), "no-store");
    // Another key of the team, and a key without a team.
    assert_eq!(brief(&limits(&client, "bob").await)[1], ("client/team", String::new(), 1));
    assert_eq!(
        brief(&limits(&client, "solo").await),
        [("client", String::new(), 2), ("login", login(), 5)]
    );
    let paths: Vec<_> = upstream.seen().iter().map(|seen| seen.uri.path().to_owned()).collect();
    assert_eq!(paths, ["/", "/login"]);

    let head = ask(&client, "HEAD", "/rate-limit", "ann").await;
    assert_eq!((head.status.as_u16(), head.header("content-type")), (200, "application/json"));
    for method in ["POST", "DELETE", "OPTIONS"] {
        let answer = ask(&client, method, "/rate-limit", "ann").await;
        assert_eq!((answer.status.as_u16(), answer.header("allow")), (405, "GET, HEAD"));
    }
    // Other spellings of the path mean the same, other paths do not.
    for (path, expected) in [("/rate%2dlimit", 2), ("//rate-limit", 2), ("/rate-limit/", 0)] {
        let answer = ask(&client, "GET", path, "solo").await;
        let shown = answer.body.starts_with(b"{\"limits\"");
        assert_eq!((answer.status.as_u16(), shown), (200, expected > 0), "{path}");
    }
    // The same answers as for other requests.
    for path in ["/rate-limit", "/"] {
        let missing = client.get(path).await;
        assert_eq!((missing.status.as_u16(), missing.code()), (401, "missing-key".to_owned()));
        assert_eq!(missing.header("www-authenticate"), "Bearer");
        let two = [("authorization", "Bearer ann"), ("authorization", "Bearer bob")];
        assert_eq!(client.get_with(path, &two).await.status, 400);
        let denied = ask(&client, "GET", path, "denied").await;
        assert_eq!((denied.status.as_u16(), denied.code()), (403, "denied-subject".to_owned()));
    }
    assert_eq!(limits(&client, "allowed").await, [] as [Value; 0]);
    drop(gateway);
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
