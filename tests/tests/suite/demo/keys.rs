//! Request keys, which a client cannot forge.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::json;

use super::support::Replica;
use tollgate_test_servers::http::{Answer, Client};

const SECRET: &str = "a secret of thirty-two bytes or more";

/// An `Authorization` header value for `user`, valid for an hour.
fn bearer(user: &str, secret: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let claims = json!({ "sub": user, "exp": (now + Duration::from_secs(3600)).as_secs() });
    let key = EncodingKey::from_secret(secret.as_bytes());
    format!("Bearer {}", encode(&Header::default(), &claims, &key).unwrap())
}

/// A replica that allows two requests for each key.
fn start(flags: &[&str]) -> (Replica, Client) {
    let replica = Replica::start(&[&["--limit", "2", "--costs", "one"], flags].concat());
    let client = replica.client();
    (replica, client)
}

async fn statuses<const N: usize>(client: &Client, headers: &[(&str, &str)]) -> [u16; N] {
    let mut statuses = [0; N];
    for status in &mut statuses {
        *status = client.get_with("/items", headers).await.status.as_u16();
    }
    statuses
}

fn assert_missing_key(answer: &Answer) {
    assert_eq!(answer.status, 403);
    assert_eq!(answer.json()["code"], "missing-key");
}

#[tokio::test]
async fn trusted_proxy_sets_the_client() {
    let (_replica, client) = start(&["--key", "ip", "--trusted-proxies", "10.0.0.0/8,127.0.0.0/8"]);
    let one = [("x-forwarded-for", "203.0.113.1")];
    assert_eq!(statuses(&client, &one).await, [200, 200, 429]);
    let another = [("x-forwarded-for", "203.0.113.2")];
    assert_eq!(statuses(&client, &another).await, [200, 200, 429]);
    // The client wrote the left entry.
    let forged = [("x-forwarded-for", "198.51.100.9, 203.0.113.1")];
    assert_eq!(statuses(&client, &forged).await, [429]);
    // A hop through a second trusted proxy does not change the client.
    let hops = [("x-forwarded-for", "203.0.113.2, 10.1.2.3")];
    assert_eq!(statuses(&client, &hops).await, [429]);
}

#[tokio::test]
async fn users_need_a_signed_token() {
    let (_replica, client) = start(&["--key", "user", "--jwt-secret", SECRET]);
    let (alice, bob) = (bearer("alice", SECRET), bearer("bob", SECRET));
    assert_eq!(statuses(&client, &[("authorization", &alice)]).await, [200, 200, 429]);
    assert_eq!(statuses(&client, &[("authorization", &bob)]).await, [200, 200, 429]);
    assert_missing_key(&client.get("/items").await);
    let forged = bearer("carol", "another secret of thirty-two bytes");
    assert_missing_key(&client.get_with("/items", &[("authorization", &forged)]).await);
}

#[tokio::test]
async fn only_accepted_api_keys_count() {
    let (_replica, client) = start(&["--key", "api-key", "--api-keys", "k-1, k-2"]);
    assert_eq!(statuses(&client, &[("x-api-key", "k-1")]).await, [200, 200, 429]);
    assert_eq!(statuses(&client, &[("x-api-key", "k-2")]).await, [200, 200, 429]);
    assert_missing_key(&client.get_with("/items", &[("x-api-key", "k-3")]).await);
    assert_missing_key(&client.get("/items").await);

    let (_replica, client) = start(&["--key", "api-key"]);
    assert_eq!(statuses(&client, &[("x-api-key", "anything")]).await, [200, 200, 429]);
    assert_missing_key(&client.get("/items").await);
}

#[tokio::test]
async fn chain_uses_user_then_key_then_address() {
    let (_replica, client) =
        start(&["--key", "chain", "--jwt-secret", SECRET, "--api-keys", "k-1"]);
    let alice = bearer("alice", SECRET);
    let both = [("authorization", &*alice), ("x-api-key", "k-1")];
    assert_eq!(statuses(&client, &both).await, [200, 200, 429]);
    assert_eq!(statuses(&client, &[("x-api-key", "k-1")]).await, [200, 200, 429]);
    // An unknown key is ignored, so the request counts by address.
    assert_eq!(statuses(&client, &[("x-api-key", "k-9")]).await, [200, 200, 429]);
    assert_eq!(statuses(&client, &[]).await, [429]);
}
