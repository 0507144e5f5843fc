//! The access log. `tollgate replay` must be able to read it.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tollgate_test_servers::until;

use crate::support::{Client, Gateway, PATIENCE, Upstream};

const LIMITS: &str = "trustedProxies: [127.0.0.1]
client: {strategy: sliding_window_log, limit: 4, windowSeconds: 864000}
deny: {addresses: [198.51.100.0/24]}
";

fn lines(file: &Path) -> Vec<String> {
    fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Waits until a log has at least `count` lines.
fn wait_for(file: &Path, count: usize) -> Vec<String> {
    let enough = || Some(lines(file)).filter(|lines| lines.len() >= count);
    until(&format!("{count} lines in {}", file.display()), PATIENCE, enough)
}

async fn send(client: &Client, address: &str, path: &str) -> u16 {
    let headers = [("x-forwarded-for", address), ("user-agent", "a \"quoted\" name")];
    client.send("GET", path, &headers, "").await.unwrap().status.as_u16()
}

#[tokio::test(flavor = "multi_thread")]
async fn log_defaults_to_standard_output() {
    let upstream = Upstream::new().await;
    let (gateway, client) = Gateway::with_client(&upstream.with("accessLog: {format: json}\n"));
    assert_eq!(send(&client, "203.0.113.1", "/hello").await, 200);
    let lines = until("a line", PATIENCE, || Some(gateway.output()).filter(|it| it.contains('\n')));
    let line: Value = serde_json::from_str(&lines).unwrap();
    assert_eq!((&line["target"], &line["status"]), (&json!("/hello"), &json!(200)));
}

#[tokio::test(flavor = "multi_thread")]
async fn replay_of_the_log_denies_the_same_requests() {
    let upstream = Upstream::new().await;
    let log = "accessLog: {file: access.log}\n";
    let (gateway, client) = Gateway::with_client(&format!("{}{log}{LIMITS}", upstream.target()));
    let mut denied = 0;
    for number in 0..30 {
        let address = ["203.0.113.1", "203.0.113.2", "198.51.100.7"][number % 3];
        let status = send(&client, address, &format!("/%61?number={number}")).await;
        denied += u64::from(status != 200);
    }
    let lines = wait_for(&gateway.file("access.log"), 30);
    assert_eq!((lines.len(), denied), (30, 22));
    let lines: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |number: usize| {
        let target = format!("/%61?number={number}");
        lines.iter().find(|line| line["target"] == target).unwrap()
    };
    let first = of(0);
    let expected = json!({
        "address": "127.0.0.1", "x_forwarded_for": "203.0.113.1", "method": "GET", "status": 200,
        "target": "/%61?number=0", "bytes": 2, "user_agent": "a \"quoted\" name",
        "host": gateway.address.to_string(), "time": first["time"], "seconds": first["seconds"],
    });
    assert_eq!(*first, expected);
    assert_eq!(first["time"].as_str().unwrap().len(), "2026-11-22T20:53:00.123456Z".len());
    assert!(first["seconds"].as_f64().unwrap() > 0.0);
    assert_eq!(of(2)["denial"], "denied-subject");
    let last = of(27);
    assert_eq!(
        (&last["denial"], &last["policies"]),
        (&json!("quota-exceeded"), &json!(["client"]))
    );

    let replay = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["replay", "limits.yaml", "--format", "json", "-"])
        .current_dir(gateway.file(""))
        .stdin(fs::File::open(gateway.file("access.log")).unwrap())
        .output()
        .unwrap();
    assert!(replay.status.success(), "{}", String::from_utf8_lossy(&replay.stderr));
    let report: Value = serde_json::from_slice(&replay.stdout).unwrap();
    let clients = report["denied_clients"].as_array().unwrap().iter();
    let replayed: u64 = clients.map(|client| client["denied"].as_u64().unwrap()).sum();
    assert_eq!(replayed, denied, "{report:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn log_is_reopened_after_rotation() {
    let upstream = Upstream::new().await;
    let log = "accessLog: {file: access.log, format: combined}\n";
    let (gateway, client) = Gateway::with_client(&format!("{}{log}", upstream.target()));
    let (file, old) = (gateway.file("access.log"), gateway.file("access.log.1"));
    assert_eq!(send(&client, "203.0.113.1", "/a?b").await, 200);
    let line = wait_for(&file, 1).remove(0);
    let (start, rest) = line.split_once(" - - [").unwrap();
    let (at, rest) = rest.split_once("] ").unwrap();
    assert_eq!((start, at.len()), ("127.0.0.1", "22/Nov/2026:20:53:00 +0000".len()));
    assert_eq!(rest, "\"GET /a?b HTTP/1.1\" 200 2 \"-\" \"a \\x22quoted\\x22 name\"");

    fs::rename(&file, &old).unwrap();
    gateway.signal("HUP");
    gateway.until_config(|config| config["version"] == 2).await;
    assert_eq!(send(&client, "203.0.113.1", "/signal").await, 200);
    assert!(wait_for(&file, 1)[0].contains("/signal"));
    assert_eq!(lines(&old).len(), 1);

    fs::rename(&file, &old).unwrap();
    let mut sent = 0;
    while !file.exists() {
        assert_eq!(send(&client, "203.0.113.1", "/moved").await, 200);
        sent += 1;
    }
    let all = || Some(lines(&file).len() + lines(&old).len()).filter(|all| *all == sent + 1);
    until("no line is lost", PATIENCE, all);
}

#[tokio::test(flavor = "multi_thread")]
async fn blocked_log_drops_lines_instead_of_delaying_requests() {
    let upstream = Upstream::new().await;
    let folder = tempfile::TempDir::new().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // Holds the pipe open without reading from it.
    let hold = format!("exec 3<>'{}'; read _", pipe.display());
    let mut reader =
        Command::new("bash").args(["-c", &hold]).stdin(Stdio::piped()).spawn().unwrap();
    let log = format!("accessLog: {{file: '{}'}}\n", pipe.display());
    let (gateway, client) = Gateway::with_client(&format!("{}{log}", upstream.target()));
    let (long, path) = ("a".repeat(4_000), format!("/{}", "a".repeat(4_000)));
    let headers = [("referer", &*long), ("user-agent", &*long)];
    // Exceeds both the pipe's 64 KiB and the queue's 4 MiB.
    for _ in 0..420 {
        assert_eq!(client.send("GET", &path, &headers, "").await.unwrap().status, 200);
    }
    let metrics = gateway.operate("GET", "/metrics").await;
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    let name = "tollgate_gateway_access_log_dropped_total ";
    let dropped = metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    assert!(dropped.parse::<u64>().unwrap() > 0, "{dropped}");
    reader.kill().unwrap();
    reader.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn forward_auth_logs_original_requests_of_sampled_clients() {
    let gateway = Gateway::start(
        "accessLog: {file: access.log, sample: 0.5}
forwardAuth: {listen: 127.0.0.1:0, trustedProxies: [127.0.0.1]}
client: {strategy: sliding_window_log, limit: 2, windowSeconds: 864000}
",
    );
    let client = Client::new(gateway.fronts["forwardAuth"]);
    for _ in 0..3 {
        for last in 0..100 {
            let address = format!("203.0.113.{last}");
            let headers = [
                ("x-original-method", "PUT"),
                ("x-original-uri", "/of/the/client"),
                ("x-forwarded-for", &*address),
            ];
            client.send("GET", "/auth-request", &headers, "").await.unwrap();
        }
    }
    drop(client);
    gateway.signal("TERM");
    let mut gateway = gateway;
    assert!(gateway.wait().success());
    let lines = lines(&gateway.file("access.log"));
    // Each of 100 clients is logged with a probability of 0.5, so a correct gateway fails this
    // about once in 10^9 runs.
    assert!(lines.len().is_multiple_of(3) && (60..=240).contains(&lines.len()), "{}", lines.len());
    for line in &lines[lines.len() / 3 * 2..] {
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!((&line["method"], &line["target"]), (&json!("PUT"), &json!("/of/the/client")));
        assert_eq!((&line["status"], &line["denial"]), (&json!(429), &json!("quota-exceeded")));
    }
}
