//! Two gateways with one quota in Redis, told by a file that changes.

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

/// In a folder with a copy of the file, so that nothing in the repository changes.
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
        reads_its_file_again(project, folder, &text)?;
        goes_on_without_redis(project)?;
        answers_what_is_under_way(project)
    })
}

fn shares_a_quota(project: &Project<'_>) -> Result<(), Failure> {
    let start = Instant::now();
    let statuses: Vec<_> =
        (0..40).map(|n| status(&project.url(GATEWAYS[n % 2], "/items"), &[])).collect();
    // One unit is refilled each second.
    let most = 10 + start.elapsed().as_secs() + 1;
    let passed = statuses.iter().filter(|status| *status == "200").count();
    let denied = statuses.iter().filter(|status| *status == "429").count();
    let begins = statuses[..10].iter().all(|status| status == "200");
    let is_one = begins && passed + denied == statuses.len() && passed as u64 <= most;
    check("ten pass, whichever gateway was asked", is_one, &statuses.join(" "))
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
    check("it is for this machine alone", at.starts_with("127.0.0.1:"), &at)?;
    let at = project.published("gateway2", "8081");
    check("that of the second is not one of the host", at.is_empty(), &at)?;
    let question = ["exec", "-T", "gateway1", "tollgate", "check", "/etc/tollgate/shared.yaml"];
    process::run(&mut project.command(&question))
}

/// A file that is put in the place of the old one, as editors do.
fn reads_its_file_again(project: &Project<'_>, folder: &Path, text: &str) -> Result<(), Failure> {
    replace(folder, "shared.yaml", &text.replace("limit: 60\n", "limit: 600\n"))?;
    both_say(project, "another number counts", FASTER)?;
    replace(folder, "shared.yaml", &text.replace("limit: 60\n", "limit: many\n"))?;
    let config = wait_for(Duration::from_secs(20), || {
        let config = operate(&project.url("ADMIN_PORT", "/config"));
        (config.contains("`many`"), config)
    });
    check("a bad file is told", config.is_ok(), line(&either(config), "\"message\""))?;
    let head = head(&project.url(GATEWAYS[0], "/items"));
    let goes_on = line(&head, POLICY).ends_with(FASTER);
    check("and changes nothing", goes_on, line(&head, POLICY))?;
    replace(folder, "shared.yaml", text)?;
    both_say(project, "the next good one counts", USUAL)
}

/// That both gateways have this quota, as soon as they have read of it.
fn both_say(project: &Project<'_>, what: &str, quota: &str) -> Result<(), Failure> {
    for gateway in GATEWAYS {
        let policy = wait_for(Duration::from_secs(20), || {
            let head = head(&project.url(gateway, "/items"));
            (line(&head, POLICY).ends_with(quota), head)
        });
        check(what, policy.is_ok(), line(&either(policy), POLICY))?;
    }
    Ok(())
}

fn goes_on_without_redis(project: &Project<'_>) -> Result<(), Failure> {
    process::run(&mut project.command(&["stop", "redis"]))?;
    for gateway in GATEWAYS {
        let url = project.url(gateway, "/items");
        // It had no part in what was used before, so half a quota is there and no more.
        let statuses = (0..40).map(|_| status(&url, &[])).collect::<Vec<_>>().join(" ");
        let is_part = statuses.starts_with("200") && statuses.contains("429");
        check("without Redis a gateway grants a part by itself", is_part, &statuses)?;
    }
    process::run(&mut project.command(&["start", "redis"]))?;
    project.is_well()
}

/// A request that waits for its turn longer than Docker has patience, unless told otherwise.
fn answers_what_is_under_way(project: &Project<'_>) -> Result<(), Failure> {
    let url = project.url(GATEWAYS[0], "/items?q=tea");
    let ask = || status(&url, &["--request", "SEARCH", "--max-time", "60"]);
    // Until it is decided by the quota that Redis has, and empty.
    let first = wait_for(Duration::from_secs(30), || {
        let first = ask();
        (first == "200", first)
    });
    check("the first of a queue does not wait", first.is_ok(), &either(first))?;
    thread::scope(|scope| {
        let waiting = scope.spawn(ask);
        let waits = wait_for(Duration::from_secs(20), || {
            let metrics = operate(&project.url("ADMIN_PORT", "/metrics"));
            let waits = metrics.contains("tollgate_waiting_requests{policy=\"slow\"} 1");
            (waits, line(&metrics, "tollgate_waiting_requests{").to_owned())
        });
        check("the second one does", waits.is_ok(), &either(waits))?;
        project.stops_by_itself()?;
        let status = waiting.join().unwrap_or_else(|_| "a panic".to_owned());
        check("who waited has an answer", status == "200", &status)
    })
}

/// The answer of the admin address to a request with the token.
fn operate(url: &str) -> String {
    curl(&[&[url], &OPERATOR[..]].concat())
}

fn head(url: &str) -> String {
    curl(&["--dump-header", "-", "--output", "/dev/null", url]).to_ascii_lowercase()
}

/// The first line with this in it.
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

/// The start of the gateway's header. The policy of the demo has another name.
const POLICY: &str = "ratelimit-policy: \"client\";";
/// A quota of 10 units per 10 s, and of 10 units per 1 s.
const USUAL: &str = ";q=10;w=10";
const FASTER: &str = ";q=10;w=1";

/// A queue that one leaves every twelve seconds: more than the ten after which Docker kills.
const SLOW: &str = "    - identifier: slow
      path: /items
      method: SEARCH
      strategy: leaky_bucket
      limit: 5
      refillSeconds: 60
";
