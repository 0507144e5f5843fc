//! Messages about separate files with Envoy rate limit service rules.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

/// Runs a command that must fail and returns its error output.
fn errors_of(folder: &TempDir, arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(arguments)
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn messages_suggest_a_fix() {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("rules.yaml", "descriptors:\n  - key: a\n    rate_limit: {unit: day}\n");
    write("empty.yaml", "");
    write("two.yaml", "domain: a\ndescriptors:\n  - {}\n  - {key: a, value: b, limit: 5}\n");
    let message = errors_of(&folder, &["check", "rules.yaml"]);
    assert!(message.contains("`domain` is missing"), "{message}");
    assert!(!message.contains("rateLimiter") && !message.contains("init"), "{message}");
    for (file, expected) in [
        ("rules.yaml", "rules.yaml: line 1: `domain` is missing\n"),
        ("empty.yaml", "empty.yaml: line 1: the file is empty\n"),
        (
            "two.yaml",
            "two.yaml: line 3: `key` is missing (and 1 more: `tollgate check two.yaml` shows all)\n",
        ),
        ("missing.yaml", "missing.yaml: it cannot be read: No such file or directory"),
        (".", ".: it cannot be read: Is a directory"),
    ] {
        write("gateway.yaml", &format!("rateLimiter:\n  rateLimitService: {{config: {file}}}\n"));
        for command in [["check", "gateway.yaml"], ["serve", "gateway.yaml"]] {
            let message = errors_of(&folder, &command);
            let text = message.split_once("]: ").map_or("", |(_, text)| text);
            assert!(text.starts_with(expected), "{message}");
            assert!(!message.contains("init") && !message.contains("error: error"), "{message}");
        }
    }
}

#[test]
fn a_domain_in_several_files_needs_permission() {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    let rules = |keys: &[&str]| {
        let limit = "rate_limit: {unit: day, requests_per_unit: 1}";
        let key = |key: &&str| format!("  - {{key: {key}, {limit}}}\n");
        format!("domain: shop\ndescriptors:\n{}", keys.iter().map(key).collect::<String>())
    };
    write("one.yaml", &rules(&["a", "b, value: c"]));
    write("other.yaml", &rules(&["b"]));
    write("twice.yaml", &rules(&["d", "b, value: c"]));
    for (files, merges, expected) in [
        ("one.yaml, other.yaml", true, None),
        (
            "one.yaml, other.yaml",
            false,
            Some("other.yaml: the domain `shop` is also in one.yaml\n --> gateway.yaml:2:41\n"),
        ),
        (
            "one.yaml, other.yaml, twice.yaml",
            true,
            Some("twice.yaml: the descriptor `b=c` of the domain `shop` is also in one.yaml\n"),
        ),
    ] {
        let service = format!("{{config: [{files}], mergeDomains: {merges}}}");
        write("gateway.yaml", &format!("rateLimiter:\n  rateLimitService: {service}\n"));
        let Some(expected) = expected else {
            let mut check = Command::new(env!("CARGO_BIN_EXE_tollgate"));
            let check = check.args(["check", "gateway.yaml"]).current_dir(folder.path());
            assert!(check.status().unwrap().success());
            continue;
        };
        let message = errors_of(&folder, &["check", "gateway.yaml"]);
        let text = message.strip_prefix("error[TG0014]: ").unwrap_or_default();
        assert!(text.starts_with(expected), "{message}");
    }
}
