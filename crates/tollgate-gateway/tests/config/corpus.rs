//! Reads every file of the corpus and compares the report with the `.expected` file next to it.
//!
//! Files in `broken/` are rejected. Files in `odd/` cause a warning and are accepted. Files in
//! `good/` are accepted, with no report except the warnings in the `.expected` file.
//! `TOLLGATE_BLESS=1` writes the current reports; read them before you commit them.

use std::path::Path;

use tollgate_gateway::config::Outcome;

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
fn a_broken_file_is_refused_with_the_message_beside_it() {
    let files = all("broken", |outcome| outcome.plan.is_none() && outcome.report.errors() > 0);
    assert!(files >= 40, "{files}");
}

#[test]
fn an_odd_file_runs_with_the_warning_beside_it() {
    let files = all("odd", |outcome| outcome.plan.is_some() && outcome.report.warnings() > 0);
    assert!(files >= 10, "{files}");
}

#[test]
fn a_good_file_runs() {
    assert!(all("good", |outcome| outcome.plan.is_some()) > 0);
}

#[test]
fn a_key_in_the_place_of_its_digest_is_not_shown() {
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
