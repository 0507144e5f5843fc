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
            assert!(message.starts_with(&format!("error: {expected}")), "{message}");
            assert!(!message.contains("init") && !message.contains("error: error"), "{message}");
        }
    }
}
