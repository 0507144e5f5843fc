//! Reads every file in the corpus and compares the report with the `.expected` file next to it.
//!
//! Files in `broken/` are rejected. Files in `odd/` are accepted with a warning. Files in `good/`
//! are accepted, and report only the warnings in the `.expected` file. `TOLLGATE_BLESS=1` writes
//! the current reports; review them before committing.

use std::path::Path;

use tollgate_config::Outcome;

use crate::support::{expect_beside, files, outcome, read_text};

/// Compares the report with the `.expected` file next to the file.
fn expect(file: &Path, outcome: &Outcome) -> Result<(), String> {
    expect_beside(&file.with_extension("expected"), &outcome.report.render(false))
}

fn all(folder: &str, is_right: impl Fn(&Outcome) -> bool) -> usize {
    let files = files(folder);
    let mut wrong = Vec::new();
    for file in &files {
        let outcome = outcome(file);
        assert!(is_right(&outcome), "{}:\n{}", file.display(), outcome.report);
        wrong.extend(expect(file, &outcome).err());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    files.len()
}

#[test]
fn broken_files_report_the_expected_errors() {
    let files = all("broken", |outcome| outcome.plan.is_none() && outcome.report.errors() > 0);
    assert!(files >= 40, "{files}");
}

#[test]
fn odd_files_report_the_expected_warnings() {
    let files = all("odd", |outcome| outcome.plan.is_some() && outcome.report.warnings() > 0);
    assert!(files >= 10, "{files}");
}

#[test]
fn good_files_load() {
    assert!(all("good", |outcome| outcome.plan.is_some()) > 0);
}

#[test]
fn key_instead_of_digest_is_not_shown() {
    for keys in [
        "apiKeys: k-7f3a",
        "apiKeys: [k-7f3a]",
        "apiKeys: [{key: k-7f3a}]",
        "apiKeys: [{hash: k-7f3a, tier: gold}]",
        "apiKeys: [{sha256: k-7f3a}]",
        "apiKeys: {keys: k-7f3a}",
        "apiKeys: {keys: [k-7f3a]}",
        "apiKeys: {keys: {k-7f3a: gold}}",
        "deny: {apiKeys: [k-7f3a]}",
        "jwt: k-7f3a",
        "jwt: [k-7f3a]",
    ] {
        let text = format!("rateLimiter:\n  target: http://a\n  {keys}\n");
        let report = read_text("any", &text).report;
        assert!(report.errors() > 0, "{keys}");
        for told in [report.render(false), report.to_string()] {
            assert!(!told.contains("k-7f3a"), "{keys}: {told}");
        }
    }
}

#[test]
fn no_message_shows_a_secret() {
    for file in ["broken", "odd", "good"].iter().flat_map(|folder| files(folder)) {
        let report = outcome(&file).report;
        for told in [report.render(false), report.to_string()] {
            for secret in ["hunter2", "not to be shown", "not-to-be-shown", "k-7f3a", "an-hs256"] {
                assert!(!told.contains(secret), "{}: {told}", file.display());
            }
        }
    }
}
