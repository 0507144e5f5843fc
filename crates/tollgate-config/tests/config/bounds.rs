//! Any input yields a plan or a report, within bounded time and memory.

use std::fmt::Write as _;
use std::fs;

use proptest::prelude::*;
use tollgate_config::{Source, SourceError};

use crate::support::{files, read_text};

#[test]
fn large_files_are_rejected_unread() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), "a: b\n".repeat(2 << 20)).unwrap();
    let error = Source::read(file.path()).unwrap_err();
    assert!(matches!(error, SourceError::TooLarge { .. }), "{error}");
    // The limit also applies to text that is already in memory.
    let outcome = read_text("big", &"# x\n".repeat(1 << 19));
    assert!(outcome.report.to_string().contains("larger than 1024 KiB"), "{}", outcome.report);
}

#[test]
fn aliases_count_at_every_use() {
    // 20 doublings make a million values, and 60 would exhaust any memory.
    for doublings in [20, 60] {
        let mut text = "a0: &a0 [x]\n".to_owned();
        for n in 1..=doublings {
            let _ = writeln!(text, "a{n}: &a{n} [*a{}, *a{}]", n - 1, n - 1);
        }
        let outcome = read_text("bomb", &text);
        assert!(outcome.report.to_string().contains("more than 50000 values"));
    }
}

#[test]
fn deep_nesting_does_not_overflow_the_stack() {
    for (open, close) in [("[", "]"), ("{a: ", "}"), ("- ", "")] {
        let text = format!("{}x{}", open.repeat(100_000), close.repeat(100_000));
        assert!(read_text("deep", &text).plan.is_none());
    }
    let mut text = String::new();
    for depth in 0..700 {
        let _ = writeln!(text, "{}a:", " ".repeat(depth));
    }
    let outcome = read_text("deep", &text);
    assert!(outcome.report.to_string().contains("nested more than 32 deep"), "{}", outcome.report);
}

#[test]
fn reports_are_capped() {
    let text = "a: 1\n".repeat(100_000);
    let report = read_text("wrong", &text).report;
    assert!(report.errors() >= 1);
    let keys: String = (0..20_000).fold(String::new(), |mut keys, n| {
        let _ = writeln!(keys, "key{n}: 1");
        keys
    });
    let report = read_text("wrong", &keys).report;
    assert_eq!(report.problems().len(), 100);
    assert!(report.to_string().ends_with("more\n"), "{report}");
}

#[test]
fn thousands_of_policies_load() {
    let mut text = "rateLimiter:\n  target: http://localhost\n  apis:\n".to_owned();
    for n in 0..5_000 {
        let _ =
            writeln!(text, "    - {{identifier: a{n}, path: /a/{n}, limit: 5, windowSeconds: 60}}");
    }
    let outcome = read_text("many", &text);
    assert_eq!(outcome.plan.unwrap().routes[0].limits.apis.len(), 5_000);
}

/// Mutates the corpus: each text is a corpus file with a piece replaced.
fn mutated_file() -> impl Strategy<Value = String> {
    let texts: Vec<_> = ["good", "odd", "broken"]
        .into_iter()
        .flat_map(files)
        .map(|file| fs::read_to_string(file).unwrap())
        .collect();
    let pieces = prop_oneof![
        "[ -~\n\t]{0,8}",
        prop::sample::select(vec![
            "${X}", "${X:-1}", "$${", "&a ", "*a", "? ", "- ", ": ", "[", "]", "{", "}", "'", "\"",
            "!t ", "|\n", "---\n", "\u{feff}", "\u{0}", "ü", "\r\n", "1e9", "-1", "~",
        ])
        .prop_map(str::to_owned),
        any::<String>(),
    ];
    (prop::sample::select(texts), any::<prop::sample::Index>(), 0..12_usize, pieces).prop_map(
        |(text, at, cut, piece)| {
            let characters: Vec<char> = text.chars().collect();
            let at = at.index(characters.len() + 1);
            let end = (at + cut).min(characters.len());
            let before: String = characters[..at].iter().collect();
            let after: String = characters[end..].iter().collect();
            format!("{before}{piece}{after}")
        },
    )
}

/// Checks that reading the text returns either a plan or a report with errors.
fn check_outcome(text: &str) {
    let outcome = read_text("any", text);
    assert_eq!(outcome.plan.is_none(), outcome.report.errors() > 0, "{text:?}");
    let shown = outcome.report.render(false);
    assert_eq!(shown.is_empty(), outcome.report.problems().is_empty());
    assert!(!shown.contains("hunter2"));
    if let Some(plan) = outcome.plan {
        let words = tollgate_config::check::in_words(&plan);
        assert!(!words.contains("hunter2"));
        assert!(!format!("{plan:?}").contains("hunter2"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_files_yield_plan_or_errors(text in mutated_file()) {
        // If the mutation moves `hunter2` out of a secret, the report may show it.
        prop_assume!(!text.contains("hunter2"));
        check_outcome(&text);
    }

    #[test]
    fn any_text_yields_plan_or_errors(text in any::<String>()) {
        check_outcome(&text);
    }
}
