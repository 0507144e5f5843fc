//! The metric names of the library and the gateway, and their table in docs/observability.md.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use tollgate::observe::{Metric, MetricKind};
use tollgate_gateway::metric;

use crate::support::root;

#[test]
fn names_follow_prometheus_conventions() {
    let mut names = BTreeSet::new();
    for metric in metric::all() {
        let name = metric.name;
        assert!(names.insert(name), "{name} twice");
        assert!(name.starts_with("tollgate_"), "{name}");
        assert_eq!(name.ends_with("_total"), metric.kind == MetricKind::Counter, "{name}");
        assert_eq!(metric.kind == MetricKind::Histogram, !metric.buckets.is_empty(), "{name}");
        assert!(metric.buckets.is_sorted_by(|a, b| a < b), "{name}");
        for label in metric.labels {
            assert!(!["key", "path", "user", "ip", "subject"].contains(label), "{name}: {label}");
        }
    }
}

/// All metrics as a Markdown table.
fn table() -> String {
    let mut table = "| metric | kind | labels | meaning |\n|---|---|---|---|\n".to_owned();
    for Metric { name, kind, labels, help, .. } in metric::all() {
        let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        let (kind, labels) = (kind.as_str(), labels.join(", "));
        writeln!(table, "| `{name}` | {kind} | {labels} | {help} |").unwrap();
    }
    table
}

/// To update the table: `TOLLGATE_BLESS=1 cargo test -p tollgate-cli --test commands`.
#[test]
fn metrics_table_is_current() {
    let file = root().join("docs/observability.md");
    let text = std::fs::read_to_string(&file).unwrap();
    let start = text.find("| metric |").expect("a table");
    let end = start + text[start..].find("\n\n").map_or(text.len() - start, |end| end + 1);
    if std::env::var_os("TOLLGATE_BLESS").is_some_and(|bless| bless == "1") {
        std::fs::write(file, format!("{}{}{}", &text[..start], table(), &text[end..])).unwrap();
        return;
    }
    assert_eq!(&text[start..end], table(), "the table is outdated; see this test's comment");
}
