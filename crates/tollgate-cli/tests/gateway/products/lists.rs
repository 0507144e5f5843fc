//! Blocklists and allowlists.

use jsonwebtoken::{EncodingKey, Header, encode};

use crate::support::{Gateway, Upstream, sha256};

#[tokio::test(flavor = "multi_thread")]
async fn blocked_user_is_rejected_despite_an_api_key() {
    const SECRET: &str = "an-hs256-secret-of-more-than-32-bytes";
    let token = |user: &str, plan: &str| {
        let claims = serde_json::json!({ "sub": user, "exp": 4_000_000_000_u64, "plan": plan });
        let key = EncodingKey::from_secret(SECRET.as_bytes());
        format!("Bearer {}", encode(&Header::default(), &claims, &key).unwrap())
    };
    let upstream = Upstream::new().await;
    let lines = format!(
        "{}strategy: sliding_window_log\n\
         identity: [apiKey, user, ip]\n\
         apiKeys: [{{sha256: {}}}]\n\
         jwt: {{secret: {SECRET}, tierClaim: plan}}\n\
         client: {{limit: 1, windowSeconds: 3600}}\n\
         tiers: {{pro: {{limit: 3, windowSeconds: 3600}}}}\n\
         deny: {{users: [mallory]}}\n",
        upstream.target(),
        sha256("customer")
    );
    let (_gateway, client) = Gateway::with_client(&lines);
    let ask = async |key: &str, token: String| {
        let headers = [("x-api-key", key), ("authorization", &*token)];
        client.send("GET", "/", &headers, "").await.unwrap().status.as_u16()
    };
    assert_eq!(ask("", token("mallory", "pro")).await, 403);
    assert_eq!(ask("customer", token("mallory", "pro")).await, 403);
    // A token with a wrong signature identifies no client.
    assert_eq!(ask("", token("mallory", "pro").replacen('.', ".e", 1)).await, 200);
    assert_eq!(ask("customer", token("ann", "pro")).await, 200);
    // The tier claim in the token sets ann's quota.
    for status in [200, 200, 200, 429] {
        assert_eq!(ask("", token("ann", "pro")).await, status);
    }
    assert_eq!(upstream.seen().len(), 5);
}
