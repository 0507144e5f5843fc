//! Quotas and budgets of organisations, teams and keys.

use bytes::Bytes;
use http::Response;
use http_body_util::{BodyExt, Full};
use serde_json::json;
use tollgate_test_servers::{Redis, until_async};

use crate::support::{Answer, Client, Gateway, PATIENCE, Seen, Upstream};

/// An organisation with two teams of two keys each, and a key that belongs to no team.
pub(crate) const KEYS: &str = "\
identity: apiKey
apiKeys:
  scheme: Bearer
  keys:
    - {sha256: 49915e0d7d4b402e3017d010bc1c0e83cac6c797d6c16e66340fe3268693a6a1, levels: {team: red, organisation: acme}}
    - {sha256: 81b637d8fcd2c6da6359e6963113a1170de795e4b725b84d1e0b4cfd9ec58ce9, levels: {team: red, organisation: acme}}
    - {sha256: 85262adf74518bbb70c7cb94cd6159d91669e5a81edf1efebd543eadbda9fa2b, levels: {team: blue, organisation: acme}}
    - {sha256: 78675cc176081372c43abab3ea9fb70c74381eb02dc6e93fb6d44d161da6eeb3, levels: {team: blue, organisation: acme}}
    - {sha256: 5364f2f2fc4f54e9d47ad29cfb08ef430c8153394bf2a0dff5cbe77a0ffef861}
levels: {team: apiKey, organisation: apiKey}
";

pub(crate) type Answering =
    Response<http_body_util::combinators::BoxBody<Bytes, std::convert::Infallible>>;

/// A model that uses as many tokens as `x-used` says.
pub(crate) fn model(seen: &Seen) -> Answering {
    let used: u64 = seen.header("x-used").parse().unwrap_or_default();
    let body = json!({"usage": {"prompt_tokens": 0, "completion_tokens": used}}).to_string();
    Response::new(Full::from(body).boxed())
}

pub(crate) const PRICES: &str = "models: {other: {output: 1, tokensPerKilobyte: 1}}";

/// Reserves `max` tokens and the input, which is free, and uses `used` tokens.
pub(crate) async fn ask(client: &Client, key: &str, max: u64, used: u64) -> Answer {
    let (bearer, used) = (format!("Bearer {key}"), used.to_string());
    let headers = [("authorization", &*bearer), ("x-used", &used)];
    let body = json!({"prompt": "Hi", "max_tokens": max}).to_string();
    client.send("POST", "/v1/completions", &headers, &body).await.unwrap()
}

/// Two teams of two keys over three replicas on Redis: every level counts once, whichever replica
/// decides, and a denied request costs no level anything.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_share_every_level() {
    let upstream = Upstream::answering(model).await;
    let redis = Redis::start();
    let lines = format!(
        "{}{KEYS}store: {{redis: {{url: '{}', timeout: 5s}}}}\n\
         llm:\n  tokensPerMinute: 6000\n  levels:\n    \
         team: {{monthlyBudget: 0.01}}\n    organisation: {{monthlyBudget: 0.015}}\n  {PRICES}\n",
        upstream.target(),
        redis.url()
    );
    let replicas = [(); 3].map(|()| Gateway::start(&lines));
    let clients = replicas.each_ref().map(|gateway| Client::new(gateway.address));
    // 5000 of the key's 6000 tokens, and of the team's budget of 10 000 tokens.
    for (client, key) in clients.iter().zip(["ann", "bob"]) {
        assert_eq!(ask(client, key, 4_999, 5_000).await.status, 200);
    }
    let before = upstream.seen().len();
    for client in &clients {
        // The last unit is settled after the response.
        let denied = until_async("the settlement", PATIENCE, async || {
            let denied = ask(client, "ann", 100, 100).await;
            (denied.header("x-ratelimit-remaining-budget") != "1").then_some(denied)
        });
        let denied = denied.await;
        assert_eq!(denied.status, 429);
        let error = &denied.json()["error"];
        assert_eq!(error["code"], "insufficient_quota");
        let message = error["message"].as_str().unwrap();
        assert!(message.ends_with("The limit is `budget/team`."), "{message}");
        assert_eq!(denied.header("x-ratelimit-remaining-budget"), "0");
    }
    assert_eq!(upstream.seen().len(), before, "a denied request reached the model");
    // The other team has its own budget, and the organisation has 5000 left for both.
    assert_eq!(ask(&clients[2], "eve", 2_999, 3_000).await.status, 200);
    let last = ask(&clients[0], "joe", 2_500, 1_000).await;
    assert_eq!(last.status, 429);
    let message = last.json()["error"]["message"].to_string();
    assert!(message.contains("The limit is `budget/organisation`."), "{message}");
    // The estimate is settled on every level, also for the replicas that did not decide.
    assert_eq!(ask(&clients[1], "joe", 1_900, 1_000).await.status, 200);
    let left = until_async("1000 units are left", PATIENCE, async || {
        let left = ask(&clients[2], "joe", 0, 0).await;
        (left.header("x-ratelimit-remaining-budget") == "1000").then_some(left)
    });
    let left = left.await;
    let ratelimit = left.header("ratelimit").to_owned();
    for policy in ["\"tokens\";r=", "budget/team\";r=6000", "budget/organisation\";r=1000"] {
        assert!(ratelimit.contains(policy), "{policy}: {ratelimit}");
    }
    // A key without a team and organisation has only its own budget.
    assert_eq!(ask(&clients[0], "solo", 5_000, 5_000).await.status, 200);
}
