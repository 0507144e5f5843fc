//! The `tollgate replay` and `tollgate suggest` commands.

mod bad_input;
mod logs;
mod suggest;

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::root;

/// Per minute, allows five requests in total, and each client two requests and a single login.
const LIMITS: &str = "rateLimiter:
  target: http://localhost:1
  global: {strategy: sliding_window_log, limit: 5, windowSeconds: 60}
  client: {strategy: sliding_window_log, limit: 2, windowSeconds: 60}
  apis:
    - {identifier: login, path: /login, strategy: sliding_window_log, limit: 1, windowSeconds: 60}
  exempt: [/healthz]
  deny: {addresses: [198.51.100.0/24]}
  allow: {addresses: [192.0.2.1]}
";

fn line(second: u64, address: &str, path: &str) -> String {
    let (minute, second) = (second / 60, second % 60);
    let time = format!("22/Nov/2026:00:{minute:02}:{second:02} +0000");
    format!("{address} - - [{time}] \"GET {path} HTTP/1.1\" 200 5 \"-\" \"curl\"\n")
}

#[test]
fn annotating_limits_do_not_deny() {
    let log: String = (0..5).map(|second| line(second, "203.0.113.7", "/")).collect();
    let folder = Folder::new(&log);
    let soft =
        LIMITS.replace("limit: 2, windowSeconds: 60", "limit: 2, window: 60s, excess: annotate");
    folder.write("limits.yaml", &soft);
    let report = folder.json(&[]);
    assert_eq!(report["clients_denied"], 0);
    assert_eq!(counts(&report["policies"]["client"]), [5, 5, 2, 3]);
    assert_eq!(counts(&report["policies"]["global"]), [5, 5, 5, 0]);
    let output = folder.tollgate(&["replay", "limits.yaml", "access.log"]);
    let words = String::from_utf8(output.stdout).unwrap();
    assert!(words.contains("client (not enforced)"), "{words}");
}

/// A level follows its base, also if another name sorts between them.
#[test]
fn levels_are_a_tree() {
    let log: String = (0..3).map(|second| line(second, "203.0.113.7", "/")).collect();
    let folder = Folder::new(&log);
    let levels = "rateLimiter:
  target: http://localhost:1
  strategy: sliding_window_log
  levels: {everyone: everyone}
  client: {limit: 2, windowSeconds: 60, levels: {everyone: {limit: 9, windowSeconds: 60}}}
  apis: [{identifier: client-api, path: /, limit: 8, windowSeconds: 60}]
";
    folder.write("limits.yaml", levels);
    let report = folder.json(&[]);
    assert_eq!(report["policies"]["client/everyone"]["level_of"], "client");
    assert_eq!(report["policies"]["client"]["level_of"], Value::Null);
    let output = folder.tollgate(&["replay", "limits.yaml", "access.log", "--html", "report.html"]);
    let words = String::from_utf8(output.stdout).unwrap();
    let at = |part: &str| words.find(part).unwrap_or_else(|| panic!("{part}: {words}"));
    let parts = ["\nclient  ", "\n  client/everyone  ", "\nclient-api  "].map(at);
    assert!(parts.is_sorted(), "{words}");
    let page = fs::read_to_string(folder.0.path().join("report.html")).unwrap();
    assert!(page.contains("<td>\u{2003}\u{2003}client/everyone</td>"), "{page}");
}

/// The price is 1 for input, a tenth for cached input, and 4 for output.
#[test]
fn model_budgets_are_charged_the_logged_tokens() {
    let call = |second: u64, input: u64, cached: u64, output: u64| {
        format!(
            "{{\"at\": \"2026-11-22T00:00:0{second}Z\", \"client\": \"203.0.113.7\", \
             \"method\": \"POST\", \"path\": \"/v1/chat/completions\", \"model\": \"m-2026-11-20\", \
             \"usage\": {{\"in\": {input}, \"cached\": {cached}, \"out\": {output}}}}}\n"
        )
    };
    let folder =
        Folder::new(&[call(0, 50, 0, 10), call(1, 50, 50, 10), call(2, 30, 0, 0)].concat());
    folder.write(
        "limits.yaml",
        "rateLimiter:
  target: http://localhost:1
  llm:
    tokensPerMinute: 100
    monthlyBudget: 1
    models:
      m: {input: 1, cachedInput: 0.1, output: 4}
      other: {input: 100, output: 100}
",
    );
    let format = "json:time=at,address=client,method=method,target=path,model=model,\
                  input_tokens=usage.in,cached_tokens=usage.cached,output_tokens=usage.out";
    let report = folder.json(&["--log", format]);
    assert_eq!(counts(&report["policies"]["tokens"]), [3, 150, 2, 1]);
    assert_eq!(report["policies"]["budget"]["units"], 90 + 45 + 30, "{report}");
    // Without tokens in the log, these budgets are not replayed.
    let report = folder.json(&["--log", "json:time=at,address=client,method=method,target=path"]);
    assert_eq!(report["policies"].as_object().unwrap().len(), 0, "{report}");
}

struct Folder(TempDir);

impl Folder {
    fn new(log: &str) -> Self {
        let folder = Self(TempDir::new().unwrap());
        folder.write("limits.yaml", LIMITS);
        folder.write("access.log", log);
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn tollgate(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(arguments).current_dir(self.0.path()).output().unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let mut all = vec!["replay", "limits.yaml", "access.log", "--format", "json"];
        all.extend(arguments);
        let output = self.tollgate(&all);
        assert!(output.status.success(), "{output:?}");
        assert!(output.stderr.is_empty(), "no progress in a pipe: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

fn counts(of: &Value) -> [u64; 4] {
    ["requests", "units", "allowed", "denied"].map(|name| of[name].as_u64().unwrap())
}

/// Covers every kind of request: exempt, blocked, allowed, and limited by one or two policies.
fn log() -> String {
    let mut log = String::new();
    for (second, address, path) in [
        (0, "203.0.113.7", "/healthz"),
        (1, "198.51.100.9", "/"),
        (2, "192.0.2.1", "/"),
        (3, "203.0.113.7", "/"),
        (4, "203.0.113.7", "/login"),
        (5, "203.0.113.7", "/%6cogin"),
        (6, "203.0.113.8", "/login"),
        (7, "203.0.113.8", "/login"),
        (8, "203.0.113.9", "/"),
        (9, "203.0.113.9", "/"),
        (10, "203.0.113.10", "/"),
        (70, "203.0.113.7", "/login"),
    ] {
        log.push_str(&line(second, address, path));
    }
    log + "this is no line of a log\n"
}

#[test]
fn lines_meet_the_same_limits_as_requests() {
    let report = Folder::new(&log()).json(&[]);
    assert_eq!((report["lines"].as_u64(), report["unreadable"].as_u64()), (Some(13), Some(1)));
    assert_eq!(counts(&report["policies"]["client"]), [9, 9, 8, 1]);
    assert_eq!(counts(&report["policies"]["login"]), [5, 5, 3, 2]);
    assert_eq!(counts(&report["policies"]["global"]), [9, 9, 8, 1]);
    assert_eq!((report["clients"].as_u64(), report["clients_denied"].as_u64()), (Some(6), Some(4)));
    assert_eq!((report["denied"].as_u64(), report["forbidden"].as_u64()), (Some(4), Some(1)));
    assert_eq!(report["exact"], true);
    let shown = report["unreadable_lines"][0].as_str().unwrap();
    assert!(shown.starts_with("line 13 of access.log: "), "{shown}");
}

/// The API key is `foo`.
const LISTED: &str = "rateLimiter:
  target: http://localhost:1
  identity: [user, ip]
  jwt: {secret: a-secret-of-at-least-32-characters}
  global: {strategy: sliding_window_log, limit: 9, windowSeconds: 60}
  deny:
    addresses: [198.51.100.0/24]
    apiKeys: [{sha256: 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae}]
    users: [mallory]
";

#[test]
fn blocklists_match_users_and_api_keys() {
    let folder = Folder::new("");
    folder.write("limits.yaml", LISTED);
    let mut log = String::new();
    for (user, key) in [("mallory", "-"), ("-", "foo"), ("-", "bar"), ("ann", "-")] {
        let line = json!({ "t": 1, "m": "GET", "u": "/", "s": 200, "user": user, "key": key });
        writeln!(log, "{line}").unwrap();
    }
    folder.write("access.log", &log);
    let format = "json:time=t,method=m,target=u,status=s,user=user,header.x-api-key=key";
    let report = folder.json(&["--log", format]);
    assert_eq!(report["forbidden"], 2, "{report}");
}

#[test]
fn invalid_requests_are_not_charged() {
    let mut log = String::new();
    for (method, host) in [
        ("TRACE", "a"),
        ("trace", "a"),
        ("CONNECT", "a"),
        ("GET", "a b"),
        ("GET", "user@a"),
        ("GET", "a,b"),
        ("GET", "a:99999"),
        ("GET", "a"),
        ("GET", "[::1]:80"),
        ("GET", "-"),
    ] {
        let line = json!({ "t": 1, "ip": "203.0.113.7", "m": method, "u": "/", "h": host });
        writeln!(log, "{line}").unwrap();
    }
    let folder = Folder::new(&log);
    let report = folder.json(&["--log", "json:time=t,address=ip,method=m,target=u,host=h"]);
    assert_eq!(counts(&report["policies"]["global"])[0], 3, "{report}");
    assert_eq!(report["routes"]["(bad method)"]["requests"], 3, "{report}");
    assert_eq!(report["routes"]["(bad host)"]["requests"], 4, "{report}");
}

#[test]
fn clients_may_be_named_in_the_query() {
    let line = |id: &str| {
        json!({ "t": 1, "ip": "203.0.113.7", "m": "GET", "u": format!("/?id={id}") }).to_string()
    };
    let folder = Folder::new(&["ann", "bob", "ann"].map(line).join("\n"));
    folder.write(
        "limits.yaml",
        "rateLimiter:
  target: http://localhost:1
  identity: {key: query, name: id}
  client: {limit: 1, windowSeconds: 60}
",
    );
    let format = "json:time=t,address=ip,method=m,target=u";
    let arguments = ["replay", "limits.yaml", "access.log", "--format", "json", "--log", format];
    // The command warns that clients can write any value.
    let output = folder.tollgate(&arguments);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["clients"], &report["without_client"]), (&json!(2), &json!(0)), "{report}");
    assert_eq!(counts(&report["policies"]["client"]), [3, 3, 2, 1], "{report}");
}

#[test]
fn text_report_has_the_same_numbers() {
    let output = Folder::new(&log()).tollgate(&["replay", "limits.yaml", "access.log"]);
    let words = String::from_utf8(output.stdout).unwrap();
    for part in [
        "13 lines, from 2026-11-22T00:00:00Z to 2026-11-22T00:01:10Z\n",
        "1 cannot be read:\n  line 13 of access.log",
        "4 of 6 clients would have been denied: 4 of 12 requests (33.33 %)",
        "denied before any limit: 1 request\n",
        "  203.0.113.10: 1 of 1 request, from 2026-11-22T00:00:10Z",
    ] {
        assert!(words.contains(part), "{part}\n{words}");
    }
}

#[test]
fn compare_lists_differing_requests() {
    let folder = Folder::new(&log());
    folder.write("other.yaml", &LIMITS.replace("limit: 5", "limit: 500"));
    let report = folder.json(&["--compare", "other.yaml"]);
    let differences = &report["differences"];
    assert_eq!(differences["denied_by_first_only"], 1);
    assert_eq!(differences["denied_by_second_only"], 0);
    assert_eq!(differences["most"][0]["client"], "203.0.113.10");
    let request = differences["requests"][0].as_str().unwrap();
    assert!(
        request.starts_with("line 11 of access.log: 2026-11-22T00:00:10Z GET / of 203.0.113.10"),
        "{request}"
    );
    assert_eq!(counts(&report["compared"]["policies"]["global"])[3], 0);
}

#[test]
fn anonymise_hides_clients_and_paths() {
    let secret = line(11, "203.0.113.11", "/reset/jane.doe?token=s3cret");
    let unreadable = line(12, "jane.example", "/");
    let folder = Folder::new(&(log() + &secret + &unreadable));
    folder.write("other.yaml", &LIMITS.replace("limit: 5", "limit: 500"));
    let arguments = ["--anonymise", "--compare", "other.yaml", "--html", "report.html"];
    let report = folder.json(&arguments).to_string();
    let page = fs::read_to_string(folder.0.path().join("report.html")).unwrap();
    let words =
        folder.tollgate(&[&["replay", "limits.yaml", "access.log"], &arguments[..]].concat());
    let words = String::from_utf8(words.stdout).unwrap();
    assert!(words.contains("GET (path hidden) of ip:#"), "{words}");
    for text in [report, page, words] {
        for part in ["203.0.113.", "jane", "s3cret", "this is no line"] {
            assert!(!text.contains(part), "{part}\n{text}");
        }
        assert!(text.contains("ip:#"), "{text}");
    }
    let strict =
        folder.tollgate(&["replay", "limits.yaml", "access.log", "--anonymise", "--strict"]);
    let told = String::from_utf8(strict.stderr).unwrap();
    assert!(told.contains("remote_addr is `…`, which is not the address of a client"), "{told}");
}

#[test]
fn terminal_escapes_of_clients_are_shown() {
    let folder = Folder::new("");
    folder.write("limits.yaml", &LISTED.replace("limit: 9", "limit: 1"));
    folder.write("other.yaml", LISTED);
    let line = |user: &str| json!({ "t": 1, "m": "GET", "u": "/%1b]0;x%07", "user": user });
    let log: String = ["ann", "bob\u{9b}2J\u{1b}[31m", "bob\u{9b}2J\u{1b}[31m"]
        .into_iter()
        .fold(String::new(), |log, user| format!("{log}{}\n", line(user)));
    folder.write("access.log", &log);
    for format in ["text", "json"] {
        let output = folder.tollgate(&[
            "replay",
            "limits.yaml",
            "access.log",
            "--log=json:time=t,method=m,target=u,user=user",
            "--compare=other.yaml",
            "--format",
            format,
        ]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("user:bob"), "{text}");
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    }
}

#[test]
fn reports_name_the_client_behind_a_proxy() {
    let folder = Folder::new("");
    let limits = LIMITS.replace("  exempt:", "  trustedProxies: [10.0.0.0/8]\n  exempt:");
    folder.write("behind.yaml", &limits);
    let line =
        |client: &str| json!({ "t": 1, "ip": "10.0.0.1", "m": "GET", "u": "/", "xff": client });
    let log = ["203.0.113.7", "2001:db8::1", "2001:db8::2", "2001:db8::3"]
        .into_iter()
        .fold(String::new(), |log, client| format!("{log}{}\n", line(client)));
    folder.write("access.log", &log);
    let format = "--log=json:time=t,address=ip,method=m,target=u,header.x-forwarded-for=xff";
    let report = |limits: &str| {
        let output = folder.tollgate(&["replay", limits, "access.log", format, "--format=json"]);
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let behind = report("behind.yaml");
    assert_eq!((behind["clients"].as_u64(), behind["not_forwarded"].as_u64()), (Some(2), Some(0)));
    assert_eq!(behind["denied_clients"][0]["client"], "2001:db8::/64");
    let peer = report("limits.yaml");
    assert_eq!((peer["clients"].as_u64(), peer["not_forwarded"].as_u64()), (Some(1), Some(4)));
    assert_eq!(peer["denied_clients"][0]["client"], "10.0.0.1");
}

#[test]
fn documented_examples_run() {
    let text = fs::read_to_string(root().join("docs/replay.md")).unwrap();
    let folder = Folder::new(&log());
    let mut commands = 0;
    for line in text.lines().filter(|line| line.starts_with("tollgate ")) {
        let words = line.split(" #").next().unwrap();
        let words =
            words.replace("other.yaml", "limits.yaml").replace("access.log.1.gz", "access.log");
        let script = format!("set -e; PATH={}:$PATH; {words}", folder.0.path().display());
        let link = folder.0.path().join("tollgate");
        let _ = std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_tollgate"), &link);
        let mut bash = Command::new("bash");
        let output = bash.args(["-c", &script]).current_dir(folder.0.path()).output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
        commands += 1;
    }
    assert!(commands >= 5, "{commands}");
}
