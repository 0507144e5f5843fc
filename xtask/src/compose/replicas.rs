//! Three replicas behind nginx, with a shared quota in Redis.

use std::process::Command;
use std::time::Duration;

use super::check;
use super::project::{Engine, Project, curl, either, status, wait_for};
use crate::process::{self, Failure};

/// Runs the scenario with the demo's default quota, and checks the settings of the compose file.
pub(super) fn share_a_quota(engine: &Engine) -> Result<(), Failure> {
    engine.with_project(FILES, PORTS, &[], |project| {
        project.up(&[])?;
        let script = process::root().join("tests/balancer.sh");
        let url = project.url("TOLLGATE_PORT", "");
        process::run(Command::new("bash").arg(script).arg("--wait").arg(url))?;
        is_locked_down(project)?;
        continues_without_a_replica(project)?;
        continues_without_redis(project)?;
        project.stop_gracefully()
    })
}

/// With a limit per address, nginx sets the client's address and a client cannot forge it.
pub(super) fn limit_by_address(engine: &Engine) -> Result<(), Failure> {
    let by_address = [
        ("TOLLGATE_KEY", "ip"),
        ("TOLLGATE_TRUSTED_PROXIES", "private"),
        ("TOLLGATE_LIMIT", "3"),
        ("TOLLGATE_COSTS", "one"),
    ];
    engine.with_project(FILES, PORTS, &by_address, |project| {
        project.up(&[])?;
        let url = project.url("TOLLGATE_PORT", "/items");
        let ask =
            |client| status(&url, &["--header", &format!("X-Forwarded-For: 203.0.113.{client}")]);
        let statuses = (1..=5).map(ask).collect::<Vec<_>>().join(" ");
        let expected = "200 200 200 429 429";
        check("a forged X-Forwarded-For gets no fresh quota", statuses == expected, &statuses)
    })
}

fn is_locked_down(project: &Project<'_>) -> Result<(), Failure> {
    let user = process::read(&mut project.command(&["exec", "-T", "api1", "id", "-u"]))?;
    check("the replicas do not run as root", user.trim() != "0", &user)?;
    let question = ["exec", "-T", "redis", "redis-cli", "config", "get", "maxmemory-policy"];
    let policy = process::read(&mut project.command(&question))?;
    check("Redis evicts nothing", policy.contains("noeviction"), &policy)?;
    for (service, port) in [("redis", "6379"), ("api1", "3000"), ("api1", "9100")] {
        let at = project.published(service, port);
        check(&format!("the host does not publish port {port} of {service}"), at.is_empty(), &at)?;
    }
    Ok(())
}

fn continues_without_a_replica(project: &Project<'_>) -> Result<(), Failure> {
    process::run(&mut project.command(&["kill", "api2"]))?;
    let url = project.url("TOLLGATE_PORT", "/items");
    // The script used up the quota, so any answer from a replica suffices.
    let statuses: Vec<_> = (0..12).map(|_| status(&url, &[])).collect();
    let all_answered = statuses.iter().all(|status| status == "429" || status == "200");
    check("with a replica killed the other replicas answer", all_answered, &statuses.join(" "))?;
    let health = status(&project.url("TOLLGATE_PORT", "/nginx-health"), &[]);
    check("nginx remains healthy", health == "200", &health)?;
    process::run(&mut project.command(&["start", "api2"]))?;
    project.wait_until_healthy()
}

fn continues_without_redis(project: &Project<'_>) -> Result<(), Failure> {
    let url = project.url("TOLLGATE_PORT", "/items");
    process::run(&mut project.command(&["stop", "redis"]))?;
    // The first requests to each replica wait for the timeout. All requests fit into the replicas'
    // local fallbacks, which allow half of the quota each.
    let heads: Vec<_> = (0..24).map(|_| head(&url)).collect();
    let other = heads.iter().find(|head| !is_ok(head) || !is_reduced(head));
    let seen = first_line(other.map_or("24 responses with 200", |head| head));
    check("without Redis each replica decides with its local fallback", other.is_none(), seen)?;
    process::run(&mut project.command(&["start", "redis"]))?;
    let counted = wait_for(Duration::from_secs(30), || {
        let head = head(&url);
        (is_ok(&head) && !is_reduced(&head), head)
    });
    check("Redis decides again after its restart", counted.is_ok(), first_line(&either(counted)))
}

fn head(url: &str) -> String {
    curl(&["--dump-header", "-", "--output", "/dev/null", url]).to_ascii_lowercase()
}

fn is_ok(head: &str) -> bool {
    first_line(head).contains(" 200")
}

/// Whether the local fallback decided the request.
fn is_reduced(head: &str) -> bool {
    head.contains("\nx-ratelimit-reason: temporary-reduced-capacity")
}

fn first_line(head: &str) -> &str {
    head.lines().next().unwrap_or("none")
}

const FILES: &[&str] = &["docker-compose.yml"];
const PORTS: &[&str] = &["TOLLGATE_PORT"];
