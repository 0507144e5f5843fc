//! Checks that Prometheus collects the metrics of the replicas. Grafana is not started, because
//! it only queries Prometheus; `tests/tests/suite/observed` checks its queries.

use std::time::Duration;

use super::check;
use super::project::{Engine, Project, curl, either, status, wait_for};
use crate::process::Failure;

pub(super) fn is_told_by_each_replica(engine: &Engine) -> Result<(), Failure> {
    let ports = ["TOLLGATE_PORT", "PROMETHEUS_PORT"];
    let limit = [("TOLLGATE_LIMIT", "20")];
    engine.with_project(&["docker-compose.yml"], &ports, &limit, |project| {
        // By its name it is started without its profile, and without Grafana.
        project.up(&["nginx", "prometheus"])?;
        let items = project.url("TOLLGATE_PORT", "/items");
        let denied = (0..30).filter(|_| status(&items, &[]) == "429").count();
        check("there is something to tell", denied == 10, &denied.to_string())?;
        says(project, "count(up{job=\"tollgate\"} == 1)", "three replicas", "3")?;
        let decisions = "sum(tollgate_decisions_total{policy=\"global\",outcome=\"deny\"})";
        says(project, decisions, "what they have denied", "10")?;
        says(project, "tollgate:remaining:ratio", "how much is left", "0")?;
        rules_are_well(project)?;
        project.stops_by_itself()
    })
}

/// That a query has this value, when it has been scraped.
fn says(project: &Project<'_>, query: &str, what: &str, expected: &str) -> Result<(), Failure> {
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
    // Each is evaluated for the first time within the first seconds.
    let rules = wait_for(Duration::from_secs(60), || {
        let rules = curl(&[&url]);
        let well = rules.matches("\"health\":\"ok\"").count();
        let all = rules.matches("\"health\":").count();
        (all > 9 && well == all, format!("{well} of {all}"))
    });
    check("all rules can be evaluated", rules.is_ok(), &either(rules))
}
