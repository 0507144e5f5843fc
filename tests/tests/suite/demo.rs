//! The demo as a real process.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tollgate_test_servers::http::Client;
use tollgate_test_servers::{Plan, Replica};

/// Starts the demo on a free port. Its log is in the folder.
pub(crate) fn start(flags: &[&str]) -> (Replica, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let replica = Replica::start(Plan {
        program: env!("CARGO_BIN_EXE_replica").into(),
        name: "api1".to_owned(),
        listen: ([127, 0, 0, 1], 0).into(),
        flags: flags.iter().map(ToString::to_string).collect(),
        variables: vec![("RUST_LOG".to_owned(), "info,tollgate=debug,tower_http=debug".to_owned())],
        folder: folder.path().to_owned(),
    });
    (replica.unwrap(), folder)
}

/// Runs `balancer.sh` against the demo.
fn scenario(replica: &Replica) -> (Option<i32>, String) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/balancer.sh");
    let url = format!("http://{}", replica.address());
    let output = Command::new("bash").args([script, &url]).output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn scenario_passes_on_one_server() {
    let (replica, _folder) = start(&[]);
    let (code, printed) = scenario(&replica);
    assert_eq!(code, Some(0), "{printed}");
    for line in [
        "  1  GET     200  remaining  99  api1",
        " 10  POST    201  remaining  70  api1",
        " 15  SEARCH  200  remaining  55  api1",
        " 20  DELETE  204  remaining   5  api1",
        " 21  POST    201  remaining   0  api1",
        " 22  GET     429  remaining   0  api1",
    ] {
        assert!(printed.lines().any(|printed| printed == line), "{line} is not in\n{printed}");
    }
}

#[test]
fn scenario_stops_at_first_difference() {
    let (replica, _folder) = start(&["--limit", "99"]);
    let (code, printed) = scenario(&replica);
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("FAILED at request 1: remaining '98', expected 99"), "{printed}");
}

#[test]
fn errors_name_the_flag_and_have_an_exit_code() {
    let (replica, _folder) = start(&[]);
    let taken = replica.address().to_string();
    for (flags, variable, code, expected) in [
        (["--limit", "x"], ("TOLLGATE_KEY", "ip"), 2, "error: invalid value 'x' for '--limit"),
        (
            ["--key", "ip"],
            ("TOLLGATE_LIMIT", "x"),
            2,
            "error: invalid value 'x' for 'TOLLGATE_LIMIT",
        ),
        (["--key", "ip"], ("TOLLGATE_LIMIT", "5"), 1, "error: TOLLGATE_LIMIT 5: a DELETE request"),
        (["--key", "ip"], ("TOLLGATE_SHED", "open"), 2, "error: TOLLGATE_SHED only has an effect"),
        (["--window", "1ns"], ("TOLLGATE_KEY", "ip"), 1, "error: --window: "),
        (["--store", "disk"], ("TOLLGATE_KEY", "ip"), 1, "error: --store: "),
        (["--key", "ip"], ("RUST_LOG", "a=loud"), 1, "error: RUST_LOG 'a=loud': "),
        (["--listen", &taken], ("TOLLGATE_KEY", "ip"), 1, "error: cannot listen on 127.0.0.1:"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_replica"));
        let command = command.args(flags).env_clear().env("RUST_LOG", "error");
        let output = command.envs([variable]).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.starts_with(expected), "{text}");
    }
}

#[tokio::test]
async fn keys_are_chained_and_never_logged() {
    let flags = ["--log-format", "json", "--limit", "1", "--costs", "one", "--key", "chain"];
    let (mut replica, _folder) = start(&[&flags[..], &["--api-keys", "hunter2"]].concat());
    let client = Client::new(replica.address());
    for (key, expected) in [("hunter2", 200), ("hunter2", 429), ("forged", 200), ("other", 429)] {
        let answer = client.get_with("/items", &[("x-api-key", key)]).await;
        // Unknown keys are ignored, so these requests count by address.
        assert_eq!(answer.status, expected, "{key}");
        assert_eq!(answer.header("x-server-id"), "api1");
    }
    let denied = client.get("/items").await;
    replica.process.terminate();
    assert!(replica.process.wait(Duration::from_secs(10)).unwrap().success());
    let log = replica.process.output();
    let lines = log.lines().filter(|line| line.starts_with('{'));
    let lines: Vec<Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    for message in ["deny", "stopped"] {
        assert!(lines.iter().any(|line| line["message"] == message), "{message}: {log}");
    }
    // A denial is found by the request id that the client received.
    let id = denied.header("x-request-id");
    let has_id = |line: &Value| line["message"] == "deny" && line["span"]["id"] == *id;
    assert!(lines.iter().any(has_id), "{log}");
    for field in ["timestamp", "level", "target"] {
        assert!(lines.iter().all(|line| line[field].is_string()), "{field}: {log}");
    }
    assert!(!log.contains("hunter2"), "{log}");
}
