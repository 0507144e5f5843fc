//! A replica's admin address.

use super::support::{Replica, run};
use tollgate_test_servers::http::{Answer, Client};

const TOKEN: &str = "0123456789abcdef";
const FLAGS: [&str; 4] = ["--admin", "127.0.0.1:0", "--admin-token", TOKEN];

/// A client for the admin address.
fn operator(replica: &Replica) -> Client {
    let line =
        replica.banner().lines().find_map(|line| line.trim().strip_prefix("admin      http://"));
    Client::new(line.expect("an admin address").parse().unwrap())
}

async fn with_token(client: &Client, method: &str, path: &str) -> Answer {
    let token = format!("Bearer {TOKEN}");
    client.send(method, path, &[("authorization", &token)], "").await.unwrap()
}

#[tokio::test]
async fn operator_can_reset_a_client() {
    let by_ip = ["--key", "ip", "--limit", "2", "--costs", "one", "--admin-subjects", "clear"];
    let flags = [&FLAGS[..], &by_ip].concat();
    let replica = Replica::start(&flags);
    let (client, operator) = (replica.client(), operator(&replica));
    for expected in [200, 200, 429, 429] {
        assert_eq!(client.get("/items").await.status, expected);
    }
    let status = operator.get("/status").await.json();
    assert_eq!(status["policies"][0]["decisions"]["deny"], 2);
    assert_eq!(operator.get("/top").await.status, 401);
    let top = with_token(&operator, "GET", "/top").await.json();
    let denied = &top["policies"][0]["denied"][0];
    assert_eq!(
        (denied["subject"].as_str(), denied["count"].as_u64()),
        (Some("ip:127.0.0.1"), Some(2))
    );
    assert_eq!(with_token(&operator, "DELETE", "/status/ip/ip:127.0.0.1").await.status, 204);
    assert_eq!(client.get("/items").await.status, 200);
}

#[tokio::test]
async fn metrics_contain_no_client_data() {
    let replica = Replica::start(&[&FLAGS[..], &["--key", "chain"]].concat());
    let (client, operator) = (replica.client(), operator(&replica));
    client.get("/items/7?secret=squeamish").await;
    client.get_with("/items", &[("x-api-key", "sk_live_ossifrage")]).await;
    client.get("/no-such-path").await;
    let answer = operator.get("/metrics").await;
    assert!(answer.header("content-type").starts_with("text/plain; version=0.0.4"));
    let text = String::from_utf8(answer.body.to_vec()).unwrap();
    for expected in [
        r#"tollgate_decisions_total{policy="chain",client="ip",endpoint="/items/{id}",outcome="allow"} 1"#,
        r#"tollgate_decisions_total{policy="chain",client="api_key",endpoint="/items",outcome="allow"} 1"#,
        r#"tollgate_decisions_total{policy="chain",client="ip",endpoint="other",outcome="allow"} 1"#,
        r#"tollgate_decision_duration_seconds_bucket{policy="chain",store="memory",le="0.001"} "#,
        r#"tollgate_memory_keys{store="memory"} 2"#,
        "# TYPE tollgate_decision_duration_seconds histogram",
    ] {
        assert!(text.contains(expected), "{expected} is not in\n{text}");
    }
    for secret in ["127.0.0.1", "ossifrage", "squeamish", "no-such-path"] {
        assert!(!text.contains(secret), "{secret} is in\n{text}");
    }
}

#[test]
fn invalid_admin_flags_are_rejected() {
    for (flags, expected) in [
        (&["--admin", "127.0.0.1:0"][..], "--admin needs --admin-token"),
        (&["--admin-token", TOKEN], "--admin-token has no effect without --admin"),
        (
            &["--admin", "127.0.0.1:0", "--admin-token", "hunter2"],
            "--admin-token: the admin router's token",
        ),
        (&["--admin-peers", "http://api2:9100"], "--admin-peers has no effect without --admin"),
        (&["--admin-target", "http://api2"], "--admin-target has no effect without --admin"),
        (&["--admin", "here", "--admin-token", TOKEN], "--admin 'here': expected an address"),
    ] {
        let output = run(flags, &[]);
        assert_eq!(output.status.code(), Some(2), "{flags:?}");
        let line = String::from_utf8(output.stderr).unwrap();
        assert!(line.contains(expected) && line.lines().count() == 1, "{line}");
        assert!(!line.contains("hunter2"), "{line}");
    }
}
