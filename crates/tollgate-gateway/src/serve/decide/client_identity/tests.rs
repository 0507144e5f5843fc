use http::Request;
use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::json;

use super::*;
use tollgate_config::{Source, read};

const SECRET: &str = "an-hs256-secret-of-more-than-32-bytes";

fn identity() -> Identity {
    let text = format!(
        "rateLimiter:
  target: http://localhost
  client: {{limit: 1, windowSeconds: 1}}
  tiers: {{free: {{limit: 2, windowSeconds: 1}}, pro: {{limit: 3, windowSeconds: 1}}}}
  identity: [user, apiKey]
  jwt: {{secret: {SECRET}, tierClaim: plan}}
  apiKeys:
    - {{sha256: 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae, tier: pro}}
    - {{sha256: fcde2b2edba56bf408601fb721fe9b5c338d10ee429ea04fae5511b68fbf8fb9}}
"
    );
    let outcome = read(&Source::new("test", text), &|_| None);
    Identity::new(&outcome.plan.unwrap(), &KeySets::default(), None).unwrap()
}

/// Whether a client is found, and its tier.
fn tier_of(name: &str, value: &str) -> (bool, Option<usize>) {
    let request = Request::builder().header(name, value).body(()).unwrap();
    let client = identity().find(&RequestHead::of(&request));
    (client.found.unwrap().is_some(), client.tier)
}

#[test]
fn claim_names_the_tier() {
    let token = |plan: serde_json::Value| {
        let claims = json!({ "sub": "ann", "exp": 4_000_000_000_u64, "plan": plan });
        let key = EncodingKey::from_secret(SECRET.as_bytes());
        format!("Bearer {}", encode(&Header::default(), &claims, &key).unwrap())
    };
    for (plan, tier) in [
        (json!("free"), Some(0)),
        (json!("pro"), Some(1)),
        (json!("platinum"), None),
        (json!(null), None),
    ] {
        assert_eq!(tier_of("authorization", &token(plan)), (true, tier));
    }
    let forged = token(json!("pro")).replacen('.', ".e", 1);
    assert_eq!(tier_of("authorization", &forged), (false, None));
}

#[test]
fn api_key_has_its_tier() {
    assert_eq!(tier_of("x-api-key", "foo"), (true, Some(1)));
    assert_eq!(tier_of("x-api-key", "bar"), (true, None));
    assert_eq!(tier_of("x-api-key", "baz"), (false, None));
}
