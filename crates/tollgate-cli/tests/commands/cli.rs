//! The command line: exit codes and output.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::root;

fn tollgate(arguments: &[&str], stdin: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(arguments)
        .env_remove("TARGET")
        .current_dir(root().join("crates/tollgate-config/tests"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn check_describes_a_valid_file() {
    let output = tollgate(&["check", "good/blog.yaml"], "");
    assert_eq!(output.status.code(), Some(0));
    let words = text(&output.stdout);
    assert!(
        words.contains(
            "  comment: POST ^/api/item/\\d+/comment$: 5 units per 60 s per client IP, token \
             bucket, memory\n"
        ),
        "{words}"
    );
    assert!(text(&output.stderr).contains("0 errors, 3 warnings"), "{}", text(&output.stderr));
}

#[test]
fn check_describes_product_features() {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/gateway");
    for (file, lines) in [
        (
            "tiers.yaml",
            &[
                "  client: every request: 10 units per 60 s per client, sliding window counter, memory",
                "    tier free: 100 units per 60 s and 20 units per 10 s",
                "    tier enterprise: 100000 units per 60 s",
                "  ai: any method /ai/*: 1 unit per 60 s per client, sliding window counter, memory",
                "    tier free: 10 units per 60 s and 2 units per 10 s",
            ][..],
        ),
        (
            "login.yaml",
            &["    counts only responses with 401", "    counts only responses with 2xx, 304"],
        ),
        (
            "llm.yaml",
            &[
                "  llm: POST /(completions|responses|embeddings|messages|batches)/?$: 60 units per 60 s per API key, token bucket, memory",
                "    llm/inflight: 8 requests in flight, held for 30 s if their gateway crashes",
                "    charged as an estimate, corrected within 3600 s by the tokens in the response's usage",
            ],
        ),
        (
            "settling.yaml",
            &[
                "    charged as an estimate, corrected within 3600 s by the response header x-tollgate-cost",
                "    charged as an estimate, corrected within 600 s by the trailer x-tollgate-cost",
                "    charged as an estimate, corrected within 3600 s by the body size, 1 unit per 1024 bytes",
                "    units: any other 500",
            ],
        ),
        ("uploads.yaml", &["    a denied request waits for at most 30 s"]),
        (
            "protection.yaml",
            &[
                "    api/penalty: 100 strikes within 60 s block for 600 s, then 2 times as long each time, up to 86400 s, until 86400 s pass without a block; denials are strikes",
                "    login/penalty: 3 strikes within 300 s block for 900 s, then 2 times as long each time, up to 86400 s, until 86400 s pass without a block; responses with 401 are strikes",
                "    reports/inflight: 2 requests in flight, held for 30 s if their gateway crashes",
                "    a busy gateway holds up to 1/20 of it for 500 ms at a time",
            ],
        ),
        ("lists.yaml", &["denied: 2 networks", "never limited: 1 network, 1 API key"]),
    ] {
        let output = tollgate(&["check", "--strict", &format!("{examples}/{file}")], "");
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let words = text(&output.stdout);
        for line in lines {
            assert!(words.lines().any(|it| it == *line), "{line}\n{words}");
        }
    }
}

#[test]
fn check_reports_all_errors_with_exit_code_2() {
    let output = tollgate(&["check", "broken/bad-targets.yaml"], "");
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    let told = text(&output.stderr);
    assert_eq!(told.matches("error[TG0012]: ").count(), 6, "{told}");
    assert!(told.ends_with("broken/bad-targets.yaml: 6 errors, 0 warnings\n"), "{told}");
}

#[test]
fn strict_fails_on_warnings() {
    assert_eq!(tollgate(&["check", "odd/expire.yaml"], "").status.code(), Some(0));
    let output = tollgate(&["check", "--strict", "odd/expire.yaml"], "");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).ends_with("`--strict` treats warnings as errors\n"));
}

#[test]
fn missing_file_exits_with_2() {
    for command in [
        ["check", "nowhere.yaml"].as_slice(),
        &["serve", "nowhere.yaml"],
        &["serve", "--config", "nowhere.yaml"],
    ] {
        let output = tollgate(command, "");
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).starts_with("error[TG0001]: nowhere.yaml: "), "{output:?}");
    }
}

#[test]
fn serve_rejects_invalid_file() {
    let output = tollgate(&["serve", "--config", "-"], "rateLimiter: {}\n");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("`target` is missing"), "{output:?}");
}

#[test]
fn starter_file_has_no_warnings() {
    let starter = tollgate(&["init"], "");
    let output = tollgate(&["check", "--strict", "-"], text(&starter.stdout));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(output.stderr.is_empty());
}

#[test]
fn schema_is_json() {
    let output = tollgate(&["schema"], "");
    let schema: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(schema["required"], serde_json::json!(["rateLimiter"]));
}

#[test]
fn check_reports_missing_otlp_support() {
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["check", "good/telemetry.yaml"])
        .env("OTLP_HEADERS", "authorization=Bearer%20hunter2")
        .current_dir(root().join("crates/tollgate-config/tests"))
        .output()
        .unwrap();
    let (words, told) = (text(&output.stdout), text(&output.stderr));
    assert!(!words.contains("hunter2") && !told.contains("hunter2"), "{words}{told}");
    if cfg!(feature = "otlp") {
        assert_eq!(output.status.code(), Some(0), "{told}");
        let line = "spans of `shop` are sent to https://collector.example:4318/v1/traces: 10% of \
                    the traces that start here\n";
        assert!(words.contains(line), "{words}");
    } else {
        assert_eq!(output.status.code(), Some(2));
        assert!(words.is_empty(), "{words}");
        assert!(told.contains("rateLimiter.tracing: this build has no OTLP"), "{told}");
        assert!(told.contains("--features otlp"), "{told}");
    }
}

#[test]
fn completions_know_all_commands() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = tollgate(&["completions", shell], "");
        let script = text(&output.stdout);
        for word in ["serve", "check", "schema", "init", "strict"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}

/// A name with a slash alone is no level.
#[test]
fn levels_are_indented_below_their_base() {
    let file = "\
rateLimiter:
  target: http://localhost:1
  levels: {team: {key: header, name: X-Team, trustedProxies: [127.0.0.1]}}
  client: {limit: 3, window: 60s, levels: {team: {limit: 4, window: 60s}}}
  apis: [{identifier: other/team, path: /, limit: 9, window: 60s, per: team}]
";
    let explain = ["explain", "-", "--dry", "--header", "X-Team: red"];
    for arguments in [&["check", "-"][..], &explain] {
        let output = tollgate(arguments, file);
        let words = text(&output.stdout);
        for line in ["\n  client: every", "\n    client/team: every", "\n  other/team: "] {
            assert!(words.contains(line), "{line}: {words}{}", text(&output.stderr));
        }
    }
    let words = tollgate(&explain, file).stdout;
    assert!(text(&words).contains("\n      of 4 units per 60 s this request takes 1\n"));
}

#[test]
fn manual_pages_exist_for_all_commands() {
    let folder = tempfile::TempDir::new().unwrap();
    let output = tollgate(&["man", folder.path().to_str().unwrap()], "");
    assert!(output.status.success(), "{}", text(&output.stderr));
    for (page, word) in [("tollgate", "First steps"), ("tollgate-serve", "SIGHUP")] {
        let page = folder.path().join(format!("{page}.1"));
        let page = std::fs::read_to_string(page).unwrap();
        assert!(page.contains(word), "{page}");
    }
    let output = tollgate(&["man", "/no/such/folder"], "");
    assert_eq!(output.status.code(), Some(1));
    let told = text(&output.stderr);
    assert!(
        told.starts_with("error[TG0707]: cannot write to /no/such/folder: No such file"),
        "{told}"
    );
}

#[test]
fn help_fails_on_a_full_disk() {
    for argument in ["--help", "--version"] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        let output = command.arg(argument).stdout(full).output().unwrap();
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{argument}: {told}");
        assert!(told.starts_with("error: cannot write the output: No space left"), "{told}");
    }
}

#[test]
fn help_and_version_succeed() {
    for arguments in
        [["--help"].as_slice(), &["--version"], &["serve", "--help"], &["check", "--help"]]
    {
        let output = tollgate(arguments, "");
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(text(&output.stdout).contains("tollgate"));
    }
    assert!(Path::new(env!("CARGO_BIN_EXE_tollgate")).exists());
}
