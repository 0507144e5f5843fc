//! The gate for pull requests: the action and the pre-commit hooks.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use saphyr::{LoadableYamlNode, Yaml};

use crate::support::{Folder, root};

fn limits(limit: u32) -> String {
    format!(
        "rateLimiter:\n  target: http://localhost:3000\n  client: {{limit: {limit}, windowSeconds: \
         60, strategy: sliding_window_log}}\n"
    )
}

const TESTS: &str = "limits: limits.yaml
tests:
  - name: two requests pass
    requests: [{count: 2, expect: {status: 200}}]
";

/// 100 clients with two requests each, one of which sends three.
fn log() -> String {
    let mut log = String::new();
    for client in (1..=100).chain(1..=100).chain([1]) {
        let _ = writeln!(
            log,
            "203.0.113.{client} - - [22/Nov/2026:00:00:00 +0000] \"GET / HTTP/1.1\" 200 5"
        );
    }
    log
}

/// Limits, their tests and a log.
fn folder(limit: u32) -> Folder {
    let limits = limits(limit);
    Folder::with(&[("limits.yaml", &limits), ("limits.test.yaml", TESTS), ("access.log", &log())])
}

fn text<'a>(yaml: &'a Yaml<'_>, key: &str) -> &'a str {
    yaml.as_mapping_get(key).and_then(Yaml::as_str).unwrap_or_default()
}

/// Runs the steps of action.yml as GitHub does, until one fails. Returns the summary and the name of
/// the step that failed.
fn run_action(folder: &Folder, inputs: &[(&str, String)]) -> (String, Option<String>) {
    let action = fs::read_to_string(root().join("action.yml")).unwrap();
    let action = &Yaml::load_from_str(&action).unwrap()[0];
    let input = |name: &str| {
        let given = inputs.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone());
        given.unwrap_or_else(|| text(&action["inputs"][name], "default").to_owned())
    };
    let at = |name: &str| folder.path().join(name).display().to_string();
    let mut run = 0;
    for step in action["runs"]["steps"].as_vec().unwrap() {
        assert_eq!(text(step, "shell"), "bash");
        let needed = text(step, "if").strip_prefix("inputs.");
        if needed.is_some_and(|needed| input(needed.strip_suffix(" != ''").unwrap()).is_empty()) {
            continue;
        }
        let variables = step["env"].as_mapping().unwrap().iter().map(|(name, value)| {
            let value = value.as_str().unwrap();
            let value = value.strip_prefix("${{ inputs.").unwrap().strip_suffix(" }}").unwrap();
            (name.as_str().unwrap(), input(value))
        });
        let own = ["GITHUB_STEP_SUMMARY", "GITHUB_PATH"].map(|name| (name, at(name)));
        let temporary = ("RUNNER_TEMP", folder.path().display().to_string());
        let variables: Vec<_> = variables.chain(own).chain([temporary]).collect();
        let script = ["--noprofile", "--norc", "-eo", "pipefail", "-c", text(step, "run")];
        let output = folder.run("bash", &script, &variables);
        run += 1;
        if !output.status.success() {
            return (summary(folder), Some(text(step, "name").to_owned()));
        }
    }
    assert_eq!(run, 1 + inputs.iter().filter(|(name, _)| STEPS.contains(name)).count());
    (summary(folder), None)
}

/// The inputs that add a step.
const STEPS: [&str; 3] = ["version", "tests", "log"];

fn summary(folder: &Folder) -> String {
    fs::read_to_string(folder.path().join("GITHUB_STEP_SUMMARY")).unwrap_or_default()
}

#[test]
fn action_runs_check_test_and_replay() {
    let input = |name, value: &str| (name, value.to_owned());
    let all = [
        input("tests", "limits.test.yaml"),
        input("log", "access.log"),
        input("compare", "HEAD"),
        input("fail-if", "newly_denied_clients > 0"),
    ];
    let commit = |folder: &Folder| {
        let script = "git init -q && git add limits.yaml && git -c user.name=a -c user.email=a@b.c \
                      commit -qm limits";
        assert!(folder.run("bash", &["-c", script], &[]).status.success());
    };
    let folder = folder(3);
    commit(&folder);
    let (summary, failed) = run_action(&folder, &all);
    assert_eq!(failed, None, "{summary}");
    for part in ["### Limits", "### Tests of the limits", "1 test: 1 passed", "### Replay of the"] {
        assert!(summary.contains(part), "{summary}");
    }
    for (limit, failing) in [(2, "Replay the access log"), (1, "Test the limits")] {
        let folder = self::folder(3);
        commit(&folder);
        folder.write("limits.yaml", &limits(limit));
        let (summary, failed) = run_action(&folder, &all);
        assert_eq!(failed.as_deref(), Some(failing), "{summary}");
    }
    folder.write("limits.yaml", &limits(3).replace("limit", "limt"));
    let (summary, failed) = run_action(&folder, &all);
    assert_eq!(failed.as_deref(), Some("Check the limits"));
    assert!(summary.contains("did you mean `limit`?"), "{summary}");
}

#[test]
fn action_installs_a_release() {
    let folder = folder(3);
    let script = "folder=tollgate-$(uname -m)-linux; mkdir -p v0.1.0 \"$folder\" && echo program > \
                  \"$folder/tollgate\" && tar -czf \"v0.1.0/$folder.tar.gz\" \"$folder\"";
    assert!(folder.run("bash", &["-c", script], &[]).status.success());
    let releases = ("releases", format!("file://{}", folder.path().display()));
    let (_, failed) = run_action(&folder, &[("version", "0.1.0".to_owned()), releases]);
    assert_eq!(failed, None);
    let installed = fs::read_to_string(folder.path().join("GITHUB_PATH")).unwrap();
    let installed = fs::read_to_string(Path::new(installed.trim()).join("tollgate")).unwrap();
    assert_eq!(installed, "program\n");
}

#[test]
fn hooks_run_check_and_test() {
    let hooks = fs::read_to_string(root().join(".pre-commit-hooks.yaml")).unwrap();
    let hooks = &Yaml::load_from_str(&hooks).unwrap()[0];
    let run = |folder: &Folder, id: &str| {
        let hook = hooks.as_vec().unwrap().iter().find(|hook| text(hook, "id") == id).unwrap();
        let arguments = hook.as_mapping_get("args").and_then(Yaml::as_vec).into_iter().flatten();
        let mut arguments: Vec<_> = arguments.map(|it| it.as_str().unwrap()).collect();
        if hook.as_mapping_get("pass_filenames").is_none() {
            arguments.push("limits.yaml");
        }
        let script = format!("{} \"$@\"", text(hook, "entry"));
        let output = folder.run("bash", &[&["-c", &script, "--"], &arguments[..]].concat(), &[]);
        output.status.code()
    };
    let folder = folder(3);
    assert_eq!((run(&folder, "tollgate-check"), run(&folder, "tollgate-test")), (Some(0), Some(0)));
    folder.write("limits.yaml", &limits(1));
    assert_eq!((run(&folder, "tollgate-check"), run(&folder, "tollgate-test")), (Some(0), Some(1)));
    folder.write("limits.yaml", &limits(0));
    assert_eq!((run(&folder, "tollgate-check"), run(&folder, "tollgate-test")), (Some(2), Some(2)));
}
