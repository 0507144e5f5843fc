//! `tollgate replay` and `tollgate suggest`, as a shell sees them.

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

/// Two requests a minute for each client, five for all, and one login.
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

/// A line for each kind of request: exempt, blocked, allowed, limited, limited twice.
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
fn each_line_meets_the_limits_that_a_request_would() {
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
fn lists_of_users_and_api_keys_apply_to_a_line_without_an_address() {
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
fn no_limit_counts_a_line_that_serve_refuses_before_the_limits() {
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
fn a_person_reads_the_same_numbers() {
    let output = Folder::new(&log()).tollgate(&["replay", "limits.yaml", "access.log"]);
    let words = String::from_utf8(output.stdout).unwrap();
    for part in [
        "13 lines, from 2026-11-22T00:00:00Z to 2026-11-22T00:01:10Z\n",
        "1 of them cannot be read:\n  line 13 of access.log",
        "4 of 6 clients would have been denied: 4 of 12 requests (33.33 %)",
        "denied before any limit: 1 request\n",
        "  203.0.113.10: 1 of 1 request, from 2026-11-22T00:00:10Z",
    ] {
        assert!(words.contains(part), "{part}\n{words}");
    }
}

#[test]
fn two_files_differ_on_requests_and_clients() {
    let folder = Folder::new(&log());
    folder.write("other.yaml", &LIMITS.replace("limit: 5", "limit: 500"));
    let report = folder.json(&["--compare", "other.yaml"]);
    let differences = &report["differences"];
    assert_eq!(differences["denied_by_first_only"], 1);
    assert_eq!(differences["denied_by_second_only"], 0);
    assert_eq!(differences["most"][0]["client"], "203.0.113.10");
    let request = differences["requests"][0].as_str().unwrap();
    assert!(
        request.starts_with("line 11: 2026-11-22T00:00:10Z GET / of 203.0.113.10"),
        "{request}"
    );
    assert_eq!(counts(&report["compared"]["policies"]["global"])[3], 0);
}

#[test]
fn nobody_is_named_where_names_are_hidden() {
    let folder = Folder::new(&log());
    folder.write("other.yaml", &LIMITS.replace("limit: 5", "limit: 500"));
    let arguments = ["--anonymise", "--compare", "other.yaml", "--html", "report.html"];
    let report = folder.json(&arguments).to_string();
    let page = fs::read_to_string(folder.0.path().join("report.html")).unwrap();
    for text in [report, page] {
        assert!(!text.contains("203.0.113."), "{text}");
        assert!(text.contains("ip:#"), "{text}");
    }
}

#[test]
fn bad_input_ends_with_2_in_words_and_leaves_nothing_behind() {
    let folder = Folder::new(&log());
    let day_before = line(0, "203.0.113.7", "/").replace("22/Nov", "21/Nov");
    folder.write("empty.log", "");
    folder.write("back.log", &(line(3, "203.0.113.7", "/") + &day_before));
    let binary: Vec<u8> =
        (0..100_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::write(folder.0.path().join("binary.log"), binary).unwrap();
    // Random enough that half of the compressed bytes hold many whole lines.
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
        (&["limits.yaml", "back.log"], "line 2 of back.log is 86403 s earlier"),
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
fn a_suggested_file_is_checked_and_denies_no_more_clients_than_it_says() {
    let mut log = String::new();
    for client in 1..=200_u64 {
        for request in 0..client.min(20) {
            let path = if request % 2 == 0 { "/".to_owned() } else { format!("/item/{request}") };
            log.push_str(&line(request * 3, &format!("203.0.113.{client}"), &path));
        }
    }
    // In the order of the times.
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
        // One client in a hundred for each of three limits.
        assert!(report["clients_denied"].as_u64().unwrap() <= 6, "{report}");
        assert_eq!(counts(&report["policies"]["global"])[3], 0);
    }
}

#[test]
fn a_compressed_log_and_several_logs_are_one() {
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

/// nginx, which writes a log in each of three formats. It ends when dropped.
struct Nginx(Child);

/// On a Unix socket, so that no other program has its port.
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
        // Its worker ends with it only if it is asked to end.
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

#[test]
fn logs_that_nginx_writes_are_read_whatever_clients_send() {
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
    // The greeting of TLS, and a request without a version.
    ask(b"\x16\x03\x01\x02\x00\x01\xfc\x03\x03\r\n");
    ask(b"GET /http09\r\n");
    // Its logs are whole when it has ended.
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
        // `/b\s` has no normal form; each other path counts, and both logins are too many.
        assert_eq!(self::counts(&report["policies"]["client"]), [4, 4, 2, 2], "{report}\n{text}");
    }
}

#[test]
fn the_examples_of_the_documentation_run() {
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
