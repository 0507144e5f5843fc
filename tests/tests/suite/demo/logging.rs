//! A replica's log.

use serde_json::Value;

use super::support::Replica;

#[tokio::test]
async fn json_log_lines_contain_no_secret() {
    let flags = ["--log-format", "json", "--limit", "1", "--costs", "one", "--key", "api-key"];
    let flags = [&flags[..], &["--api-keys", "hunter2"]].concat();
    let replica = Replica::start_logging(&flags);
    let client = replica.client();
    for status in [200, 429] {
        let answer = client.get_with("/items", &[("x-api-key", "hunter2")]).await;
        assert_eq!(answer.status, status);
    }
    let log = replica.into_log();
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}")))
        .collect();
    for key in ["timestamp", "level", "target", "message"] {
        assert!(lines.iter().all(|line| line[key].is_string()), "{key}: {log}");
    }
    for message in ["deny", "stopped"] {
        assert!(lines.iter().any(|line| line["message"] == message), "{message}: {log}");
    }
    assert!(!log.contains("hunter2"), "{log}");
}
