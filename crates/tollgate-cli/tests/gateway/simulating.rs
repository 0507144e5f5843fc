//! `tollgate test` must answer like `tollgate serve`.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use tempfile::TempDir;

use crate::support::{Gateway, Upstream, whole};

/// Windows last for days, so the machine's speed does not matter.
const LIMITS: &str = "trustedProxies: [127.0.0.1]
costs: {GET: 1, POST: 3}
global: {strategy: sliding_window_log, limit: 120, windowSeconds: 864000}
client: {strategy: token_bucket, limit: 30, refillSeconds: 8640000, burst: 30}
exempt: [/healthz]
deny: {addresses: [198.51.100.0/24]}
allow: {addresses: [192.0.2.0/24]}
apis:
- {identifier: login, path: /login, strategy: sliding_window_log, limit: 3, windowSeconds: 864000, costs: {other: 1}}
- {identifier: put, path: /put, limit: 100, windowSeconds: 864000, costs: {other: 1}}
";

#[tokio::test(flavor = "multi_thread")]
async fn test_answers_like_serve() {
    let upstream = Upstream::new().await;
    let limits = format!("{}{LIMITS}", upstream.target());
    let (_gateway, client) = Gateway::with_client(&limits);
    let mut tests = String::from("limits: limits.yaml\ntests:\n  - name: serve\n    requests:\n");
    let addresses = ["203.0.113.1", "203.0.113.2", "203.0.113.3", "198.51.100.7", "192.0.2.9"];
    let paths = ["/", "/login", "/%6cogin", "/put", "/healthz", "/a%2Fb"];
    let mut statuses = std::collections::BTreeSet::new();
    let mut random = 7_u64;
    let mut one_of = |count: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(random >> 33).unwrap() % count
    };
    for _ in 0..300 {
        let (address, path) = (addresses[one_of(5)], paths[one_of(6)]);
        let method = ["GET", "POST", "GET", "PUT"][one_of(4)];
        let answer = client.send(method, path, &[("x-forwarded-for", address)], "").await.unwrap();
        let status = answer.status.as_u16();
        statuses.insert(status);
        let remaining = answer.headers.get("x-ratelimit-remaining");
        let remaining = remaining.map(|units| format!(", remaining: {}", units.to_str().unwrap()));
        writeln!(
            tests,
            "      - {{client: 127.0.0.1, header: 'X-Forwarded-For: {address}', host: localhost, \
             method: {method}, path: '{path}', expect: {{status: {status}{}}}}}",
            remaining.unwrap_or_default()
        )
        .unwrap();
    }
    assert!([200, 400, 403, 429].iter().all(|status| statuses.contains(status)), "{statuses:?}");

    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("limits.yaml"), whole(&limits)).unwrap();
    fs::write(folder.path().join("limits.test.yaml"), tests).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let command = command.args(["test", "limits.test.yaml"]).current_dir(folder.path());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
