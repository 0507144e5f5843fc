//! Codes of errors: each is explained in `docs/errors.md`, and a test asserts each.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::support::root;

/// Runs the program in a folder with these files, and returns what it writes to stderr.
fn told(folder: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> String {
    // A gateway that starts nevertheless must end.
    let mut command = Command::new("timeout");
    command
        .args(["20", env!("CARGO_BIN_EXE_tollgate")])
        .args(arguments)
        .current_dir(folder)
        .envs(variables.iter().copied());
    String::from_utf8(command.output().unwrap().stderr).unwrap()
}

/// A gateway that cannot start for the reason in these lines.
fn lines(own: &str) -> String {
    const REST: &str =
        "listen: 127.0.0.1:0\n  admin: 127.0.0.1:0\n  client: {limit: 5, window: 1s}";
    format!("rateLimiter:\n  {REST}\n  {own}\n")
}

#[test]
fn start_up_errors_have_codes() {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, text: &[u8]| fs::write(folder.path().join(name), text).unwrap();
    write("large.yaml", &vec![b'#'; 2 << 20]);
    write("latin1.yaml", b"rateLimiter: \xe9");
    write("list.txt", b"nobody at all\n");
    const TARGET: &str = "target: http://127.0.0.1:9";
    let files = [
        ("missing-list.yaml", lines(&format!("{TARGET}\n  deny: {{file: no-such.txt}}"))),
        ("list.yaml", lines(&format!("{TARGET}\n  deny: {{file: list.txt}}"))),
        ("pem.yaml", {
            let tls = "{certificate: list.txt, key: list.txt}";
            lines(TARGET).replace(
                "127.0.0.1:0\n  admin",
                &format!("{{address: '127.0.0.1:0', tls: {tls}}}\n  admin"),
            )
        }),
        ("plain.yaml", lines(TARGET)),
        ("https.yaml", lines("target: https://127.0.0.1:9")),
        ("log.yaml", lines(&format!("{TARGET}\n  accessLog: {{file: /no/such/folder/log}}"))),
        (
            "tracing.yaml",
            lines(&format!("{TARGET}\n  tracing: {{endpoint: 'http://127.0.0.1:9'}}")),
        ),
    ];
    files.iter().for_each(|(name, text)| write(name, text.as_bytes()));
    let no_roots = [("SSL_CERT_FILE", "/no/such/file"), ("SSL_CERT_DIR", "/no/such/folder")];
    for (code, arguments, variables) in [
        ("TG0001", ["check", "no-such.yaml"], &[][..]),
        ("TG0002", ["check", "large.yaml"], &[]),
        ("TG0003", ["check", "latin1.yaml"], &[]),
        ("TG0018", ["check", "missing-list.yaml"], &[]),
        ("TG0019", ["check", "list.yaml"], &[]),
        ("TG0404", ["serve", "plain.yaml"], &[("TOLLGATE_ADMIN_TOKEN", "short")]),
        ("TG0404", ["serve", "plain.yaml"], &[("TOLLGATE_ADMIN_SUBJECTS", "all")]),
        ("TG0408", ["check", "pem.yaml"], &[]),
        ("TG0410", ["serve", "https.yaml"], &no_roots),
        ("TG0412", ["serve", "log.yaml"], &[]),
        #[cfg(not(feature = "otlp"))]
        ("TG0413", ["check", "tracing.yaml"], &[]),
        ("TG0415", ["serve", "plain.yaml"], &[("RUST_LOG", "tollgate=loud")]),
    ] {
        let told = told(folder.path(), &arguments, variables);
        assert!(told.contains(&format!("error[{code}]: ")), "{arguments:?}: {told}");
        assert!(!told.contains("error: error") && told.matches(code).count() == 1, "{told}");
    }
}

#[test]
fn command_errors_have_codes() {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("plain.yaml", &lines("target: http://127.0.0.1:9"));
    write("tests.yaml", "tests: [{name: a, requests: [{expect: {status: 200}}]}]\n");
    write("access.log", "203.0.113.7 - - [22/Nov/2026:10:00:00 +0000] \"GET / HTTP/1.1\" 200 5\n");
    write("no-paths.yaml", "openapi: 3.1.0\n");
    for (code, arguments) in [
        ("TG0009", &["test", "tests.yaml"][..]),
        ("TG0701", &["suggest", "access.log", "--openapi", "no-such.yaml"]),
        ("TG0701", &["suggest", "access.log", "--openapi", "no-paths.yaml"]),
        ("TG0710", &["explain", "plain.yaml", "--user", "ann"]),
        ("TG0710", &["explain", "plain.yaml", "--host", "a b"]),
        ("TG0710", &["worst", "plain.yaml", "--redis-down", "10s"]),
        (
            "TG0710",
            &["replay", "plain.yaml", "access.log", "--fail-if", "newly_denied_clients > 1"],
        ),
    ] {
        let told = told(folder.path(), arguments, &[]);
        assert!(told.contains(&format!("error[{code}]: ")), "{arguments:?}: {told}");
        assert!(told.matches(code).count() == 1, "{arguments:?}: {told}");
    }
}

#[test]
fn explain_error_prints_the_page() {
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_tollgate")).args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    let (status, text) = run(&["explain-error", "tg0107"]);
    assert_eq!(status, Some(0));
    assert!(text.contains("\nCause: the highest cost exceeds the limit or the burst"), "{text}");
    let (status, list) = run(&["explain-error"]);
    assert_eq!((status, list.lines().count()), (Some(0), page().len()));
    let (status, text) = run(&["explain-error", "TG9998"]);
    assert_eq!(status, Some(2));
    assert!(text.starts_with("error: there is no code TG9998; the nearest is TG07"), "{text}");
}

#[test]
fn every_code_is_explained_and_asserted() {
    let page = page();
    let sources: BTreeSet<_> = files()
        .filter(|file| file.contains("/src/") && file.ends_with(".rs"))
        .flat_map(|file| codes(&read(&file)).map(|(_, code)| code).collect::<Vec<_>>())
        .collect();
    // Invented codes in tests and help.
    let invented = ["TG0199", "TG9999"].map(str::to_owned).into();
    let unexplained = &(&sources - &page) - &invented;
    assert!(unexplained.is_empty(), "without a section in docs/errors.md: {unexplained:?}");
    let asserted: BTreeSet<_> = files()
        .filter(|file| file.contains("/tests/"))
        .flat_map(|file| asserted(&file, &read(&file)))
        .collect();
    let unasserted: Vec<_> = page.difference(&asserted).collect();
    assert_eq!(unasserted, [&code(THREADS)], "no test asserts these codes");
    assert!(CONSTRUCTED.iter().all(|number| asserted.contains(&code(*number))));
}

fn code(number: u16) -> String {
    format!("TG{number:04}")
}

/// Limits on threads have no effect on root, the user of tests in a container.
const THREADS: u16 = 416;

/// Tests construct these errors instead of provoking them: a missing crypto provider, rejected
/// client settings, warnings about a Redis server, and a penalty's override.
const CONSTRUCTED: [u16; 6] = [209, 308, 313, 314, 315, 606];

/// The codes in a golden file, or in a test's expected texts. Comments and other files do not
/// count.
fn asserted(file: &str, text: &str) -> Vec<String> {
    let is_golden = file.ends_with(".expected");
    if !is_golden && !file.ends_with(".rs") {
        return Vec::new();
    }
    let lines = text.lines().filter(|line| is_golden || !line.trim_start().starts_with("//"));
    let in_line = |line: &str| {
        let is_whole = |(at, code): &(usize, String)| {
            let (before, after) = (&line[..*at], &line[at + code.len()..]);
            // `[TG0001]` in a message, or `"TG0001"` in a table of cases.
            before.ends_with('[') && after.starts_with(']')
                || !is_golden && before.ends_with('"') && after.starts_with('"')
        };
        codes(line).filter(is_whole).map(|(_, code)| code).collect::<Vec<_>>()
    };
    lines.flat_map(in_line).collect()
}

#[test]
fn mentions_do_not_assert_codes() {
    // Not a code of this file.
    let code = format!("TG{}", "0001");
    for (file, text, expected) in [
        ("a.expected", format!("error[{code}]: a"), true),
        ("a.expected", format!("  = help: see {code}"), false),
        ("a.rs", format!("assert!(text.ends_with(\" [{code}]\"));"), true),
        ("a.rs", format!("(\"{code}\", [\"check\"]),"), true),
        ("a.rs", format!("    // provokes [{code}]"), false),
        ("a.rs", format!("/// About \"{code}\"."), false),
        ("a.rs", format!("run(\"explain {code}\")"), false),
        ("a.yaml", format!("# [{code}]"), false),
    ] {
        assert_eq!(!asserted(file, &text).is_empty(), expected, "{file}: {text}");
    }
}

fn page() -> BTreeSet<String> {
    let page = fs::read_to_string(root().join("docs/errors.md")).unwrap();
    page.lines().filter_map(|line| Some(line.strip_prefix("### ")?.to_owned())).collect()
}

fn read(file: &str) -> String {
    String::from_utf8_lossy(&fs::read(file).unwrap()).into_owned()
}

/// The crates' files.
fn files() -> impl Iterator<Item = String> {
    let mut folders: Vec<PathBuf> = vec![root().join("crates")];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let file = entry.unwrap().path();
            if file.is_dir() {
                folders.push(file);
            } else {
                files.push(file.to_str().unwrap().to_owned());
            }
        }
    }
    files.into_iter()
}

/// The codes in a text, with their places.
fn codes(text: &str) -> impl Iterator<Item = (usize, String)> {
    text.match_indices("TG").filter_map(|(at, _)| {
        let code: String = text[at..].chars().take(6).collect();
        let is_code = code.len() == 6 && code[2..].bytes().all(|it| it.is_ascii_digit());
        is_code.then_some((at, code))
    })
}
