//! Mistakes that tests find, and the commands as the documents describe them. `cases/tests.txt` has
//! the tests' expectations.

mod documents;
mod watch;

use crate::support::Folder;

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

#[test]
fn seeded_mistakes_are_caught() {
    let folder = Folder::with(&[("limits.yaml", LIMITS)]);
    let tests = folder.output(&["init", "--test", "limits.yaml"]);
    folder.write("limits.test.yaml", &tests);
    assert!(folder.output(&["check", "--strict", "limits.yaml"]).contains("login"));
    let report = folder.output(&["test", "limits.test.yaml"]);
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
        let check = folder.tollgate(&["check", "--strict", "limits.yaml"]);
        let test = folder.tollgate(&["test", "limits.test.yaml"]);
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
