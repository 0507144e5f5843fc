//! Compares the metrics with docs/observability.md.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use tollgate::access::{AccessLists, Listed, SubjectList};
use tollgate::key::ClientIp;
use tollgate::observe::refresh;
use tollgate::observe::{METRICS, Metric, MetricKind};
use tollgate::{Limit, Policy, Quota, RequestHead, StoreExt};
use tower::Layer;

use super::Meter;
use crate::support::*;

#[tokio::test(start_paused = true)]
async fn every_series_is_documented_with_its_labels() {
    let meter = Meter::start();
    let store = on_tokio_time();
    let queue = Policy::leaky_bucket("queue", Quota::per_second(9).burst(3)).unwrap();
    let store = store.clone().or_local(store);
    let layer = layer(&store, [Limit::global(queue)]);
    let service = layer.clone().layer(hello());
    for _ in 0..3 {
        status(&service).await;
    }
    let lists = AccessLists::new().addresses_by(ClientIp::peer());
    lists.replace(&"192.0.2.1".parse().unwrap(), &SubjectList::new()).unwrap();
    assert_eq!(lists.find(&RequestHead::of(&get())).unwrap(), Listed::Blocked);
    refresh(&[layer.handle()]).await;
    let mut found = BTreeSet::new();
    for series in meter.series().into_keys() {
        let (name, labels) = series.split_once('{').unwrap_or((&series, ""));
        let documented = METRICS.iter().find(|metric| match metric.kind {
            MetricKind::Histogram => {
                let rest = name.strip_prefix(metric.name);
                rest.is_some_and(|rest| ["", "_sum", "_count", "_bucket"].contains(&rest))
            }
            _ => name == metric.name,
        });
        let metric = documented.unwrap_or_else(|| panic!("{series} is not documented"));
        found.insert(metric.name);
        let labels = labels.trim_end_matches('}').split("\",");
        let labels = labels.filter_map(|label| Some(label.split_once('=')?.0));
        for label in labels.filter(|label| *label != "quantile" && *label != "le") {
            assert!(metric.labels.contains(&label), "{series}: {label}");
        }
    }
    // Those of Redis and of the gateway are tested where they are counted.
    let places = ["_redis_", "_breaker_", "_config_", "_jwks_", "_gateway_", "_trace_"];
    let elsewhere = |name: &str| places.iter().any(|place| name.contains(place));
    for metric in METRICS.iter().filter(|metric| !elsewhere(metric.name)) {
        assert!(found.contains(metric.name), "{} is never counted", metric.name);
    }
}

#[test]
fn names_follow_the_conventions_of_prometheus() {
    let mut names = BTreeSet::new();
    for metric in METRICS {
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

/// All metrics as a table in Markdown.
fn table() -> String {
    let mut table = "| metric | kind | labels | meaning |\n|---|---|---|---|\n".to_owned();
    for Metric { name, kind, labels, help, .. } in METRICS {
        let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        let (kind, labels) = (kind.as_str(), labels.join(", "));
        writeln!(table, "| `{name}` | {kind} | {labels} | {help} |").unwrap();
    }
    table
}

/// To write it anew: `TOLLGATE_BLESS=1 cargo test -p tollgate --all-features metrics`.
#[test]
fn the_documentation_has_the_table_of_the_code() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/observability.md");
    let text = std::fs::read_to_string(file).unwrap();
    let start = text.find("| metric |").expect("a table");
    let end = start + text[start..].find("\n\n").map_or(text.len() - start, |end| end + 1);
    if std::env::var_os("TOLLGATE_BLESS").is_some_and(|bless| bless == "1") {
        std::fs::write(file, format!("{}{}{}", &text[..start], table(), &text[end..])).unwrap();
        return;
    }
    assert_eq!(&text[start..end], table(), "see the comment of this test");
}
