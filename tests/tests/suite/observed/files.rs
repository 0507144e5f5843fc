//! Static checks of the files.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

/// The path of a file in `deploy/`.
pub(crate) fn file(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy")).join(name)
}

/// The dashboard.
pub(crate) fn dashboard() -> Value {
    let text = fs::read_to_string(file("grafana/dashboards/tollgate.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The queries of all panels, with the panel titles.
pub(crate) fn queries() -> Vec<(String, String)> {
    let mut queries = Vec::new();
    for panel in dashboard()["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        for target in panel["targets"].as_array().into_iter().flatten() {
            queries.push((title.to_owned(), target["expr"].as_str().unwrap().to_owned()));
        }
    }
    queries
}

fn promtool(args: &[&str]) {
    let output = Command::new("promtool").args(args).output();
    let output = output.expect("promtool: `cargo xtask test` installs it");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn alerts_fire_on_time() {
    promtool(&["test", "rules", file("prometheus/tests.yml").to_str().unwrap()]);
}

#[test]
fn prometheus_accepts_its_files() {
    // This also checks the rule files.
    promtool(&["check", "config", file("prometheus/prometheus.yml").to_str().unwrap()]);
}

#[test]
fn alerts_are_tested_and_documented() {
    let rules = fs::read_to_string(file("prometheus/rules.yml")).unwrap();
    let tests = fs::read_to_string(file("prometheus/tests.yml")).unwrap();
    let page = fs::read_to_string(file("../docs/observability.md")).unwrap();
    let alerts: Vec<_> = rules.lines().filter_map(|line| line.split_once("- alert: ")).collect();
    assert!(alerts.len() >= 9);
    for (_, alert) in &alerts {
        assert!(tests.contains(&format!("alertname: {alert}\n")), "{alert} has no test");
        assert!(
            page.contains(&format!("| `{alert}` |")),
            "{alert} is not in docs/observability.md"
        );
    }
    assert_eq!(page.matches("| `Tollgate").count(), alerts.len());
}

#[test]
fn queries_match_the_metrics() {
    let known: BTreeSet<_> = tollgate_gateway::metric::all().map(|metric| metric.name).collect();
    let rules = fs::read_to_string(file("prometheus/rules.yml")).unwrap();
    let queries: Vec<_> = queries().into_iter().map(|(_, query)| query).collect();
    let all = format!("{rules}\n{}", queries.join("\n"));
    let mut asked = BTreeSet::new();
    for word in all.split(|it: char| !it.is_ascii_alphanumeric() && it != '_' && it != ':') {
        if let Some(rest) = word.strip_prefix("tollgate:") {
            assert!(rules.contains(&format!("- record: tollgate:{rest}")), "{word}");
        } else if word.starts_with("tollgate_") {
            let whole = ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end));
            let name = whole.filter(|name| known.contains(name)).unwrap_or(word);
            assert!(known.contains(name), "{word}");
            asked.insert(name.to_owned());
        }
    }
    // A metric that no panel shows is useless.
    let shown = asked.iter().map(String::as_str).collect();
    let hidden: Vec<_> = known.difference(&shown).collect();
    assert!(hidden.is_empty(), "on no panel: {hidden:?}");
}

#[test]
fn dashboard_is_valid() {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "an id twice");
    let mut places = BTreeSet::new();
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        let at = &panel["gridPos"];
        assert!(at["x"].as_u64().unwrap() + at["w"].as_u64().unwrap() <= 24, "{title}");
        assert!(places.insert((at["y"].as_u64(), at["x"].as_u64())), "{title} covers another");
        if panel["type"] == "row" {
            continue;
        }
        assert!(!panel["description"].as_str().unwrap().is_empty(), "{title}");
        let source = &panel["datasource"]["uid"];
        assert_eq!(source, "${datasource}", "{title}: any Prometheus will do");
        assert!(!panel["targets"].as_array().unwrap().is_empty(), "{title}");
    }
    // The provisioned files refer to each other correctly.
    let source =
        fs::read_to_string(file("grafana/provisioning/datasources/prometheus.yml")).unwrap();
    let chosen = dashboard["templating"]["list"][0]["current"]["value"].as_str().unwrap();
    assert!(source.contains(&format!("uid: {chosen}\n")));
    let provider = fs::read_to_string(file("grafana/provisioning/dashboards/tollgate.yml"));
    let folder = "/etc/grafana/dashboards";
    assert!(provider.unwrap().contains(&format!("path: {folder}\n")));
    let compose = fs::read_to_string(file("../docker-compose.yml")).unwrap();
    for mount in [
        "./deploy/grafana/provisioning:/etc/grafana/provisioning:ro",
        "./deploy/grafana/dashboards:/etc/grafana/dashboards:ro",
        "./deploy/prometheus:/etc/prometheus:ro",
    ] {
        assert!(compose.contains(mount), "{mount}");
    }
}
