//! The `tollgate replay` and `tollgate suggest` commands.

use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

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

/// The price is 1 for input, a tenth for cached input, and 4 for output.
#[test]
fn model_budgets_are_charged_the_logged_tokens() {
    let call = |second: u64, input: u64, cached: u64, output: u64| {
        format!(
            "{{\"at\": \"2026-11-22T00:00:0{second}Z\", \"client\": \"203.0.113.7\", \
             \"method\": \"POST\", \"path\": \"/v1/chat/completions\", \"model\": \"m-2026\", \
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
    // A log without tokens says nothing about these budgets.
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

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.path().join(name), text).unwrap();
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
fn devices_are_not_replaced_by_reports() {
    let folder = Folder::new(&log());
    // Through a link, so a program that replaces its target replaces only the link.
    std::os::unix::fs::symlink("/dev/full", folder.0.path().join("report")).unwrap();
    for arguments in [
        &["suggest", "access.log", "-o", "report"][..],
        &["replay", "limits.yaml", "access.log", "--html", "report"],
    ] {
        let output = folder.tollgate(arguments);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.starts_with("error: cannot write report: No space left on device"), "{told}");
    }
    assert!(folder.0.path().join("report").is_symlink());
}

#[test]
fn terminal_escapes_of_clients_are_shown() {
    let folder = Folder::new("");
    folder.write("limits.yaml", &LISTED.replace("limit: 9", "limit: 1"));
    folder.write("other.yaml", LISTED);
    let line = |user: &str| json!({ "t": 1, "m": "GET", "u": "/\u{1b}]0;x\u{7}", "user": user });
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
fn suggest_names_a_header_that_no_line_has() {
    let folder = Folder::new("");
    let line = |header: &str| {
        format!("{{\"t\":1,\"ip\":\"10.0.0.1\",\"m\":\"GET\",\"u\":\"/\"{header}}}\n")
    };
    folder.write("without.log", &line(""));
    folder.write("with.log", &(line("") + &line(r#","h":"203.0.113.7""#)));
    let suggest = |log: &str, fields: &str| {
        let format = format!("--log=json:time=t,address=ip,method=m,target=u{fields}");
        let options = ["--trusted-proxies=10.0.0.0/8", "--header=X-Client"];
        let output = folder.tollgate(&[&["suggest", log, &format], &options[..]].concat());
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, told) = suggest("without.log", "");
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("no line has the header `X-Client`"), "{told}");
    assert_eq!(suggest("with.log", ",header.x-client=h").0, Some(0));
}

#[test]
fn full_disk_fails_but_closed_pipe_succeeds() {
    let folder = Folder::new(&log());
    let run = |stdout: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["replay", "limits.yaml", "access.log"]).current_dir(folder.0.path());
        command.stdout(stdout).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap()
    };
    let full = run(fs::OpenOptions::new().write(true).open("/dev/full").unwrap().into());
    let told = String::from_utf8(full.stderr).unwrap();
    assert_eq!(full.status.code(), Some(1), "{told}");
    assert!(told.starts_with("error: cannot write the output: No space left"), "{told}");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let closed = run(writer.into());
    assert_eq!((closed.status.code(), closed.stderr), (Some(0), Vec::new()));
}

#[test]
fn bad_input_exits_with_2_and_writes_no_report() {
    let folder = Folder::new(&log());
    let day_before = line(0, "203.0.113.7", "/").replace("22/Nov", "21/Nov");
    folder.write("empty.log", "");
    let back = line(3, "203.0.113.7", "/").repeat(20) + &day_before.repeat(20);
    folder.write("back.log", &back);
    folder.write("hosts.log", &line(3, "crawl-66.example.com", "/"));
    folder.write("quoted.log", &format!("\"{}", line(3, "203.0.113.7", "/")));
    folder.write("own.log", "{\"t\": 1, \"m\": \"GET\", \"u\": \"/\"}\n");
    let binary: Vec<u8> =
        (0..100_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::write(folder.0.path().join("binary.log"), binary).unwrap();
    // Random enough that the first half of the compressed file contains many complete lines.
    let long: String = (0..50_000).map(|n| line(n / 20, "203.0.113.7", &format!("/{n}"))).collect();
    folder.write("cut.log", &long);
    for compressor in ["gzip", "zstd"] {
        let output =
            Command::new(compressor).args(["-c", "cut.log"]).current_dir(folder.0.path()).output();
        let bytes = output.unwrap().stdout;
        let name = format!("cut.{compressor}");
        fs::write(folder.0.path().join(name), &bytes[..bytes.len() / 2]).unwrap();
    }
    for (arguments, expected) in [
        (&["limits.yaml", "empty.log"][..], "empty.log has no lines"),
        (&["limits.yaml", "."], "it is a directory"),
        (&["limits.yaml", "nowhere.log"], "cannot open nowhere.log"),
        (&["limits.yaml", "limits.yaml"], "can be read as a common or combined log"),
        (&["limits.yaml", "binary.log"], "of binary.log can be read as a common or combined log"),
        (&["limits.yaml", "cut.gzip"], "cannot read cut.gzip behind line "),
        (&["limits.yaml", "cut.zstd"], "cannot read cut.zstd behind line "),
        (&["limits.yaml", "access.log", "--log", "caddy"], "it is not a JSON object"),
        (&["limits.yaml", "back.log"], "line 21 of back.log is 86403 s earlier"),
        (
            &["limits.yaml", "hosts.log"],
            "its remote_addr is `crawl-66.example.com`, which is not the",
        ),
        (&["limits.yaml", "quoted.log"], "which is not the address of a client; name its format"),
        (
            &["limits.yaml", "own.log", "--log", "json:time=t,method=m,target=u"],
            "no request has a client",
        ),
        (
            &["limits.yaml", "own.log", "--log", "json:time=t,method=m,target=u,user=who"],
            "no line of own.log has the field `who`; correct its name in --log",
        ),
        (
            &["limits.yaml", "own.log", "--log", "json:time=t,target=u"],
            "no method in the format; add",
        ),
        (&["limits.yaml", "access.log", "--strict"], "line 13 of access.log cannot be read"),
        (&["limits.yaml", "access.log", "--log", "apache"], "`apache` is not a log format"),
        (&["nowhere.yaml", "access.log"], "nowhere.yaml"),
        (&["limits.yaml", "access.log", "--compare", "access.log"], "error"),
        (&["limits.yaml", "access.log", "--html", "no/such/report.html"], "cannot write no/such"),
    ] {
        let mut all = vec!["replay"];
        all.extend(arguments);
        if !arguments.contains(&"--html") {
            all.extend(["--html", "report.html"]);
        }
        let output = folder.tollgate(&all);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {told}");
        assert!(told.contains(expected), "{arguments:?}: {told}");
        assert!(output.stdout.is_empty());
        let left = fs::read_dir(folder.0.path()).unwrap().map(|it| it.unwrap().file_name());
        assert!(left.into_iter().all(|name| !name.to_str().unwrap().starts_with("report")));
    }
}

#[test]
fn suggested_file_denies_few_clients() {
    let mut log = String::new();
    for client in 1..=200_u64 {
        for request in 0..client.min(20) {
            let path = if request % 2 == 0 { "/".to_owned() } else { format!("/item/{request}") };
            log.push_str(&line(request * 3, &format!("203.0.113.{client}"), &path));
        }
    }
    // Logs must be in chronological order.
    let mut lines: Vec<_> = log.lines().collect();
    lines.sort_by_key(|line| line[line.find('[').unwrap()..].to_owned());
    let folder = Folder::new(&(lines.join("\n") + "\n"));
    for shape in ["token-bucket", "sliding-window-log"] {
        let arguments = ["suggest", "access.log", "--algorithm", shape, "--level", "99"];
        let output = folder.tollgate(&arguments);
        let file = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{file}");
        folder.write("suggested.yaml", &file);
        let check = folder.tollgate(&["check", "--strict", "suggested.yaml"]);
        assert!(check.status.success(), "{check:?}\n{file}");
        let basis = "# from 2026-11-22T00:00:00Z to 2026-11-22T00:00:57Z: 1 day, 200 clients.";
        for part in [basis, "value: '^/item/[^/]+$'", "# 99.99 % of clients: ", "# Replayed: "] {
            assert!(file.contains(part), "{part}\n{file}");
        }
        let replayed =
            folder.tollgate(&["replay", "suggested.yaml", "access.log", "--format", "json"]);
        let report: Value = serde_json::from_slice(&replayed.stdout).unwrap();
        // Together, the three limits may deny at most 1 % of the clients.
        assert!(report["clients_denied"].as_u64().unwrap() <= 2, "{report}");
        assert_eq!(counts(&report["policies"]["global"])[3], 0);
    }
}

/// The comment in a suggested file that states a route's requests and clients.
fn basis<'a>(file: &'a str, route: &str) -> &'a str {
    let start = format!("    # {route}: ");
    let basis = file.lines().find_map(|line| line.strip_prefix(&*start));
    basis.unwrap_or_else(|| panic!("{file}"))
}

#[test]
fn route_limits_fit_their_requests() {
    let mut log = String::new();
    for client in 1..=50_u64 {
        let address = format!("203.0.113.{client}");
        log += &line(client, &address, &format!("/item/{client}"));
        log += &line(client, &address, "/item/unknown").replace(" 200 ", " 404 ");
        log += &line(client, &address, "/item/7").replace("GET", "OPTIONS");
        log += &line(client, &address, "http://shop.example/item/8");
        log += &line(client, &address, "/a/../item//%39?x");
        log += &line(client, &address, "/item/");
        log += &line(client, &address, "/item/7").replace("GET", "get it");
    }
    for scan in 0..100_u64 {
        log += &line(60, "198.51.100.1", &format!("/scan-{scan}.php")).replace(" 200 ", " 404 ");
    }
    let folder = Folder::new(&log);
    let output = folder.tollgate(&["suggest", "access.log", "-o", "limits.yaml", "--level=99.99"]);
    assert!(output.status.success(), "{output:?}");
    let file = fs::read_to_string(folder.0.path().join("limits.yaml")).unwrap();
    assert!(
        !file.contains("scan") && !file.contains("path: {expression: regex, value: '^/[^/]+$'}")
    );
    let report = folder.json(&[]);
    assert_eq!(report["denied"], 0, "{file}");
    for (route, policy) in [("/item/", "item-1"), ("/item/{id}", "item-2")] {
        let requests = report["policies"][policy]["requests"].as_u64().unwrap();
        assert!(requests >= 50, "{file}");
        assert_eq!(basis(&file, route), format!("{requests} requests of 50 clients."), "{file}");
    }
    assert!(file.contains("# - 150 requests failed."), "{file}");
    assert!(
        file.contains("What 99.99 % of many clients need: of 51 clients, this includes"),
        "{file}"
    );
}

#[test]
fn suggest_identifies_clients_like_replay() {
    let folder = Folder::new("");
    let line = |second: u64, user: &str, client: &str| json!({ "t": second, "ip": "10.0.0.1", "m": "GET", "u": "/", "s": 200, "who": user, "xff": client });
    let log: String = (0..100)
        .map(|n| {
            let (user, client) = (format!("user-{}", n % 20), format!("203.0.113.{}", n % 50));
            format!("{}\n", line(n, &user, &client))
        })
        .collect();
    folder.write("access.log", &log);
    let format = "--log=json:time=t,address=ip,method=m,target=u,status=s,user=who,\
                  header.x-forwarded-for=xff";
    for (options, clients, parts) in [
        (&[][..], 1, &["100 requests with X-Forwarded-For", "Users: 100 requests have a user"][..]),
        (&["--trusted-proxies=10.0.0.0/8"], 50, &["  trustedProxies: ['10.0.0.0/8']"]),
        (
            &["--trusted-proxies=10.0.0.0/8", "--header=X-Forwarded-For", "--users"],
            20,
            &["  identity: [user, {key: ip, header: 'X-Forwarded-For'}]", "${JWT_SECRET}"],
        ),
    ] {
        let mut arguments = vec!["suggest", "access.log", format];
        arguments.extend(options);
        let output = folder.tollgate(&arguments);
        let file = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{:?}", String::from_utf8(output.stderr));
        let basis = format!("Z: 1 day, {clients} client");
        let replayed = "would have been denied.\n#   client: 0 of 100 requests";
        for part in [&*basis, replayed].into_iter().chain(parts.iter().copied()) {
            assert!(file.contains(part), "{part}\n{file}");
        }
        let file = file.replace("${JWT_SECRET}", &"s".repeat(32));
        folder.write("limits.yaml", &file);
        let report = folder.json(&[format]);
        assert_eq!(
            (report["clients"].as_u64(), report["denied"].as_u64()),
            (Some(clients), Some(0))
        );
    }
}

#[test]
fn unusable_logs_and_options_are_rejected() {
    let folder = Folder::new(&line(3, "crawl-66.example.com", "/"));
    folder.write("own.log", "{\"t\": 1, \"m\": \"GET\", \"u\": \"/\"}\n");
    let request = line(3, "203.0.113.9", "/");
    folder.write("preflights.log", &request.replace("GET", "OPTIONS"));
    folder.write("bytes.log", &request.replace("GET /", "\\x16\\x03"));
    for (arguments, expected) in [
        (&["suggest", "access.log"][..], "its remote_addr is `crawl-66.example.com`"),
        (&["suggest", "own.log", "--log=json:time=t,method=m,target=u"], "no request has a client"),
        (&["suggest", "preflights.log"], "no limit charges any line: they are preflights"),
        (&["suggest", "bytes.log"], "no limit charges any line"),
        (&["replay", "limits.yaml", "bytes.log"], "no limit charges any line"),
        (&["suggest", "access.log", "--window=500ms"], "expected whole seconds such as 60s"),
        (&["suggest", "access.log", "--pattern=item/{id}"], "expected a path such as /item/{id}"),
    ] {
        let output = folder.tollgate(arguments);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(expected) && output.stdout.is_empty(), "{told}");
    }
}

#[test]
fn split_and_compressed_logs_are_merged() {
    let folder = Folder::new(&log());
    let all: Vec<_> = log().lines().map(str::to_owned).collect();
    let (one, two) = all.split_at(6);
    for (name, lines) in [("one.log", one), ("two.log", two)] {
        let text = lines.iter().fold(String::new(), |mut text, line| {
            let _ = writeln!(text, "{line}");
            text
        });
        folder.write(name, &text);
    }
    let gzip = Command::new("gzip").arg("two.log").current_dir(folder.0.path()).status().unwrap();
    assert!(gzip.success() && !Path::new("two.log").exists());
    let arguments = ["replay", "limits.yaml", "two.log.gz", "one.log", "--format", "json"];
    let output = folder.tollgate(&arguments);
    let parts: Value = serde_json::from_slice(&output.stdout).unwrap();
    let whole = folder.json(&[]);
    for name in ["lines", "requests", "denied", "clients_denied", "policies", "routes"] {
        assert_eq!(parts[name], whole[name], "{name}");
    }
}

/// An nginx that logs each request in three formats. Dropping this value stops it.
struct Nginx(Child);

/// Listens on a Unix socket to avoid port conflicts.
const NGINX: &str = r#"daemon off; pid nginx.pid; error_log stderr;
events {}
http {
  log_format custom '$remote_addr [$time_iso8601] "$request" $status $request_time "$http_x_api_key"';
  log_format json escape=json '{"time_iso8601":"$time_iso8601","remote_addr":"$remote_addr",'
    '"request":"$request","status":"$status","request_time":"$request_time"}';
  client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4;
  scgi_temp_path t5;
  server {
    listen unix:nginx.sock;
    set_real_ip_from unix:;
    real_ip_header X-Forwarded-For;
    access_log combined.log combined; access_log custom.log custom; access_log json.log json;
    location / { return 200 "ok"; }
  }
}
"#;

impl Nginx {
    fn start(folder: &Folder) -> Self {
        folder.write("nginx.conf", NGINX);
        let mut nginx = Command::new("nginx");
        nginx.args(["-p", ".", "-c", "nginx.conf", "-e", "stderr"]).current_dir(folder.0.path());
        let nginx = Self(nginx.stdin(Stdio::null()).spawn().expect("sudo apt-get install nginx"));
        let start = Instant::now();
        while UnixStream::connect(folder.0.path().join("nginx.sock")).is_err() {
            assert!(start.elapsed() < Duration::from_secs(60), "nginx does not listen");
            thread::sleep(Duration::from_millis(20));
        }
        nginx
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SIGTERM also stops the worker; SIGKILL would orphan it.
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

#[test]
fn nginx_logs_are_readable() {
    let folder = Folder::new("");
    let nginx = Nginx::start(&folder);
    let ask = |request: &[u8]| {
        let mut stream = UnixStream::connect(folder.0.path().join("nginx.sock")).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert!(!answer.is_empty());
    };
    for target in [&b"/a?b=1"[..], b"/q\"uote", b"/\xff\xfe", b"/b\\s", b"/login", b"/%6cogin"] {
        let fields = b" HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 203.0.113.7\r\nX-Api-Key: k\"7\\\r\nConnection: close\r\n\r\n";
        ask(&[b"GET ", target, fields].concat());
    }
    // A TLS handshake, and an HTTP/0.9 request without a version.
    ask(b"\x16\x03\x01\x02\x00\x01\xfc\x03\x03\r\n");
    ask(b"GET /http09\r\n");
    // nginx flushes its logs when it exits.
    drop(nginx);
    let custom =
        r#"$remote_addr [$time_iso8601] "$request" $status $request_time "$http_x_api_key""#;
    for (log, format) in [("combined", "combined"), ("custom", custom), ("json", "auto")] {
        let log = format!("{log}.log");
        let arguments = ["replay", "limits.yaml", &log, "--log", format, "--format", "json"];
        let output = folder.tollgate(&arguments);
        assert!(output.status.success(), "{log}: {output:?}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let text = fs::read_to_string(folder.0.path().join(&log)).unwrap_or_default();
        let counts =
            ["lines", "unreadable", "requests", "clients"].map(|it| report[it].as_u64().unwrap());
        assert_eq!(counts, [8, 0, 8, 1], "{report}\n{text}");
        assert_eq!(report["routes"]["(not HTTP)"]["requests"], 2, "{report}\n{text}");
        // Ambiguous paths such as `/b\s` are not charged, and the limit denies both logins.
        assert_eq!(self::counts(&report["policies"]["client"]), [4, 4, 2, 2], "{report}\n{text}");
    }
}

#[test]
fn documented_formats_are_valid() {
    let text = fs::read_to_string(root().join("docs/replay.md")).unwrap();
    let table = text.split("| `--log` | lines |").nth(1).unwrap().split("\n\n").next().unwrap();
    let formats: Vec<&str> = table
        .lines()
        .filter_map(|row| row.strip_prefix("| `")?.split(" |").next())
        .flat_map(|cell| cell.split('`').step_by(2))
        .map(|format| format.trim_matches('\''))
        .filter(|format| !format.is_empty() && !format.starts_with(" ("))
        .collect();
    assert!(formats.len() >= 10, "{formats:?}");
    let folder = Folder::new(&log());
    for format in formats {
        let output = folder.tollgate(&["replay", "limits.yaml", "access.log", "--log", format]);
        let told = String::from_utf8(output.stderr).unwrap();
        // The log has another format, so only errors in the format itself count.
        assert!(!told.contains("in the format") && !told.contains("not a log format"), "{told}");
    }
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
