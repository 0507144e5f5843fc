//! What operators can read and change through the admin address.

use std::process::Command;

use crate::support::{Client, Gateway, Upstream};

fn lines(upstream: &Upstream, limit: u32) -> String {
    format!(
        "{}strategy: sliding_window_log\n\
         global: {{limit: 1000, windowSeconds: 3600}}\n\
         client: {{limit: {limit}, windowSeconds: 3600}}\n\
         apis:\n\
         - {{identifier: a, path: /a, limit: 2, windowSeconds: 3600}}\n\
         - {{identifier: b, path: /b, limit: 2, windowSeconds: 3600}}\n",
        upstream.target()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_resets_a_denied_client() {
    let upstream = Upstream::new().await;
    let (gateway, client) = Gateway::with_client(&lines(&upstream, 3));
    for expected in [200, 200, 429, 429] {
        assert_eq!(client.get("/a").await.status, expected);
    }
    assert_eq!(gateway.admin("/top").await.status, 401);
    let top = gateway.operate("GET", "/top").await.json();
    let of_a = top["policies"].as_array().unwrap().iter().find(|it| it["policy"] == "a").unwrap();
    assert_eq!(of_a["denied"][0]["subject"], "ip:127.0.0.1");
    assert_eq!(of_a["denied"][0]["count"], 2);
    let left = gateway.operate("GET", "/status/client/ip:127.0.0.1").await.json();
    assert_eq!(left["remaining"], 1);
    for policy in ["a", "client"] {
        let path = format!("/status/{policy}/ip:127.0.0.1");
        assert_eq!(gateway.operate("DELETE", &path).await.status, 204);
    }
    for expected in [200, 200, 429] {
        assert_eq!(client.get("/a").await.status, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reload_preserves_policy_counts() {
    let upstream = Upstream::new().await;
    let (gateway, client) = Gateway::with_client(&lines(&upstream, 3));
    client.get("/a").await;
    gateway.rewrite(&lines(&upstream, 4));
    gateway.until_config(|config| config["version"] == 2).await;
    client.get("/b").await;
    client.get("/other").await;
    let status = gateway.admin("/status").await.json();
    let policies = status["policies"].as_array().unwrap();
    let names: Vec<_> = policies.iter().map(|it| it["policy"].as_str().unwrap()).collect();
    assert_eq!(names, ["global", "client", "a", "b", "cors/preflights"]);
    assert_eq!((&policies[0]["remaining"], &policies[1]["limit"]), (&997.into(), &4.into()));
    assert_eq!(policies[0]["decisions"]["allow"], 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn denials_are_summarized_in_the_log() {
    let upstream = Upstream::new().await;
    let (mut gateway, client) = Gateway::with_client(&lines(&upstream, 3));
    for _ in 0..50 {
        client.get("/b").await;
    }
    gateway.signal("TERM");
    assert!(gateway.wait().success());
    gateway.until_logged("stopped");
    let log = gateway.log();
    // There are two lines if a ten-second period expired in between.
    let told: u32 = log
        .lines()
        .filter_map(|line| line.split_once("tollgate: denied ")?.1.split_once(" under `b` in "))
        .map(|(count, _)| count.split(' ').next().unwrap().parse::<u32>().unwrap())
        .sum();
    assert_eq!(told, 48, "{log}");
    assert!(log.lines().filter(|line| line.contains("den")).count() < 5, "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_clients_are_summarized_in_the_log() {
    let upstream = Upstream::new().await;
    let limit = "client: {limit: 5, windowSeconds: 60}\nidentity: apiKey\n";
    let keys = format!("apiKeys: [{{sha256: {}}}]\n", "a".repeat(64));
    let mut gateway = Gateway::start(&format!("{}{limit}{keys}", upstream.target()));
    assert_eq!(Client::new(gateway.address).get("/").await.status, 403);
    gateway.signal("TERM");
    assert!(gateway.wait().success());
    gateway.until_logged("`identity` found no client in 1 request in the last");
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_include_apis_and_configuration() {
    let upstream = Upstream::new().await;
    let (gateway, client) = Gateway::with_client(&lines(&upstream, 3));
    client.get("/a?secret=squeamish").await;
    client.get("/ossifrage").await;
    gateway.rewrite("nonsense: true\n");
    gateway.until_config(|config| config["failedReloads"] == 1).await;
    let text = gateway.metrics().await;
    let upstream_requests = format!(
        "tollgate_gateway_upstream_requests_total{{upstream=\"{}\",status=\"2xx\"}} 2",
        upstream.address
    );
    for expected in [
        &*upstream_requests,
        r#"tollgate_decisions_total{policy="a",client="ip",endpoint="a",outcome="allow"} 1"#,
        r#"tollgate_decisions_total{policy="client",client="ip",endpoint="other",outcome="allow"} 1"#,
        r#"tollgate_remaining_units{policy="global"} 998"#,
        r#"tollgate_gateway_requests_total{route="default",status="2xx"} 2"#,
        r#"tollgate_gateway_request_duration_seconds_count{route="default"} 2"#,
        "tollgate_config_version 1",
        "tollgate_config_current 0",
        "tollgate_config_reload_failures_total 1",
        "tollgate_config_loaded_timestamp_seconds 1",
    ] {
        assert!(text.contains(expected), "{expected} is not in\n{text}");
    }
    // The upstream's address may appear because it is configured.
    let text = text.replace(&upstream.address.to_string(), "upstream");
    for secret in ["127.0.0.1", "squeamish", "ossifrage"] {
        assert!(!text.contains(secret), "{secret} is in\n{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_host_names_are_rejected() {
    let upstream = Upstream::new().await;
    let gateway = Gateway::start(&lines(&upstream, 3));
    let client = Client::new(gateway.admin);
    for (path, expected) in
        [("/status", 421), ("/metrics", 421), ("/config", 421), ("/healthz", 200), ("/readyz", 200)]
    {
        let answer = client.send("GET", path, &[("host", "rebound.example")], "").await.unwrap();
        assert_eq!(answer.status, expected, "{path}");
        if expected == 421 {
            assert!(
                answer.json()["detail"]
                    .as_str()
                    .unwrap()
                    .contains("add it to TOLLGATE_ADMIN_HOSTS, or use"),
                "{path}"
            );
        }
    }
    assert_eq!(client.get("/no-such").await.status, 404);
    // The page accepts only the same host names as the API.
    assert!(client.get("/").await.header("content-type").starts_with("text/html"));
    assert_eq!(
        client.send("GET", "/", &[("host", "rebound.example")], "").await.unwrap().status,
        421
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn page_uses_configured_peers() {
    let upstream = Upstream::new().await;
    let peer = "http://127.0.0.1:9101";
    let admin = format!("admin: {{address: \"127.0.0.1:0\", peers: [\"{peer}\"]}}\n");
    let gateway = Gateway::start(&format!("{}{admin}", lines(&upstream, 3)));
    let settings = gateway.admin("/page/settings.json").await.json();
    assert_eq!(settings, serde_json::json!({ "peers": [peer], "target": null }));
    let client = Client::new(gateway.admin);
    let preflight = [("origin", peer), ("access-control-request-method", "GET")];
    let answer = client.send("OPTIONS", "/events", &preflight, "").await.unwrap();
    assert_eq!(answer.header("access-control-allow-origin"), peer);
    let answer = client.send("GET", "/status", &[("origin", peer)], "").await.unwrap();
    assert_eq!(answer.status, 403);
    // Like the admin address, peers are only read at startup.
    gateway.rewrite(&lines(&upstream, 3));
    let config = gateway.until_config(|config| config["version"] == 2).await;
    assert_eq!(config["waitsForRestart"], serde_json::json!(["admin"]));
}

/// A remote client can send any host name, even `localhost`.
#[tokio::test(flavor = "multi_thread")]
async fn public_admin_address_requires_the_token() {
    let upstream = Upstream::new().await;
    for admin in ["0.0.0.0:0", "'[::]:0'"] {
        let gateway = Gateway::start(&format!("{}admin: {admin}\n", lines(&upstream, 3)));
        let client = Client::new(([127, 0, 0, 1], gateway.admin.port()).into());
        for path in [
            "/status",
            "/config",
            "/metrics",
            "/events",
            "/top",
            "/status/client/ip:127.0.0.1",
            "/no-such",
        ] {
            for host in ["localhost", "127.0.0.1", "[::1]:8081"] {
                let answer = client.send("GET", path, &[("host", host)], "").await.unwrap();
                assert_eq!(answer.status, 401, "{path} {host}");
                let wrong = [("host", host), ("authorization", "Bearer 0123456789abcdee")];
                let answer = client.send("GET", path, &wrong, "").await.unwrap();
                assert_eq!(answer.status, 401, "{path} {host}");
            }
        }
        let known = [("host", "localhost"), ("authorization", "Bearer 0123456789abcdef")];
        for path in ["/status", "/config", "/metrics", "/top"] {
            assert_eq!(client.send("GET", path, &known, "").await.unwrap().status, 200, "{path}");
        }
        // Probes have no token. The page contains no data, and prompts for the token itself.
        for (path, host) in [("/healthz", "probe"), ("/readyz", "probe"), ("/", "localhost")] {
            let answer = client.send("GET", path, &[("host", host)], "").await.unwrap();
            assert_eq!(answer.status, 200, "{path}");
        }
    }
}

#[test]
fn healthcheck_needs_no_token() {
    let gateway = Gateway::start("target: http://localhost:1\nadmin: 0.0.0.0:0\n");
    let run = |admin: &str| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        program.args(["healthcheck", "--admin", admin]).output().unwrap()
    };
    let address = format!("http://127.0.0.1:{}", gateway.admin.port());
    assert_eq!(run(&address).stdout, b"the gateway runs\n");
    drop(gateway);
    let output = run(&address);
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.starts_with(&format!("error[TG0708]: {address}: ")), "{told}");
}

#[test]
fn public_admin_address_without_token_warns() {
    let folder = tempfile::TempDir::new().unwrap();
    let lines = "target: http://localhost:1\nadmin: 0.0.0.0:0\n";
    std::fs::write(folder.path().join("a.yaml"), crate::support::whole(lines)).unwrap();
    let gateway = Gateway::start_under(folder, "a.yaml", &[("TOLLGATE_ADMIN_TOKEN", "")]);
    gateway.until_logged("TOLLGATE_ADMIN_TOKEN");
}
