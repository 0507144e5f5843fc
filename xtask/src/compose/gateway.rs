//! Two gateways with a shared quota in Redis and a configuration file that changes.

use std::fs;
use std::io;
use std::path::Path;
use std::process as std_process;
use std::thread;
use std::time::{Duration, Instant};

use super::check;
use super::project::{Engine, Project, curl, either, status, wait_for};
use crate::process::{self, Failure};

pub(super) fn limits_reloads_and_drains(engine: &Engine) -> Result<(), Failure> {
    let folder = process::root().join(format!("target/compose-test-{}", std_process::id()));
    let outcome = within(engine, &folder);
    let removed = fs::remove_dir_all(&folder).map_err(|error| unready(&folder, &error));
    outcome.and(removed)
}

/// Tests in a folder with a copy of the configuration file, so the repository does not change.
fn within(engine: &Engine, folder: &Path) -> Result<(), Failure> {
    let original = process::root().join("examples/gateway/shared.yaml");
    let text = fs::read_to_string(&original).map_err(|error| unready(&original, &error))?;
    let text = text.replace("\n  apis:\n", &format!("\n  apis:\n{SLOW}"));
    fs::create_dir_all(folder).map_err(|error| unready(folder, &error))?;
    replace(folder, "shared.yaml", &text)?;
    let mounted = format!("volumes: ['{}:/etc/tollgate:ro']", folder.display());
    let other_folder = format!("services:\n  gateway1: {{{mounted}}}\n  gateway2: {{{mounted}}}\n");
    replace(folder, "folder.yml", &other_folder)?;
    let other_folder = folder.join("folder.yml");
    let files = ["examples/gateway/docker-compose.yml", &*other_folder.to_string_lossy()];
    let token = [("TOLLGATE_ADMIN_TOKEN", TOKEN)];
    engine.with_project(&files, &PORTS, &token, |project| {
        project.up(&[])?;
        let user = process::read(&mut project.command(&["exec", "-T", "gateway1", "id", "-u"]))?;
        check("the gateway does not run as root", user.trim() != "0", &user)?;
        shares_a_quota(project)?;
        has_an_admin_address(project)?;
        reloads_its_file(project, folder, &text)?;
        continues_without_redis(project)?;
        drains_on_stop(project)
    })
}

fn shares_a_quota(project: &Project<'_>) -> Result<(), Failure> {
    let start = Instant::now();
    let statuses: Vec<_> =
        (0..40).map(|n| status(&project.url(GATEWAYS[n % 2], "/items"), &[])).collect();
    // A unit is refilled each second.
    let most = 10 + start.elapsed().as_secs() + 1;
    let passed = statuses.iter().filter(|status| *status == "200").count();
    let denied = statuses.iter().filter(|status| *status == "429").count();
    let begins = statuses[..10].iter().all(|status| status == "200");
    let is_one = begins && passed + denied == statuses.len() && passed as u64 <= most;
    check("both gateways together allow ten requests", is_one, &statuses.join(" "))
}

fn has_an_admin_address(project: &Project<'_>) -> Result<(), Failure> {
    for path in ["/readyz", "/"] {
        let status = status(&project.url("ADMIN_PORT", path), &[]);
        check(&format!("the admin address has {path}"), status == "200", &status)?;
    }
    for path in ["/status", "/metrics", "/config"] {
        let url = project.url("ADMIN_PORT", path);
        let statuses = format!("{} {}", status(&url, &[]), status(&url, &OPERATOR));
        check(&format!("{path} needs the token"), statuses == "401 200", &statuses)?;
    }
    let at = project.published("gateway1", "8081");
    check("the admin address listens only on this machine", at.starts_with("127.0.0.1:"), &at)?;
    let at = project.published("gateway2", "8081");
    check("the host does not publish the second admin address", at.is_empty(), &at)?;
    let question = ["exec", "-T", "gateway1", "tollgate", "check", "/etc/tollgate/shared.yaml"];
    process::run(&mut project.command(&question))
}

/// Replaces the configuration file, like editors do.
fn reloads_its_file(project: &Project<'_>, folder: &Path, text: &str) -> Result<(), Failure> {
    replace(folder, "shared.yaml", &text.replace("limit: 60\n", "limit: 600\n"))?;
    expect_quota(project, "a changed limit takes effect", FASTER)?;
    replace(folder, "shared.yaml", &text.replace("limit: 60\n", "limit: many\n"))?;
    let config = wait_for(Duration::from_secs(20), || {
        let config = operate(&project.url("ADMIN_PORT", "/config"));
        (config.contains("`many`"), config)
    });
    check("an invalid file is reported", config.is_ok(), line(&either(config), "\"message\""))?;
    let head = head(&project.url(GATEWAYS[0], "/items"));
    let goes_on = line(&head, POLICY).ends_with(FASTER);
    check("an invalid file changes no limit", goes_on, line(&head, POLICY))?;
    replace(folder, "shared.yaml", text)?;
    expect_quota(project, "the next valid file takes effect", USUAL)
}

/// Waits until both gateways report this quota.
fn expect_quota(project: &Project<'_>, what: &str, quota: &str) -> Result<(), Failure> {
    for gateway in GATEWAYS {
        let policy = wait_for(Duration::from_secs(20), || {
            let head = head(&project.url(gateway, "/items"));
            (line(&head, POLICY).ends_with(quota), head)
        });
        check(what, policy.is_ok(), line(&either(policy), POLICY))?;
    }
    Ok(())
}

fn continues_without_redis(project: &Project<'_>) -> Result<(), Failure> {
    process::run(&mut project.command(&["stop", "redis"]))?;
    for gateway in GATEWAYS {
        let url = project.url(gateway, "/items");
        // The local fallback starts without earlier charges, so it allows half of the quota.
        let statuses = (0..40).map(|_| status(&url, &[])).collect::<Vec<_>>().join(" ");
        let is_part = statuses.starts_with("200") && statuses.contains("429");
        check("without Redis a gateway allows a part of the quota", is_part, &statuses)?;
    }
    process::run(&mut project.command(&["start", "redis"]))?;
    project.wait_until_healthy()
}

/// Stops the gateways while a request waits in the queue for longer than Docker's default stop
/// timeout.
fn drains_on_stop(project: &Project<'_>) -> Result<(), Failure> {
    let url = project.url(GATEWAYS[0], "/items?q=tea");
    let ask = || status(&url, &["--request", "SEARCH", "--max-time", "60"]);
    // Repeat until Redis decides and the queue is empty.
    let first = wait_for(Duration::from_secs(30), || {
        let first = ask();
        (first == "200", first)
    });
    check("the first request in a queue does not wait", first.is_ok(), &either(first))?;
    thread::scope(|scope| {
        let waiting = scope.spawn(ask);
        let waits = wait_for(Duration::from_secs(20), || {
            let metrics = operate(&project.url("ADMIN_PORT", "/metrics"));
            let waits = metrics.contains("tollgate_waiting_requests{policy=\"slow\"} 1");
            (waits, line(&metrics, "tollgate_waiting_requests{").to_owned())
        });
        check("the second request waits", waits.is_ok(), &either(waits))?;
        project.stop_gracefully()?;
        let status = waiting.join().unwrap_or_else(|_| "a panic".to_owned());
        check("the waiting request is answered", status == "200", &status)
    })
}

/// The admin address's response to a request with the token.
fn operate(url: &str) -> String {
    curl(&[&[url], &OPERATOR[..]].concat())
}

fn head(url: &str) -> String {
    curl(&["--dump-header", "-", "--output", "/dev/null", url]).to_ascii_lowercase()
}

/// The first line that contains `part`.
fn line<'a>(text: &'a str, part: &str) -> &'a str {
    text.lines().find(|line| line.contains(part)).unwrap_or("none")
}

fn replace(folder: &Path, name: &str, text: &str) -> Result<(), Failure> {
    let beside = folder.join("new");
    let path = folder.join(name);
    let written = fs::write(&beside, text).and_then(|()| fs::rename(&beside, &path));
    written.map_err(|error| unready(&path, &error))
}

fn unready(path: &Path, error: &io::Error) -> Failure {
    Failure::Unready(format!("{}: {error}", path.display()))
}

const TOKEN: &str = "not-a-secret-of-this-test";
const OPERATOR: [&str; 2] = ["--header", "Authorization: Bearer not-a-secret-of-this-test"];

const GATEWAYS: [&str; 2] = ["GATEWAY1_PORT", "GATEWAY2_PORT"];
const PORTS: [&str; 3] = ["GATEWAY1_PORT", "GATEWAY2_PORT", "ADMIN_PORT"];

/// The start of the gateway's header. The demo's policy has another name.
const POLICY: &str = "ratelimit-policy: \"client\";";
/// A quota of 10 units per 10 s, and of 10 units per 1 s.
const USUAL: &str = ";q=10;w=10";
const FASTER: &str = ";q=10;w=1";

/// A queue that sends a request every twelve seconds. By default, Docker kills a container ten
/// seconds after the stop signal.
const SLOW: &str = "    - identifier: slow
      path: /items
      method: SEARCH
      strategy: leaky_bucket
      limit: 5
      refillSeconds: 60
";
