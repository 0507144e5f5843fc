//! `tollgate override`: operators change one client's quota until an instant.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollgate_test_servers::{Redis, until_async};

use crate::support::{Client, Gateway, Upstream};

/// The operator token of the test's gateways.
const TOKEN: &str = "0123456789abcdef";

/// Runs the program, and returns its output and whether it succeeded.
fn run(gateway: &Gateway, token: &str, args: &[&str]) -> (bool, String) {
    let program = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .arg("override")
        .args(args)
        .args(["--admin", &format!("http://{}", gateway.admin)])
        .env("TOLLGATE_ADMIN_TOKEN", token)
        .output()
        .unwrap();
    let said = [program.stdout, program.stderr].concat();
    (program.status.success(), String::from_utf8(said).unwrap())
}

pub(crate) fn succeed(gateway: &Gateway, args: &[&str]) -> String {
    let (is_success, said) = run(gateway, TOKEN, args);
    assert!(is_success, "{args:?}: {said}");
    said
}

/// Waits until each gateway answers with this limit, and checks that it took less than two seconds.
async fn until_limit(clients: &[Client], limit: &str) {
    let changed = Instant::now();
    until_async(&format!("the limit {limit}"), Duration::from_secs(20), async || {
        for client in clients {
            if client.get("/").await.header("x-ratelimit-limit") != limit {
                return None;
            }
        }
        Some(())
    })
    .await;
    assert!(changed.elapsed() < Duration::from_secs(2), "{:?}", changed.elapsed());
}

fn lines(upstream: &Upstream, redis: &Redis) -> String {
    format!(
        "{}strategy: sliding_window_log\n\
         store: {{redis: {{url: '{}', timeout: 5s}}}}\n\
         client: {{limit: 2, windowSeconds: 3600}}\n",
        upstream.target(),
        redis.url()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn all_gateways_follow_an_override_and_restarts_keep_it() {
    let upstream = Upstream::new().await;
    let redis = Redis::start();
    let lines = lines(&upstream, &redis);
    let gateways = [(); 3].map(|()| Gateway::start(&lines));
    let clients = gateways.each_ref().map(|gateway| Client::new(gateway.address));
    for (client, expected) in clients.iter().zip([200, 200, 429]) {
        assert_eq!(client.get("/").await.status, expected);
    }
    let whose = ["client", "ip:127.0.0.1"];
    let set = ["set", whose[0], whose[1], "--limit", "5000", "--until", "tomorrow"];
    let said = succeed(&gateways[0], &set);
    assert!(
        said.starts_with("client ip:127.0.0.1: limit 5000 until ") && said.contains("T00:00:00"),
        "{said}"
    );
    until_limit(&clients, "5000").await;
    gateways[0].until_logged("overridden by an operator");
    let log = gateways[0].log();
    let line = log.lines().find(|line| line.contains("overridden by an operator")).unwrap();
    for part in [
        "INFO",
        "policy=\"client\"",
        "subject=\"ip:127.0.0.1\"",
        "limit=5000",
        "until=\"",
        "peer=\"127.0.0.1:",
    ] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
    assert_eq!(log.matches("overridden by an operator").count(), 1);
    let explained = || {
        let file = gateways[0].file("limits.yaml");
        let said = Command::new(env!("CARGO_BIN_EXE_tollgate")).arg("explain").arg(file).output();
        String::from_utf8(said.unwrap().stdout).unwrap()
    };
    assert!(explained().contains("of 5000 left; this request now"), "{}", explained());
    // Another gateway lists and changes it.
    assert_eq!(succeed(&gateways[1], &["list"]).lines().count(), 1);
    drop(gateways);

    let gateways = [(); 3].map(|()| Gateway::start(&lines));
    let clients = gateways.each_ref().map(|gateway| Client::new(gateway.address));
    until_limit(&clients, "5000").await;
    let said = succeed(&gateways[2], &["block", whose[0], whose[1], "--for", "1h"]);
    assert!(said.starts_with("client ip:127.0.0.1: blocked until "), "{said}");
    gateways[2].until_logged("blocked by an operator");
    until_async("a block", Duration::from_secs(2), async || {
        for client in &clients {
            let answer = client.get("/").await;
            let wait: u64 = answer.header("retry-after").parse().unwrap_or_default();
            if answer.status != 429 || !(3_590..=3_600).contains(&wait) {
                return None;
            }
        }
        Some(())
    })
    .await;
    assert!(succeed(&gateways[0], &["list"]).contains("blocked"));
    succeed(&gateways[1], &["remove", whose[0], whose[1]]);
    gateways[1].until_logged("override removed by an operator");
    let removed = Instant::now();
    until_async("no overrides", Duration::from_secs(20), async || {
        let is_empty = |gateway| succeed(gateway, &["list"]) == "there are no overrides\n";
        gateways.iter().all(is_empty).then_some(())
    })
    .await;
    assert!(removed.elapsed() < Duration::from_secs(2), "{:?}", removed.elapsed());
    until_limit(&clients, "2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn override_in_memory_ends_by_itself() {
    let upstream = Upstream::new().await;
    let lines = format!(
        "{}strategy: sliding_window_log\nclient: {{limit: 2, windowSeconds: 3600}}\n",
        upstream.target()
    );
    let (gateway, client) = Gateway::with_client(&lines);
    succeed(&gateway, &["set", "client", "ip:127.0.0.1", "--limit", "7", "--for", "2s"]);
    assert_eq!(client.get("/").await.header("x-ratelimit-limit"), "7");
    // A reload keeps it.
    gateway.rewrite(&lines.replace("limit: 2", "limit: 3"));
    gateway.until_config(|config| config["version"] == 2).await;
    until_async("the file's limit", Duration::from_secs(10), async || {
        (client.get("/").await.header("x-ratelimit-limit") == "3").then_some(())
    })
    .await;
    assert_eq!(succeed(&gateway, &["list"]), "there are no overrides\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn decision_api_follows_overrides() {
    let api = "decisionApi:\n  listen: 127.0.0.1:0\n  policies:\n  \
               - {identifier: tenant, limit: 2, window: 240h, strategy: sliding_window_log}\n";
    let gateway = Gateway::start(api);
    let client = Client::new(gateway.fronts["decisionApi"]);
    let decide = async |cost: u64, dry: bool| -> Value {
        let charges = json!([{"policy": "tenant", "key": "acme", "cost": cost}]);
        let body = json!({"charges": charges, "dry_run": dry}).to_string();
        client.send("POST", "/v1/decide", &[], &body).await.unwrap().json()
    };
    assert_eq!(decide(3, false).await["allowed"], false);
    // "acme" in hex.
    let subject = "key:61636d65";
    succeed(&gateway, &["set", "tenant", subject, "--limit", "5", "--for", "1h"]);
    assert_eq!(decide(3, true).await["allowed"], true);
    let decided = decide(3, false).await;
    assert_eq!((&decided["allowed"], &decided["policies"][0]["limit"]), (&json!(true), &json!(5)));
    let settle = json!({"receipt": decided["receipts"][0], "actual": 1}).to_string();
    let settled = client.send("POST", "/v1/settle", &[], &settle).await.unwrap().json();
    assert_eq!(settled["units"], 2);
    assert_eq!(decide(0, true).await["policies"][0]["remaining"], 4);
    succeed(&gateway, &["block", "tenant", subject, "--for", "1h"]);
    for dry in [true, false] {
        let blocked = decide(1, dry).await;
        let wait = blocked["retry_after"].as_f64().unwrap();
        assert!(blocked["allowed"] == false && (3_590.0..=3_600.0).contains(&wait), "{blocked}");
    }
}
