//! A replay of what was sent to `tollgate serve` decides as `serve` did.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use http::Response;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Client, Gateway, Upstream, whole};

/// Windows of days, so that it does not matter how fast the machine is.
const LIMITS: &str = "trustedProxies: [127.0.0.1]
costs: {GET: 1, POST: 3}
global: {strategy: sliding_window_log, limit: 110, windowSeconds: 864000}
client: {strategy: token_bucket, limit: 30, refillSeconds: 8640000, burst: 30}
exempt: [/healthz]
deny: {addresses: [198.51.100.0/24]}
allow: {addresses: [192.0.2.0/24]}
apis:
- {identifier: login, path: /login, strategy: sliding_window_log, limit: 3, windowSeconds: 864000, costs: {other: 1}, countOnly: {status: 401}}
- {identifier: item, path: {expression: regex, value: '^/item/\\d+$'}, method: POST, strategy: sliding_window_log, limit: 12, windowSeconds: 864000}
";

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_decides_as_serve_did() {
    let upstream = Upstream::answering(|seen| {
        let status = if seen.uri.query() == Some("wrong") { 401 } else { 200 };
        Response::builder().status(status).body(Full::from("ok").boxed()).unwrap()
    })
    .await;
    let gateway = Gateway::start(&format!("{}{LIMITS}", upstream.target()));
    let client = Client::new(gateway.address);
    let (mut log, mut denied) = (String::new(), BTreeMap::<_, u64>::new());
    let mut violated = BTreeMap::<String, u64>::new();
    let addresses =
        ["203.0.113.1", "203.0.113.2", "203.0.113.3", "198.51.100.7", "192.0.2.9", "2001:db8::7"];
    let paths = ["/", "/login?wrong", "/login", "/item/7", "/%69tem//8", "/healthz"];
    // A sequence without a pattern, the same in each run.
    let mut random = 7_u64;
    let mut one_of = |count: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(random >> 33).unwrap() % count
    };
    for _ in 0..500 {
        let (address, path) = (addresses[one_of(6)], paths[one_of(6)]);
        let method = ["GET", "POST", "GET"][one_of(3)];
        let sent = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros();
        let forwarded = [("x-forwarded-for", address)];
        let answer = client.send(method, path, &forwarded, "").await.unwrap();
        let status = answer.status.as_u16();
        if matches!(status, 403 | 429) {
            *denied.entry(address.to_owned()).or_default() += 1;
        }
        if status == 429 {
            for policy in answer.json()["violated-policies"].as_array().unwrap() {
                *violated.entry(policy.as_str().unwrap().to_owned()).or_default() += 1;
            }
        }
        let line = json!({ "t": sent, "ip": address, "m": method, "u": path, "s": status });
        writeln!(log, "{line}").unwrap();
    }
    assert!(violated.len() == 4, "each limit denies some: {violated:?}");

    let folder = TempDir::new().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("limits.yaml", &whole(&format!("{}{LIMITS}", upstream.target())));
    write("sent.log", &log);
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["replay", "limits.yaml", "sent.log", "--format", "json"])
        .args(["--log", "json:time=t,address=ip,method=m,target=u,status=s"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let clients = report["denied_clients"].as_array().unwrap().iter();
    let replayed: BTreeMap<_, _> = clients
        .map(|it| (it["client"].as_str().unwrap().to_owned(), it["denied"].as_u64().unwrap()))
        .collect();
    assert_eq!(replayed, denied);
    let policies = report["policies"].as_object().unwrap().iter();
    let replayed: BTreeMap<_, _> =
        policies.map(|(name, it)| (name.clone(), it["denied"].as_u64().unwrap())).collect();
    assert_eq!(replayed, violated);
}
