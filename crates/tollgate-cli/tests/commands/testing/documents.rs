//! The commands as the documents describe them.

use std::fs;

use serde_json::Value;

use super::LIMITS;
use crate::support::{Folder, root};

#[test]
fn worst_names_the_guarantees_that_allow_more() {
    let guarantees = fs::read_to_string(root().join("docs/guarantees.md")).unwrap();
    let folder = Folder::with(&[("limits.yaml", LIMITS)]);
    let worst = "worst limits.yaml --replicas 3 --redis-down 10s --failover --html worst.html";
    let report = folder.output(&worst.split(' ').collect::<Vec<_>>());
    let html = folder.read("worst.html");
    assert!(html.contains("<h2>login: at most 13 in any 60 s (proved)</h2>"), "{html}");
    assert!(html.contains("a failover</p>"), "{html}");
    // The outage adds a third of the quota at each gateway, and the failover another quota.
    assert!(report.contains("login: at most 13 in any 60 s (proved)"), "{report}");
    let allowed = report.lines().last().unwrap().split_once(": ").unwrap().1.split("; ");
    let mut rows = 0;
    for row in allowed {
        assert!(guarantees.contains(&format!("| {row} |")), "{row}");
        rows += 1;
    }
    assert_eq!(rows, 2);
    folder.write("limits.yaml", LIMITS.split("  store").next().unwrap());
    let report = folder.output(&["worst", "limits.yaml", "--replicas", "3"]);
    assert!(report.contains("login: at most 15 in any 60 s (proved)"), "{report}");
    let row = report.lines().last().unwrap().split_once(": ").unwrap().1;
    assert!(guarantees.contains(row), "{row}");
    let json: Value =
        serde_json::from_str(&folder.output(&["worst", "limits.yaml", "--format", "json"]))
            .unwrap();
    assert_eq!(json["worst"][1]["name"], "login");
    assert_eq!(
        (&json["worst"][1]["at_most"], &json["worst"][1]["proved"]),
        (&5.into(), &true.into())
    );
    let output = folder.tollgate(&["worst", "limits.yaml", "--failover"]);
    assert_eq!(output.status.code(), Some(2));
}

/// The commands and the test files of docs/testing-limits.md, in their order.
#[test]
fn guide_works_as_written() {
    let guide = fs::read_to_string(root().join("docs/testing-limits.md")).unwrap();
    let shared = "rateLimiter:\n  target: http://localhost:3000\n  client: {limit: 100, \
                  windowSeconds: 60}\n  store: {redis: {url: 'redis://localhost:6379'}}\n";
    let line = "203.0.113.1 - - [22/Nov/2026:00:00:00 +0000] \"GET / HTTP/1.1\" 200 5\n";
    let files = [("limits.yaml", ""), ("shared.yaml", shared), ("access.log", line)];
    let folder = Folder::with(&files);
    let (mut commands, mut files) = (0, 0);
    for block in guide.split("```").skip(1).step_by(2) {
        let (language, text) = block.split_once('\n').unwrap();
        match language {
            "sh" => {
                folder.write("before.yaml", &folder.read("limits.yaml"));
                let output = folder.run("bash", &["-e", "-c", text], &[]);
                assert!(output.status.success(), "{text}: {output:?}");
                commands += text.lines().count();
            }
            "yml" => {
                folder.write("own.test.yaml", text);
                folder.output(&["test", "own.test.yaml"]);
                files += 1;
            }
            _ => {}
        }
    }
    assert_eq!((commands, files), (6, 2));
    // The failure that the guide shows.
    let limits = folder.read("limits.yaml").replace("limit: 5\n", "limit: 6\n");
    folder.write("limits.yaml", &limits);
    let output = folder.tollgate(&["test", "limits.test.yaml"]);
    let report = String::from_utf8(output.stdout).unwrap();
    let shown = guide.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(report.contains(shown), "{report}");
}
