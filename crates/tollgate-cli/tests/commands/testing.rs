//! `tollgate test`, `tollgate worst` and `tollgate init --test`.

mod documents;
mod watch;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// Behind a proxy, with a quota for each client, logins and items.
const LIMITS: &str = r"rateLimiter:
  target: http://localhost:3000
  trustedProxies: [10.0.0.0/8]
  strategy: sliding_window_log
  client: {limit: 100, windowSeconds: 60}
  apis:
    - {identifier: login, path: /login, method: POST, limit: 5, windowSeconds: 60}
    - identifier: items
      path: {expression: regex, value: '^/items/\d+$'}
      share: 1/10
  exempt: [/healthz]
  costs: {POST: 1}
  store: {redis: {url: 'redis://localhost:6379', localShare: 1/3}}
";

struct Folder(TempDir);

impl Folder {
    fn new(limits: &str) -> Self {
        let folder = Self(TempDir::new().unwrap());
        folder.write("limits.yaml", limits);
        folder
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.file(name), text).unwrap();
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).unwrap()
    }

    fn tollgate(&self, arguments: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(arguments.split_whitespace()).current_dir(self.0.path()).output().unwrap()
    }

    /// Runs a command that succeeds, and returns its output.
    fn output(&self, arguments: &str) -> String {
        let output = self.tollgate(arguments);
        assert!(output.status.success(), "{arguments}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs these tests of the limits.
    fn test(&self, tests: &str, arguments: &str) -> (Option<i32>, String) {
        self.write("limits.test.yaml", &format!("limits: limits.yaml\ntests:\n{tests}"));
        let output = self.tollgate(&format!("test limits.test.yaml {arguments}"));
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.code(), text + &String::from_utf8(output.stderr).unwrap())
    }
}

#[test]
fn seeded_mistakes_are_caught() {
    let folder = Folder::new(LIMITS);
    let tests = folder.output("init --test limits.yaml");
    folder.write("limits.test.yaml", &tests);
    assert!(folder.output("check --strict limits.yaml").contains("login"));
    let report = folder.output("test limits.test.yaml");
    assert!(report.contains("0 failed"), "{tests}{report}");

    for (mistake, correct, wrong, command) in [
        ("the proxy's address as client", "  trustedProxies: [10.0.0.0/8]\n", "", "test"),
        ("a longer window", "100, windowSeconds: 60}", "100, windowSeconds: 60000}", "test"),
        ("a shorter window", "100, windowSeconds: 60}", "100, window: 60ms}", "worst"),
        ("shadow left on", "  apis:", "  shadow: true\n  apis:", "test"),
        ("a regex that never matches", r"'^/items/\d+$'", r"'^items/\d+$'", "check"),
        ("a regex that matches other paths", r"'^/items/\d+$'", r"'^/item/\d+$'", "test"),
        ("a cost above the capacity", "{POST: 1}", "{POST: 50}", "check"),
        ("a share of nothing", "1/10", "1/1000", "test"),
        (
            "a limit per replica",
            "{redis: {url: 'redis://localhost:6379', localShare: 1/3}}",
            "memory",
            "test",
        ),
        ("limits that cancel", "{limit: 100,", "{limit: 4,", "test"),
        ("a fixed share that is too large", "1/3", "1/1", "worst"),
        ("an exempt path that is too wide", "[/healthz]", "[/healthz, /items/*]", "test"),
    ] {
        assert_eq!(LIMITS.matches(correct).count(), 1, "{mistake}");
        folder.write("limits.yaml", &LIMITS.replace(correct, wrong));
        let check = folder.tollgate("check --strict limits.yaml");
        let test = folder.tollgate("test limits.test.yaml");
        let report = String::from_utf8(test.stdout).unwrap();
        let caught = match (check.status.code(), test.status.code()) {
            (Some(2), _) => "check",
            (Some(0), Some(1)) if report.contains("FAIL") => {
                let failed = || report.lines().filter(|line| line.starts_with("FAIL"));
                let is_worst = |line: &str| line.contains("get through") || line.contains("gets");
                if failed().all(is_worst) { "worst" } else { "test" }
            }
            (check, test) => panic!("{mistake}: check {check:?}, test {test:?}\n{report}"),
        };
        assert_eq!(caught, command, "{mistake}:\n{report}");
    }
}

#[test]
fn failure_shows_the_shortest_history() {
    let folder = Folder::new(LIMITS);
    let (code, report) = folder.test(
        "  - name: logins
    requests:
      - {client: 198.51.100.1, path: /other, count: 50, every: 10ms}
      - {method: POST, path: /login, count: 8, every: 1s, expect: {status: 200}}
      - {method: POST, path: /login, at: 90s, expect: {status: 200}}
",
        "",
    );
    assert_eq!(code, Some(1), "{report}");
    let expected = "\
FAIL  logins
      requests[1]: expected 200, got 429
      time        request                         expected  got  policy  why
      0 s to 4 s  5 × POST /login of 203.0.113.1            200  login   0 of 5 left
      5 s         POST /login of 203.0.113.1      200       429  login   0 of 5 left, free in 55 s

1 test: 0 passed, 1 failed; 59 requests in ";
    assert!(report.starts_with(expected), "{report}");
}

#[test]
fn expectations_are_checked() {
    let folder = Folder::new(LIMITS);
    let login = "method: POST, path: /login";
    for (requests, expect, got) in [
        ("count: 6", "allowed: 5", None),
        ("count: 6", "allowed: at least 6", Some("expected at least 6 allowed, got 5 allowed")),
        ("count: 6", "denied: 0", Some("expected 0 denied, got 1 denied")),
        ("count: 6, clients: 3", "allowedPerClient: 5", None),
        ("user: ann, count: 3", "allowedPerClient: 2", Some("got 3 allowed for user ann")),
        (
            "count: 6, clients: 3",
            "allowedPerClient: at most 4",
            Some("got 5 allowed for 203.0.113.1"),
        ),
        ("count: 5", "remaining: 0", None),
        ("count: 4", "remaining: 0", Some("expected 0 remaining, got 1")),
        ("count: 6, every: 1s", "retryAfter: 55s, policy: login", None),
        ("count: 6, every: 1s", "retryAfter: 54s", Some("expected Retry-After 54 s, got 55 s")),
        ("count: 6", "policy: client", Some("expected client, got login")),
        ("count: 5", "policy: login", Some("got no denied request")),
        ("count: 6", "never: {moreThan: 5, in: 60s}", None),
        ("count: 9, every: 10s", "never: {moreThan: 5, in: 60s}", None),
        ("count: 9, every: 10s", "never: {moreThan: 2, in: 20s}", None),
        (
            "count: 9, every: 10s",
            "never: {moreThan: 1, in: 20s}",
            Some("got 2 allowed from 0 s on"),
        ),
        ("count: 6", "status: 200", Some("expected 200, got 429")),
    ] {
        let test =
            format!("  - name: a\n    requests: [{{{login}, {requests}, expect: {{{expect}}}}}]\n");
        let (code, report) = folder.test(&test, "");
        match got {
            None => assert_eq!(code, Some(0), "{requests}: {report}"),
            Some(got) => {
                assert_eq!(code, Some(1), "{requests}: {report}");
                assert!(report.contains(got), "{requests}: {report}");
            }
        }
    }
}

/// Three gateways, each with a third of five logins for a lost store: one each.
#[test]
fn faults_happen_at_their_time() {
    let folder = Folder::new(LIMITS);
    folder.write("tight.yaml", &LIMITS.replace("limit: 5", "limit: 2"));
    folder.write("closed.yaml", &LIMITS.replace("limit: 5", "limit: 5, onStoreError: closed"));
    folder.write("open.yaml", &LIMITS.replace("  store:", "  onStoreError: open\n  store:"));
    let requests = "{method: POST, path: /login, count: 60, every: 500ms";
    for (limits, faults, allowed) in [
        ("limits", "", 5),
        ("limits", "{at: 10s, storeLost: 10s}", 8),
        ("closed", "{at: 10s, storeLost: 10s}", 5),
        ("open", "{at: 10s, storeLost: 10s}", 25),
        ("limits", "{at: 10s, failover: 1h}", 10),
        // The fourth and the fifth login are lost.
        ("limits", "{at: 2100ms, failover: 1s}", 7),
        ("limits", "{at: 10s, clockForward: 60s}", 10),
        ("limits", "{at: 10s, clockBack: 500ms}", 5),
        ("tight", "{at: 10s, reload: limits.yaml}", 5),
    ] {
        let test = format!(
            "  - name: a\n    replicas: 3\n    faults: [{faults}]\n    requests: [{requests}}}]\n    \
             expect: {{allowed: {allowed}}}\n"
        );
        let test = if faults.is_empty() { test.replace("    faults: []\n", "") } else { test };
        folder.write("a.test.yaml", &format!("limits: {limits}.yaml\ntests:\n{test}"));
        let output = folder.tollgate("test a.test.yaml");
        let report = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(0), "{limits} {faults}: {report} {output:?}");
    }
}

#[test]
fn waiting_requests_and_thinking_clients() {
    let limits = "rateLimiter:
  target: http://localhost:3000
  client: {limit: 1, windowSeconds: 1, strategy: sliding_window_log, excess: {wait: 5s}}
";
    let folder = Folder::new(limits);
    for (requests, expect, passes) in [
        ("count: 3", "status: 200, maxWait: 2s", true),
        ("count: 3", "maxWait: 1s", false),
        ("count: 9", "denied: 3", true),
        // A client sends its next request 100 ms after an answer, which waits for the rest.
        ("think: 100ms, takes: 300ms, for: 10s", "allowed: 11, maxWait: 600ms", true),
        ("think: 100ms, takes: 300ms, for: 10s", "maxWait: 500ms", false),
        ("rate: 1/10s, for: 1h, clients: 10", "status: 200, allowed: 3400 to 3800", true),
    ] {
        let test = format!("  - name: a\n    requests: [{{{requests}, expect: {{{expect}}}}}]\n");
        let (code, report) = folder.test(&test, "");
        assert_eq!(code, Some(i32::from(!passes)), "{requests}: {report}");
    }
}

#[test]
fn formats_have_the_same_results() {
    let folder = Folder::new(LIMITS);
    let tests = "  - name: <passes>
    requests: [{path: /a, expect: {status: 200}}]
  - name: fails & shows
    requests: [{path: /a, expect: {status: 429}}]
";
    let (_, json) = folder.test(tests, "--format json");
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((json["tests"].as_u64(), json["failed"].as_u64()), (Some(2), Some(1)));
    let failure = &json["results"][1]["failures"][0];
    assert_eq!((&failure["expected"], &failure["got"]), (&"429".into(), &"200".into()));
    assert_eq!(failure["history"][0]["request"], "GET /a of 203.0.113.1");
    let (_, junit) = folder.test(tests, "--format junit --summary summary.md");
    assert!(junit.contains("tests=\"2\" failures=\"1\""), "{junit}");
    assert!(junit.contains("name=\"&lt;passes&gt;\" time=\""), "{junit}");
    assert!(junit.contains("<failure message=\"expected 429, got 200\">"), "{junit}");
    assert!(folder.read("summary.md").contains("**fails & shows**"));
    folder.test(tests, "--html report.html");
    let html = folder.read("report.html");
    for shown in
        ["<h2>fails &amp; shows: ", ": expected 429, got 200</h2>", "<td>&lt;passes&gt;</td>"]
    {
        assert!(html.contains(shown), "{html}");
    }
    let (code, text) = folder.test(tests, "--only passes");
    assert_eq!((code, text.contains("1 test: 1 passed")), (Some(0), true), "{text}");
}

#[test]
fn invalid_tests_name_their_cure() {
    let folder = Folder::new(
        &LIMITS.replace("{redis: {url: 'redis://localhost:6379', localShare: 1/3}}", "memory"),
    );
    for (tests, cure) in [
        ("  - {name: a, requests: [{pth: /a}]}\n", "did you mean `path`?"),
        ("  - {name: a, requests: [{count: 1, for: 1s}]}\n", "exclude each other"),
        ("  - {name: a, requests: [{rate: 10}]}\n", "such as 10/s"),
        ("  - {name: a, requests: [{expect: {allowed: 5 to 4}}]}\n", "4 to 5"),
        ("  - {name: a, requests: [{}], faults: [{at: 1s}]}\n", "faults[0] does nothing"),
        ("  - {name: a}\n", "it has no `requests` and no `worst`"),
        ("  - {name: a, requests: [{}]}\n", "it has no `expect`"),
        (
            "  - {name: a, requests: [{for: 1s, expect: {allowed: 1}}]}\n",
            "add `every`, `rate` or `think`",
        ),
        (
            "  - {name: a, requests: [{for: 1s, think: 0s, expect: {allowed: 1}}]}\n",
            "more than 10000 requests of a client at the same instant",
        ),
        ("  - {name: a, requests: [{}], expect: {retryAfter: 1500ms}}\n", "write `2s`"),
        (
            "  - {name: a, requests: [{}], faults: [{at: 1s, storeLost: 1s}]}\n",
            "the limits have `store: memory`",
        ),
        ("  - {name: a, worst: {atMost: 1, policy: b}}\n", "the policies are client, login, items"),
    ] {
        let (code, report) = folder.test(tests, "");
        assert!(code != Some(0), "{tests}: {report}");
        assert!(report.contains(cure), "{tests}: {report}");
    }
    folder.write("service.test.yaml", "tests: [{name: a, requests: [{}]}]\n");
    let output = folder.tollgate("test service.test.yaml");
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("service.test.yaml: write `limits: FILE`"), "{error}");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn generated_tests_use_the_identity() {
    for (identity, keys) in [
        ("", "client: 203.0.113.1, path"),
        (
            "  trustedProxies: [10.0.0.0/8]\n",
            "client: \"10.0.0.1\", header: \"X-Forwarded-For: 203",
        ),
        (
            "  identity: {key: header, name: X-Tenant}\n  onMissingKey: deny\n",
            "header: \"x-tenant: client-1\"",
        ),
        (
            "  identity: user\n  jwt: {secret: 0123456789abcdef0123456789abcdef}\n",
            "user: user-1, path",
        ),
    ] {
        let limits = format!(
            "rateLimiter:\n  target: http://localhost:3000\n{identity}  client: {{limit: 3, \
             windowSeconds: 60}}\n  global: {{limit: 10, windowSeconds: 60}}\n"
        );
        let folder = Folder::new(&limits);
        let tests = folder.output("init --test limits.yaml");
        assert!(tests.contains(keys) && !tests.contains("do not pass"), "{tests}");
        folder.write("limits.test.yaml", &tests);
        assert!(folder.output("test limits.test.yaml").contains("4 passed"), "{tests}");
    }
}
