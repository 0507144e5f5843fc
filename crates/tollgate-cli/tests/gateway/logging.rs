//! A running gateway's log.

use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::time::Instant;

use serde_json::Value;
use tempfile::TempDir;
use tollgate_test_servers::Port;

use crate::support::{Client, Gateway, RawClient, RawUpstream, Upstream, until, whole};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// Parses a log in which every line must be a JSON object.
fn lines(log: &str) -> Vec<Value> {
    let line = |line: &str| -> Value {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
        for key in ["timestamp", "level", "target", "message"] {
            assert!(value[key].is_string(), "no {key} in {line}");
        }
        value
    };
    log.lines().map(line).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn json_log_has_no_secrets() {
    let upstream = Upstream::new().await;
    // `expireSeconds` causes a warning, which must also be logged as JSON.
    let config = upstream.with(
        "log: {format: json}\nidentity: [user, ip]\n\
         jwt: {secret: hunter2-hunter2-hunter2-hunter2-hunter2}\n\
         client: {limit: 1, window: 60s, expireSeconds: 9}\n",
    );
    let mut gateway = Gateway::start_logging_denials(&config);
    let client = Client::new(gateway.address);
    let parent = format!("00-{TRACE}-b7ad6b7169203331-00");
    let headers = [
        ("traceparent", parent.as_str()),
        ("authorization", "Bearer hunter2"),
        ("cookie", "hunter2"),
    ];
    for status in [200, 429] {
        let answer = client.send("GET", "/?hunter2", &headers, "").await.unwrap();
        assert_eq!(answer.status.as_u16(), status);
    }
    gateway.rewrite("target: 'quoted\\' and hunter2'\n");
    gateway.until_config(|config| !config["lastError"].is_null()).await;
    gateway.signal("TERM");
    assert!(gateway.wait().success());
    gateway.until_logged("\"stopped\"");

    let log = gateway.log();
    let lines = lines(&log);
    let found = |message: &str| {
        let said = |line: &&Value| line["message"].as_str().unwrap().contains(message);
        lines.iter().find(said).unwrap_or_else(|| panic!("no {message} in {log}"))
    };
    assert_eq!(found("deny")["span"]["trace_id"], TRACE);
    assert_eq!(found("deny")["level"], "DEBUG");
    assert_eq!(found("denied 1 request under `client`")["level"], "INFO");
    assert_eq!(found("expireSeconds")["level"], "WARN");
    assert_eq!(found("was not reloaded")["level"], "ERROR");
    assert!(
        !log.contains("hunter2-") && !log.contains("Bearer") && !log.contains("cookie"),
        "{log}"
    );
    assert!(!log.contains("192.0.2.") && !log.contains("127.0.0.1:"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn warnings_are_printed_at_start_and_logged_on_reload() {
    let config = |limit: u32| {
        format!(
            "target: http://localhost:1\nclient: {{limit: {limit}, window: 60s, expireSeconds: 9}}\n"
        )
    };
    let gateway = Gateway::start_logging_denials(&config(1));
    gateway.until_logged("0 errors, 1 warning");
    gateway.rewrite(&config(2));
    gateway.until_logged("the configuration was reloaded");
    let log = gateway.log();
    let is_warning = |line: &&str| line.contains("WARN") && line.contains("expireSeconds");
    assert_eq!(log.lines().filter(is_warning).count(), 1, "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn trace_context_passes_through_without_tracing() {
    let upstream = Upstream::new().await;
    let gateway =
        Gateway::start_logging_denials(&upstream.with("client: {limit: 2, window: 60s}\n"));
    let client = Client::new(gateway.address);
    for parent in [&*format!("00-{TRACE}-b7ad6b7169203331-01"), "none at all"] {
        let headers = [("traceparent", parent), ("tracestate", "a=1")];
        client.send("GET", "/", &headers, "").await.unwrap();
        let seen = upstream.last();
        assert_eq!((seen.header("traceparent"), seen.header("tracestate")), (parent, "a=1"));
    }
    // Only the first of these requests has a valid trace.
    let traces = |log: &str| log.lines().filter(|line| line.contains("trace_id")).count();
    gateway.until_logged("allow");
    assert!(traces(&gateway.log()) <= 1, "{}", gateway.log());
    let parent = format!("00-{TRACE}-b7ad6b7169203331-01");
    client.send("GET", "/", &[("traceparent", &parent)], "").await.unwrap();
    gateway.until_logged(" deny");
    let log = gateway.log();
    let deny = log.lines().find(|line| line.contains(" deny")).unwrap();
    assert!(deny.contains(&format!("trace_id={TRACE}")), "{deny}");
    // Requests without a trace do not get a new trace.
    client.get("/").await;
    assert_eq!(upstream.seen().len(), 2);
}

#[test]
fn log_format_flag_overrides_variable() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = TempDir::new().unwrap();
    let config = format!(
        "target: http://localhost:1\nlisten: {}\nlog: {{level: warn}}\n",
        taken.local_addr().unwrap()
    );
    std::fs::write(folder.path().join("limits.yaml"), whole(&config)).unwrap();
    let run = |flags: &[&str], variable: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["serve", "--config", "limits.yaml"]).args(flags).current_dir(folder.path());
        command.env_remove("RUST_LOG").env_remove("TOLLGATE_LOG_FORMAT");
        let output = command.envs(variable.map(|it| ("TOLLGATE_LOG_FORMAT", it))).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (flags, variable) in [
        (&["--log-format", "json"][..], None),
        (&[], Some("json")),
        (&["--log-format=json"], Some("text")),
    ] {
        let (code, said) = run(flags, variable);
        assert_eq!(code, Some(1));
        let lines = lines(&said);
        let last = lines.last().unwrap();
        assert_eq!(last["level"], "ERROR");
        assert!(last["message"].as_str().unwrap().starts_with("cannot listen on "), "{said}");
    }
    let (code, said) = run(&[], None);
    assert_eq!(code, Some(1));
    assert!(said.contains("error[TG0401]: cannot listen on "), "{said}");
    let (code, said) = run(&["--log-format", "xml"], None);
    assert_eq!(code, Some(2));
    assert!(said.contains("[possible values: text, json]"), "{said}");
}

/// The log lines about this upstream, and the number of failed requests that they report.
fn lines_about(log: &str, upstream: SocketAddr) -> (Vec<&str>, usize) {
    let name = upstream.to_string();
    let lines: Vec<_> = log.lines().filter(|line| line.contains(&name)).collect();
    let failed = |line: &&str| match line.split_once(" more request") {
        Some((before, _)) => before.rsplit(' ').next().unwrap().parse().unwrap(),
        None => usize::from(line.contains(" WARN ")),
    };
    let failed = lines.iter().map(failed).sum();
    (lines, failed)
}

/// At most three lines per ten seconds: a failure, a recovery, and a count.
fn max_lines(started: Instant) -> usize {
    3 * (started.elapsed().as_secs() as usize / 10 + 2)
}

#[tokio::test(flavor = "multi_thread")]
async fn upstream_failures_are_summarized() {
    let port = Port::claim().unwrap();
    let address = port.address();
    let (mut gateway, client) = Gateway::with_client(&format!("target: http://{address}\n"));
    let started = Instant::now();
    for _ in 0..500 {
        assert_eq!(client.get("/").await.status, 502);
    }
    gateway.until_logged("cannot be reached");
    let upstream = Upstream::listening(tokio::net::TcpListener::bind(address).await.unwrap());
    assert_eq!(client.get("/").await.status, 200);
    gateway.until_logged("the upstream answers again");
    for _ in 0..500 {
        assert_eq!(client.get("/").await.status, 200);
    }
    drop(upstream);
    gateway.signal("TERM");
    assert!(gateway.wait().success());
    gateway.until_logged("stopped");
    let log = gateway.log();
    let (lines, failed) = lines_about(&log, address);
    assert!(lines[0].contains(" WARN ") && lines[0].contains("Connection refused"), "{log}");
    assert!(lines.last().unwrap().contains(" INFO "), "{log}");
    assert!(lines.len() <= max_lines(started), "{} lines: {log}", lines.len());
    assert_eq!(failed, 500, "{log}");
}

/// The client only gets a 502, so the log must contain the reason.
#[tokio::test(flavor = "multi_thread")]
async fn invalid_responses_are_explained_in_the_log() {
    for (answer, reason) in [
        ("HTTP/1.1 101 S\r\nConnection: upgrade\r\nUpgrade: a\r\n\r\n", "upgrades to a protocol"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "transfer coding"),
        ("SSH-2.0-OpenSSH\r\n\r\n", "invalid HTTP"),
        ("HTTP/1.1 200 OK\r\nContent-", "message completed"),
    ] {
        let upstream = RawUpstream::closing(answer);
        let gateway = Gateway::start(&upstream.target());
        let said = Client::new(gateway.address).get("/").await;
        assert_eq!((said.status.as_u16(), &*said.code()), (502, "upstream-invalid"));
        gateway.until_logged(&upstream.address.to_string());
        let log = gateway.log();
        assert!(log.contains(reason), "no {reason} in {log}");
    }
}

/// Such requests reach no route, so neither a route's metrics nor the access log count them.
#[tokio::test(flavor = "multi_thread")]
async fn invalid_heads_are_explained() {
    let upstream = Upstream::new().await;
    let mut gateway = Gateway::start(&upstream.target());
    let many: String = (0..101).map(|number| format!("x-{number}: 1\r\n")).collect();
    let heads = [
        ("/a?q=\"x\"", "", "400", "bad-head"),
        ("/a<b>", "", "400", "bad-head"),
        ("/a", "X-A: a\u{1}b\r\n", "400", "bad-head"),
        ("/a", &many, "431", "head-too-large"),
    ];
    for (target, more, status, code) in heads {
        // The second request on the connection.
        let mut client = RawClient::new(gateway.address);
        let answer = client.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let answer = client.ask(&format!("GET {target} HTTP/1.1\r\nHost: a\r\n{more}\r\n"));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{answer}");
        assert!(answer.contains("content-type: application/problem+json"), "{answer}");
        assert!(answer.contains(&format!("\"code\":\"{code}\"")), "{answer}");
        assert_eq!(client.message(), None, "the connection is closed");
    }
    let metric = format!("tollgate_gateway_invalid_heads_total {}\n", heads.len());
    until("the heads are counted", async || gateway.metrics().await.contains(&metric)).await;
    assert_eq!(upstream.seen().len(), heads.len());
    gateway.signal("TERM");
    gateway.wait();
    gateway.until_logged("rejected 4 invalid request heads");
    gateway.until_logged("from 127.0.0.1");
}
