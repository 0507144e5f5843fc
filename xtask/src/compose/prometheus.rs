//! Checks that Prometheus collects the metrics of the replicas. Grafana is not started, because
//! it only queries Prometheus; `tests/tests/suite/observed` checks its queries.

use std::time::Duration;

use super::check;
use super::project::{Engine, Project, curl, either, status, wait_for};
use crate::process::Failure;

pub(super) fn scrapes_each_replica(engine: &Engine) -> Result<(), Failure> {
    let ports = ["TOLLGATE_PORT", "PROMETHEUS_PORT"];
    let limit = [("TOLLGATE_LIMIT", "20")];
    engine.with_project(&["docker-compose.yml"], &ports, &limit, |project| {
        // Named services start even without their profile, so Grafana does not start.
        project.up(&["nginx", "prometheus"])?;
        let items = project.url("TOLLGATE_PORT", "/items");
        let denied = (0..30).filter(|_| status(&items, &[]) == "429").count();
        check("ten requests are denied", denied == 10, &denied.to_string())?;
        expect_value(project, "count(up{job=\"tollgate\"} == 1)", "three replicas", "3")?;
        let decisions = "sum(tollgate_decisions_total{policy=\"global\",outcome=\"deny\"})";
        expect_value(project, decisions, "the denied requests", "10")?;
        expect_value(project, "tollgate:remaining:ratio", "the remaining quota", "0")?;
        rules_are_well(project)?;
        project.stop_gracefully()
    })
}

/// Waits until a query returns this value.
fn expect_value(
    project: &Project<'_>,
    query: &str,
    what: &str,
    expected: &str,
) -> Result<(), Failure> {
    let url = project.url("PROMETHEUS_PORT", "/api/v1/query");
    let answer = wait_for(Duration::from_secs(60), || {
        let query = format!("query={query}");
        let answer = curl(&["--get", "--data-urlencode", &query, &url]);
        (answer.contains(&format!(",\"{expected}\"]")), answer)
    });
    check(&format!("Prometheus knows {what}"), answer.is_ok(), &either(answer))
}

fn rules_are_well(project: &Project<'_>) -> Result<(), Failure> {
    let url = project.url("PROMETHEUS_PORT", "/api/v1/rules");
    // The first evaluation of each rule takes some seconds.
    let rules = wait_for(Duration::from_secs(60), || {
        let rules = curl(&[&url]);
        let well = rules.matches("\"health\":\"ok\"").count();
        let all = rules.matches("\"health\":").count();
        (all > 9 && well == all, format!("{well} of {all}"))
    });
    check("all rules can be evaluated", rules.is_ok(), &either(rules))
}
