//! Codes of errors: each is explained in `docs/errors.md`, and a test asserts each.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use crate::support::root;

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
        // The checkout's folder may have this name, too.
        .filter(|file| file.rsplit("/crates/").next().unwrap().contains("/tests/"))
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

/// The codes in a golden file or a table of cases, or in a test's expected texts. Comments and other
/// files do not count.
fn asserted(file: &str, text: &str) -> Vec<String> {
    let is_golden = file.ends_with(".expected") || file.ends_with(".txt");
    if !is_golden && !file.ends_with(".rs") {
        return Vec::new();
    }
    // Comments, and in a table the texts that must be absent.
    let outside: &[&str] = match () {
        () if file.ends_with(".txt") => &["#", "!-", ">-"],
        () if is_golden => &[],
        () => &["//"],
    };
    let is_outside = |line: &str| outside.iter().any(|start| line.trim_start().starts_with(start));
    let lines = text.lines().filter(|line| !is_outside(line));
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
        ("a.txt", format!("! error[{code}]: "), true),
        ("a.txt", format!("!- error[{code}]: "), false),
        ("a.txt", format!(">- [{code}]"), false),
        ("a.txt", format!("# About error[{code}]"), false),
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
