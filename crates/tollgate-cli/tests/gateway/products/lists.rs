//! Blocklists and allowlists.

use std::fs;

use jsonwebtoken::{EncodingKey, Header, encode};
use tempfile::TempDir;

use crate::support::{Client, Gateway, Upstream, sha256, whole};

#[tokio::test(flavor = "multi_thread")]
async fn lists_block_or_exempt_clients() {
    let upstream = Upstream::new().await;
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("deny.txt");
    fs::write(&file, "203.0.113.0/24 # a botnet\nsha256:0000\n").unwrap();
    let lines = format!(
        "{}trustedProxies: [loopback]\n\
         identity: {{key: ip, header: X-Forwarded-For}}\n\
         client: {{limit: 1, windowSeconds: 3600}}\n\
         exempt: [/health]\n\
         deny: {{file: deny.txt, addresses: ['2001:db8:bad::/48']}}\n\
         allow:\n  apiKeys: [{{sha256: {}}}]\n  addresses: [198.51.100.0/24]\n",
        upstream.target(),
        sha256("partner")
    );
    // The file's entries are validated like the rest of the configuration.
    fs::write(folder.path().join("limits.yaml"), whole(&lines)).unwrap();
    let refused = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["serve", "--config", "limits.yaml"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(
        told.contains("line 2 is not a valid client") && told.contains("as 64 hex digits"),
        "{told}"
    );

    fs::write(&file, "203.0.113.0/24 # a botnet\n").unwrap();
    let gateway = Gateway::start_in(folder, &lines);
    let client = Client::new(gateway.address);
    let ask = async |from: &str, path: &str, key: &str| {
        let headers = [("x-forwarded-for", from), ("x-api-key", key)];
        let answer = client.send("GET", path, &headers, "").await.unwrap();
        (answer.status.as_u16(), if answer.status == 200 { String::new() } else { answer.code() })
    };
    let fine = || (200, String::new());
    let denied = || (403, "denied-subject".to_owned());
    for (from, path, key, expected) in [
        ("192.0.2.1", "/", "", fine()),
        ("192.0.2.1", "/", "", (429, "quota-exceeded".to_owned())),
        ("192.0.2.1", "/", "partner", fine()),
        ("198.51.100.7", "/", "", fine()),
        ("198.51.100.7", "/", "", fine()),
        ("203.0.113.9", "/", "partner", denied()),
        ("203.0.113.9", "/health", "", denied()),
        ("2001:db8:bad:7::1", "/", "", denied()),
        ("2001:db8:bed::1", "/", "", fine()),
    ] {
        assert_eq!(ask(from, path, key).await, expected, "{from} {path} {key}");
    }
    let reached = upstream.seen().len();
    assert_eq!(reached, 5);
    let metrics = gateway.metrics().await;
    assert!(metrics.contains("tollgate_listed_requests_total{list=\"deny\"} 3"), "{metrics}");

    // The file is watched like the configuration.
    fs::write(gateway.file("new.txt"), "192.0.2.0/24\n").unwrap();
    fs::rename(gateway.file("new.txt"), gateway.file("deny.txt")).unwrap();
    gateway.until_config(|config| config["version"] == 2).await;
    assert_eq!(ask("203.0.113.9", "/", "").await, fine());
    assert_eq!(ask("192.0.2.9", "/", "").await, denied());
}

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
