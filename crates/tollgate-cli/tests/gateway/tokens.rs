//! JWT users, and the sources of verification keys.

use std::fs;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::Response;
use http_body_util::{BodyExt, Full};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rcgen::KeyPair;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch;

use crate::encryption::certificate;
use crate::support::{Client, Gateway, Upstream, until, whole};

/// An issuer's key pair.
struct Key {
    kid: &'static str,
    pair: KeyPair,
}

impl Key {
    fn new(kid: &'static str) -> Self {
        Self { kid, pair: KeyPair::generate().unwrap() }
    }

    /// The public key as a JWK.
    fn public(&self) -> Value {
        let point = self.pair.public_key_raw();
        let coordinate = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
        let (x, y) = (coordinate(&point[1..33]), coordinate(&point[33..]));
        json!({ "kty": "EC", "crv": "P-256", "kid": self.kid, "x": x, "y": y })
    }

    fn token(&self) -> String {
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some(self.kid.to_owned());
        let claims = json!({ "sub": "ann", "exp": 4_000_000_000_u64 });
        let signer = EncodingKey::from_ec_pem(self.pair.serialize_pem().as_bytes()).unwrap();
        encode(&header, &claims, &signer).unwrap()
    }
}

fn set(keys: &[&Key]) -> String {
    json!({ "keys": keys.iter().map(|key| key.public()).collect::<Vec<_>>() }).to_string()
}

/// The issuer's response to a request for its keys.
#[derive(Clone, Debug)]
enum Reply {
    Keys(String),
    Status(u16),
    Redirect(&'static str),
    /// No response until the value changes.
    Hang,
}

struct Issuer {
    upstream: Upstream,
    reply: watch::Sender<Reply>,
}

impl Issuer {
    async fn new(reply: Reply) -> Self {
        let (reply, heard) = watch::channel(reply);
        let answer = move || {
            let mut heard = heard.clone();
            async move {
                let reply = heard.wait_for(|reply| !matches!(reply, Reply::Hang)).await;
                let reply = reply.map_or(Reply::Status(500), |reply| reply.clone());
                let answer = Response::builder();
                let (answer, body) = match reply {
                    Reply::Keys(keys) => (answer, keys),
                    Reply::Status(status) => (answer.status(status), String::new()),
                    Reply::Redirect(url) => {
                        (answer.status(302).header("location", url), String::new())
                    }
                    Reply::Hang => unreachable!("waited for another reply"),
                };
                answer.body(Full::from(body).boxed()).unwrap()
            }
        };
        Self { upstream: Upstream::answering_later(move |_| answer()).await, reply }
    }

    fn set_reply(&self, reply: Reply) {
        self.reply.send_replace(reply);
    }

    fn fetches(&self) -> usize {
        self.upstream.seen().len()
    }

    fn lines(&self, jwt: &str) -> String {
        format!("jwt: {{jwksUrl: 'http://{}/keys', {jwt}}}\n", self.upstream.address)
    }
}

/// A configuration that rejects unknown clients, so the status shows whether a token is accepted.
fn lines(upstream: &Upstream, jwt: &str) -> String {
    let limit = "client: {limit: 100000, windowSeconds: 3600}\n";
    format!("{}{limit}identity: user\n{jwt}", upstream.target())
}

async fn ask(client: &Client, token: &str) -> u16 {
    let authorization = format!("Bearer {token}");
    let answer = client.send("GET", "/", &[("authorization", &authorization)], "").await;
    answer.unwrap().status.as_u16()
}

/// Sends requests with this token until they return the expected status.
async fn until_status(client: &Client, token: &str, status: u16) {
    let what = format!("a response has status {status}");
    until(&what, async || ask(client, token).await == status).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_kid_fetches_rotated_keys() {
    let (old, new) = (Key::new("old"), Key::new("new"));
    let issuer = Issuer::new(Reply::Keys(set(&[&old]))).await;
    let upstream = Upstream::new().await;
    let (gateway, client) =
        Gateway::with_client(&lines(&upstream, &issuer.lines("minRefetch: 1s")));
    assert_eq!(ask(&client, &old.token()).await, 200);
    assert_eq!(gateway.admin("/readyz").await.json(), json!({ "status": "ready" }));
    issuer.set_reply(Reply::Keys(set(&[&new])));
    assert_eq!(ask(&client, &old.token()).await, 200);
    assert_eq!(ask(&client, &new.token()).await, 403);
    until_status(&client, &new.token(), 200).await;
    assert_eq!(ask(&client, &old.token()).await, 403);
    let config = gateway.admin("/config").await.json();
    assert_eq!(config["keySets"][0]["kids"], json!(["new"]));
    let asked = &issuer.upstream.seen()[0];
    assert_eq!((asked.uri.path(), asked.header("accept")), ("/keys", "application/json"));
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_tokens_cause_one_fetch_per_interval() {
    let (key, unknown) = (Key::new("known"), Key::new("made up").token());
    let issuer = Issuer::new(Reply::Keys(set(&[&key]))).await;
    let upstream = Upstream::new().await;
    let patient = Gateway::start(&lines(&upstream, &issuer.lines("minRefetch: 1h, maxAge: 2h")));
    let client = Client::new(patient.address);
    for _ in 0..500 {
        assert_eq!(ask(&client, &unknown).await, 403);
    }
    assert_eq!(issuer.fetches(), 1);

    let started = Instant::now();
    let (_gateway, client) =
        Gateway::with_client(&lines(&upstream, &issuer.lines("minRefetch: 1s")));
    until("the key set is fetched again", async || {
        assert_eq!(ask(&client, &unknown).await, 403);
        issuer.fetches() >= 4
    })
    .await;
    // After the initial fetch there must be at least a second between fetches.
    assert!(started.elapsed() >= Duration::from_secs(2), "{:?}", started.elapsed());
    assert_eq!(ask(&client, &key.token()).await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_key_set_is_refreshed() {
    let key = Key::new("key");
    let issuer = Issuer::new(Reply::Keys(set(&[&key]))).await;
    let upstream = Upstream::new().await;
    let started = Instant::now();
    let _gateway = Gateway::start(&lines(&upstream, &issuer.lines("minRefetch: 1s, maxAge: 1s")));
    until("the key set is fetched again", async || issuer.fetches() >= 3).await;
    assert!(started.elapsed() >= Duration::from_secs(2), "{:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_key_set_is_reported_but_not_used() {
    let (key, unknown) = (Key::new("good"), Key::new("unknown").token());
    let good = set(&[&key]);
    let issuer = Issuer::new(Reply::Keys(good.clone())).await;
    let upstream = Upstream::new().await;
    let times = "minRefetch: 1s, fetchTimeout: 300ms";
    let (gateway, client) = Gateway::with_client(&lines(&upstream, &issuer.lines(times)));
    assert_eq!(ask(&client, &key.token()).await, 200);
    let oversize = format!("{good}{}", " ".repeat(1 << 20));
    let secret = r#"{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}"#;
    // Consecutive messages differ, so each must belong to its own response.
    for (reply, message) in [
        (Reply::Keys("<html>down for maintenance</html>".to_owned()), "not a JSON Web Key Set"),
        (Reply::Keys(r#"{"keys": []}"#.to_owned()), "no usable key"),
        (Reply::Keys(oversize), "larger than 1024 KiB"),
        (Reply::Status(500), "500 Internal Server Error"),
        (Reply::Keys(secret.to_owned()), "no usable key"),
        (Reply::Redirect("/moved"), "a redirect to \"/moved\", which is not followed"),
        (Reply::Hang, "no complete answer within 300ms"),
    ] {
        issuer.set_reply(reply.clone());
        until(&format!("{reply:?}: {message:?} is reported"), async || {
            assert_eq!(ask(&client, &unknown).await, 403);
            let config = gateway.admin("/config").await.json();
            let error = &config["keySets"][0]["lastError"]["message"];
            error.as_str().is_some_and(|error| error.contains(message))
        })
        .await;
        assert_eq!(ask(&client, &key.token()).await, 200, "{reply:?}");
    }
    assert!(issuer.upstream.seen().iter().all(|seen| seen.uri.path() == "/keys"));
    assert_eq!(gateway.admin("/readyz").await.json(), json!({ "status": "ready" }));
    let metrics = gateway.metrics().await;
    let failed = metrics
        .lines()
        .find_map(|line| line.strip_prefix(r#"tollgate_jwks_fetches_total{outcome="failed"} "#));
    assert!(failed.is_some_and(|failed| failed.parse::<u32>().unwrap() >= 7), "{metrics}");
    assert!(metrics.contains("tollgate_jwks_fetched_timestamp_seconds 1"), "{metrics}");
    gateway.until_logged("its earlier keys stay valid");
}

#[tokio::test(flavor = "multi_thread")]
async fn gateway_starts_without_keys() {
    let key = Key::new("late");
    let issuer = Issuer::new(Reply::Status(503)).await;
    let upstream = Upstream::new().await;
    let (gateway, client) =
        Gateway::with_client(&lines(&upstream, &issuer.lines("minRefetch: 1s")));
    assert_eq!(ask(&client, &key.token()).await, 403);
    let url = format!("http://{}/keys", issuer.upstream.address);
    let admin = Client::new(gateway.admin);
    // Kubernetes probes use the pod's address, so `/readyz` must accept any host. It reveals how
    // many key sets are missing, but not their URLs.
    for host in ["localhost", "10.1.2.3:8081", "rebound.example"] {
        let ready = admin.send("GET", "/readyz", &[("host", host)], "").await.unwrap();
        let told = (ready.status.as_u16(), ready.json());
        assert_eq!(told, (200, json!({ "status": "ready", "keySetsMissing": 1 })), "{host}");
    }
    assert_eq!(gateway.admin("/config").await.json()["keySets"][0]["url"], url);
    let named = admin.send("GET", "/config", &[("host", "rebound.example")], "").await.unwrap();
    assert_eq!(named.status, 421);
    gateway.until_logged("tokens identify no client");
    issuer.set_reply(Reply::Keys(set(&[&key])));
    until_status(&client, &key.token(), 200).await;
    assert_eq!(gateway.admin("/readyz").await.json(), json!({ "status": "ready" }));
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_wait_for_the_first_keys() {
    let key = Key::new("slow");
    let issuer = Issuer::new(Reply::Hang).await;
    let upstream = Upstream::new().await;
    let (gateway, client) =
        Gateway::with_client(&lines(&upstream, &issuer.lines("fetchTimeout: 20s")));
    let token = key.token();
    let early = tokio::spawn(async move { ask(&client, &token).await });
    let ready = gateway.admin("/readyz").await;
    assert_eq!((ready.status.as_u16(), &ready.json()["status"]), (503, &"fetching keys".into()));
    issuer.set_reply(Reply::Keys(set(&[&key])));
    assert_eq!(early.await.unwrap(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn reload_reuses_fetched_keys() {
    let key = Key::new("kept");
    let issuer = Issuer::new(Reply::Keys(set(&[&key]))).await;
    let other = Issuer::new(Reply::Keys(set(&[&key]))).await;
    let upstream = Upstream::new().await;
    let (gateway, client) =
        Gateway::with_client(&lines(&upstream, &issuer.lines("minRefetch: 1h, maxAge: 2h")));
    for (version, jwt) in [
        (2, "minRefetch: 1h, maxAge: 2h, audience: [a, b]"),
        // The same set with other intervals.
        (3, "minRefetch: 30m, maxAge: 3h"),
    ] {
        gateway.rewrite(&lines(&upstream, &issuer.lines(jwt)));
        gateway.until_config(|config| config["version"] == version).await;
    }
    assert_eq!(ask(&client, &key.token()).await, 200);
    assert_eq!(issuer.fetches(), 1);
    // A new set replaces the old set only when its keys have been fetched.
    gateway.rewrite(&lines(&upstream, &other.lines("minRefetch: 30m, maxAge: 3h")));
    gateway.until_config(|config| config["version"] == 4).await;
    assert_eq!(ask(&client, &key.token()).await, 200);
    assert_eq!((issuer.fetches(), other.fetches()), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn key_fetch_requires_a_trusted_certificate() {
    let key = Key::new("key");
    let issuer = Issuer::new(Reply::Keys(set(&[&key]))).await;
    let folder = TempDir::new().unwrap();
    certificate(&folder, "tls");
    let tls = "listen: [{address: '127.0.0.1:0', tls: {certificate: tls.pem, key: tls.key}}]\n";
    let front = Gateway::start_in(folder, &format!("{tls}{}", issuer.upstream.target()));
    let url = format!("https://localhost:{}/keys", front.address.port());
    let upstream = Upstream::new().await;
    let jwt = format!("jwt: {{jwksUrl: '{url}', minRefetch: 1s}}\n");
    let trusted = front.file("tls.pem");
    for (variables, status) in
        [(vec![("SSL_CERT_FILE", trusted.to_str().unwrap())], 200), (vec![], 403)]
    {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("limits.yaml"), whole(&lines(&upstream, &jwt))).unwrap();
        let gateway = Gateway::start_under(folder, "limits.yaml", &variables);
        assert_eq!(ask(&Client::new(gateway.address), &key.token()).await, status);
        if status == 403 {
            gateway.until_logged("invalid peer certificate");
            gateway.until_logged("[TG0218]");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_key_file_is_reloaded() {
    let (old, new) = (Key::new("old"), Key::new("new"));
    let upstream = Upstream::new().await;
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("keys.json"), set(&[&old])).unwrap();
    let gateway = Gateway::start_in(folder, &lines(&upstream, "jwt: {jwksFile: keys.json}\n"));
    let client = Client::new(gateway.address);
    assert_eq!(ask(&client, &old.token()).await, 200);
    fs::write(gateway.file("keys.json"), "no key set").unwrap();
    gateway.until_config(|config| config["failedReloads"] == 1).await;
    assert_eq!(ask(&client, &old.token()).await, 200);
    fs::write(gateway.file("new"), set(&[&new])).unwrap();
    fs::rename(gateway.file("new"), gateway.file("keys.json")).unwrap();
    gateway.until_config(|config| config["version"] == 2).await;
    assert_eq!(ask(&client, &new.token()).await, 200);
    assert_eq!(ask(&client, &old.token()).await, 403);
}

/// Verifying a signature is more expensive than a denial, and must happen before the user is known.
#[tokio::test(flavor = "multi_thread")]
async fn rejected_tokens_limit_their_address() {
    let key = Key::new("key");
    let upstream = Upstream::new().await;
    // The blocklist reads the token's user, too.
    for (most, list) in [("1", ""), ("1", "deny: {users: [eve]}\n"), ("unlimited", "")] {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("keys.json"), set(&[&key])).unwrap();
        let jwt = format!("jwt: {{jwksFile: keys.json, maxRefusedPerMinute: {most}}}\n");
        let rest = format!("{jwt}{list}trustedProxies: [loopback]\n");
        let gateway = Gateway::start_in(folder, &lines(&upstream, &rest));
        let client = Client::new(gateway.address);
        let ask = async |address: &str, token: &str| {
            let token = format!("Bearer {token}");
            let lines = [("x-forwarded-for", address), ("authorization", &*token)];
            client.send("GET", "/", &lines, "").await.unwrap()
        };
        let token = key.token();
        let forged = |byte: usize| {
            let (signed, signature) = token.rsplit_once('.').unwrap();
            let mut signature = BASE64_URL_SAFE_NO_PAD.decode(signature).unwrap();
            signature[byte] ^= 1;
            format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
        };
        assert_eq!(ask("192.0.2.1", &forged(40)).await.status, 403);
        let denied = ask("192.0.2.1", &forged(41)).await;
        if most == "unlimited" {
            assert_eq!(denied.status, 403);
            continue;
        }
        assert_eq!((denied.status.as_u16(), &*denied.code()), (429, "quota-exceeded"), "{list}");
        assert_eq!(denied.json()["violated-policies"], json!(["refused-tokens"]));
        assert_ne!(denied.header("retry-after"), "");
        assert_eq!(ask("192.0.2.1", &token).await.status, 429);
        assert_eq!(ask("192.0.2.2", &token).await.status, 200);
        // Requests without a token are not affected.
        let lines = [("x-forwarded-for", "192.0.2.1")];
        assert_eq!(client.send("GET", "/", &lines, "").await.unwrap().status, 403);
    }
}
