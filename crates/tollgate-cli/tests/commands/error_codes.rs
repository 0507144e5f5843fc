//! Codes of errors: each is explained in `docs/errors.md`, and a test provokes each.

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
    assert!(text.starts_with("error: there is no code TG9998; the nearest is TG06"), "{text}");
}

#[test]
fn every_code_is_explained_and_provoked() {
    let page = page();
    let sources = codes_in(|file| file.contains("/src/") && file.ends_with(".rs"));
    // Invented codes in tests and help.
    let invented = ["TG0199", "TG9999"].map(str::to_owned).into();
    let unexplained = &(&sources - &page) - &invented;
    assert!(unexplained.is_empty(), "without a section in docs/errors.md: {unexplained:?}");
    let tests = codes_in(|file| file.contains("/tests/"));
    let unprovoked: Vec<_> = page.iter().filter(|code| !tests.contains(*code)).collect();
    // Limits on threads have no effect on root, as which tests run in a container.
    let no_threads = format!("TG{:04}", 416);
    assert_eq!(unprovoked, [&no_threads], "no test provokes these codes");
}

fn page() -> BTreeSet<String> {
    let page = fs::read_to_string(root().join("docs/errors.md")).unwrap();
    page.lines().filter_map(|line| Some(line.strip_prefix("### ")?.to_owned())).collect()
}

/// The codes in the crates' files.
fn codes_in(is_meant: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let mut codes = BTreeSet::new();
    let mut folders: Vec<PathBuf> = vec![root().join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let file = entry.unwrap().path();
            let name = file.to_str().unwrap();
            if file.is_dir() {
                folders.push(file);
            } else if is_meant(name) {
                let text = fs::read(&file).unwrap();
                let text = String::from_utf8_lossy(&text);
                for (at, _) in text.match_indices("TG") {
                    let code: String = text[at..].chars().take(6).collect();
                    if code.len() == 6 && code[2..].bytes().all(|it| it.is_ascii_digit()) {
                        codes.insert(code);
                    }
                }
            }
        }
    }
    codes
}
