//! A replay must decide like `tollgate serve` decided the original requests.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use http::Response;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Gateway, Upstream, exchange, whole};

/// Windows last for days, so the machine's speed does not matter.
const LIMITS: &str = "trustedProxies: [127.0.0.1]
costs: {GET: 1, POST: 3}
global: {strategy: sliding_window_log, limit: 110, windowSeconds: 864000}
client: {strategy: token_bucket, limit: 30, refillSeconds: 8640000, burst: 30}
exempt: [/healthz]
deny: {addresses: [198.51.100.0/24]}
allow: {addresses: [192.0.2.0/24]}
apis:
- {identifier: login, path: /login, strategy: sliding_window_log, limit: 3, windowSeconds: 864000, costs: {other: 1}, countOnly: {status: 401}, forgiveOn: {status: 2xx}}
- {identifier: item, path: {expression: regex, value: '^/item/\\d+$'}, method: POST, strategy: sliding_window_log, limit: 12, windowSeconds: 864000}
";

#[tokio::test(flavor = "multi_thread")]
async fn replay_decides_like_serve() {
    let upstream = Upstream::answering(|seen| {
        let status = if seen.uri.query() == Some("wrong") { 401 } else { 200 };
        Response::builder().status(status).body(Full::from("ok").boxed()).unwrap()
    })
    .await;
    let (_gateway, client) = Gateway::with_client(&format!("{}{LIMITS}", upstream.target()));
    let (mut log, mut denied) = (String::new(), BTreeSet::new());
    let mut violated = BTreeMap::<String, u64>::new();
    let addresses =
        ["203.0.113.1", "203.0.113.2", "203.0.113.3", "198.51.100.7", "192.0.2.9", "2001:db8::7"];
    let paths = ["/", "/login?wrong", "/login", "/item/7", "/%69tem//8", "/healthz"];
    // A reproducible pseudorandom sequence.
    let mut random = 7_u64;
    let mut one_of = |count: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(random >> 33).unwrap() % count
    };
    for line in 1..=500_u64 {
        let (address, path) = (addresses[one_of(6)], paths[one_of(6)]);
        let method = ["GET", "POST", "GET"][one_of(3)];
        let sent = now();
        let forwarded = [("x-forwarded-for", address)];
        let answer = client.send(method, path, &forwarded, "").await.unwrap();
        let status = answer.status.as_u16();
        if matches!(status, 403 | 429) {
            denied.insert(line);
        }
        if status == 429 {
            for policy in answer.json()["violated-policies"].as_array().unwrap() {
                *violated.entry(policy.as_str().unwrap().to_owned()).or_default() += 1;
            }
        }
        let line = json!({ "t": sent, "ip": address, "m": method, "u": path, "s": status });
        writeln!(log, "{line}").unwrap();
    }
    assert!(violated.len() == 4, "every limit must deny some requests: {violated:?}");

    let report = replayed(&format!("{}{LIMITS}", upstream.target()), &log);
    assert_eq!(denied_lines(&report), denied);
    let policies = report["policies"].as_object().unwrap().iter();
    let replayed: BTreeMap<_, _> =
        policies.map(|(name, it)| (name.clone(), it["denied"].as_u64().unwrap())).collect();
    assert_eq!(replayed, violated);
}

/// Clients and other proxies send these characters without escapes.
#[tokio::test(flavor = "multi_thread")]
async fn replay_rejects_the_same_urls_as_serve() {
    let upstream = Upstream::new().await;
    let lines = upstream.with("client: {limit: 100, windowSeconds: 864000}\n");
    let gateway = Gateway::start(&lines);
    let (mut log, mut rejected) = (String::new(), Vec::new());
    for path in [
        "/a?q=\"x\"",
        "/a<b>",
        "/a`b",
        "/a?q=`",
        "/a|b",
        "/{a}",
        "/a?{\"a\":1}",
        "/caf\u{e9}",
        "/a?q=<",
        "/a\\b",
        "/a b",
        "/a?q=a b",
        "/a^b",
        "/[a]?[b]",
    ] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let answer = exchange(gateway.address, &request);
        let status: u16 = answer["HTTP/1.1 ".len()..][..3].parse().unwrap();
        if status != 200 {
            assert!(status == 400 && answer.contains("\"code\":\"bad-"), "{path}: {answer}");
            rejected.push(path);
        }
        let line = json!({ "t": now(), "ip": "203.0.113.1", "m": "GET", "u": path, "s": status });
        writeln!(log, "{line}").unwrap();
    }
    assert!((4..12).contains(&rejected.len()), "{rejected:?}");
    let report = replayed(&lines, &log);
    assert_eq!(report["routes"]["(bad path)"]["requests"], rejected.len(), "{rejected:?}");
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(now.as_micros()).unwrap()
}

/// Replays a log and compares with a configuration that has no limits.
fn replayed(limits: &str, log: &str) -> Value {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("limits.yaml", &whole(limits));
    write("open.yaml", &whole(limits.lines().next().unwrap()));
    write("sent.log", log);
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["replay", "limits.yaml", "sent.log", "--format", "json", "--top", "1000"])
        .args(["--log", "json:time=t,address=ip,method=m,target=u,status=s"])
        .args(["--compare", "open.yaml"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The numbers of the lines that the replay denied.
fn denied_lines(report: &Value) -> BTreeSet<u64> {
    let line = |request: &Value| {
        let words = request.as_str().unwrap();
        assert!(words.ends_with("only the first file denies it"), "{words}");
        words.strip_prefix("line ").unwrap().split(" of ").next().unwrap().parse().unwrap()
    };
    report["differences"]["requests"].as_array().unwrap().iter().map(line).collect()
}
