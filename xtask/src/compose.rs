//! `cargo xtask compose-test`: docker-compose.yml for real, wherever there is a Docker engine.

use std::net::{Ipv4Addr, TcpListener};
use std::process::{self as std_process, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::process::{self, Failure};

pub(crate) fn run() -> Result<(), Failure> {
    let compose = Compose::find()?;
    let outcome = compose.shared_quota().and_then(|()| compose.by_address());
    if outcome.is_err() {
        // Whoever reads of the failure cannot ask the containers any more.
        let _ = process::run(&mut compose.command(&["logs", "--tail=40"]));
    }
    let cleared = compose.down();
    outcome.and(cleared)
}

/// docker-compose, with a project and a port of our own, so that what else runs here is left
/// alone.
struct Compose {
    program: &'static [&'static str],
    project: String,
    port: u16,
}

impl Compose {
    fn find() -> Result<Self, Failure> {
        let answers = |program: &[&str]| {
            let mut command = Command::new(program[0]);
            let status = command.args(&program[1..]).stdout(Stdio::null()).stderr(Stdio::null());
            status.status().is_ok_and(|status| status.success())
        };
        if !answers(&["docker", "info"]) {
            return Err(Failure::Unready(
                "no Docker engine answers `docker info`; cure: start one, or use `cargo xtask up`"
                    .to_owned(),
            ));
        }
        let known: [&[&str]; 2] = [&["docker", "compose"], &["docker-compose"]];
        let program = known.into_iter().find(|program| answers(&[*program, &["version"]].concat()));
        let program = program.ok_or_else(|| {
            Failure::Unready(
                "docker-compose is missing; cure: apt-get install docker-compose".to_owned(),
            )
        })?;
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|it| it.local_addr());
        let port = free.map_err(|error| Failure::Unready(format!("no free port: {error}")))?.port();
        let project = format!("tollgate-test-{}", std_process::id());
        let compose = Self { program, project, port };
        process::run(Command::new("docker").args(["version", "--format", "{{.Server.Version}}"]))?;
        process::run(&mut compose.command(&["version"]))?;
        Ok(compose)
    }

    /// The scenario with the quota that the demo has by default, and what stands in the file.
    fn shared_quota(&self) -> Result<(), Failure> {
        self.up(&[])?;
        process::run(&mut self.command(&["ps"]))?;
        let script = process::root().join("tests/balancer.sh");
        process::run(Command::new("bash").arg(script).arg("--wait").arg(self.url("")))?;

        let user = process::read(&mut self.command(&["exec", "-T", "api1", "id", "-u"]))?;
        check("the replicas do not run as root", user.trim() != "0", &user)?;
        let question = ["exec", "-T", "redis", "redis-cli", "config", "get", "maxmemory-policy"];
        let policy = process::read(&mut self.command(&question))?;
        check("Redis evicts nothing", policy.contains("noeviction"), &policy)?;
        let port = self.command(&["port", "redis", "6379"]).stderr(Stdio::null()).output();
        let port = port.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let port = port.unwrap_or_default();
        let is_closed = port.trim().is_empty() || port.trim().ends_with(":0");
        check("Redis has no port on the host", is_closed, &port)?;

        process::run(&mut self.command(&["kill", "api2"]))?;
        // By the script the quota is used up: it is enough that a replica answers at all.
        let statuses: Vec<_> = (0..12).map(|_| self.status("/items", "")).collect();
        let all_answered = statuses.iter().all(|status| status == "429" || status == "200");
        check("with a replica killed the others answer", all_answered, &statuses.join(" "))?;
        let health = self.status("/nginx-health", "");
        check("nginx is well meanwhile", health == "200", &health)?;
        self.down()
    }

    /// A limit by address: nginx says who is asking, and a client cannot.
    fn by_address(&self) -> Result<(), Failure> {
        self.up(&[
            ("TOLLGATE_KEY", "ip"),
            ("TOLLGATE_TRUSTED_PROXIES", "private"),
            ("TOLLGATE_LIMIT", "3"),
        ])?;
        let statuses: Vec<_> =
            (1..=5).map(|client| self.status("/items", &format!("203.0.113.{client}"))).collect();
        let statuses = statuses.join(" ");
        let expected = "200 200 200 429 429";
        check("a forged X-Forwarded-For wins no fresh quota", statuses == expected, &statuses)
    }

    fn up(&self, variables: &[(&str, &str)]) -> Result<(), Failure> {
        let mut command = self.command(&["up", "--build", "--detach"]);
        process::run(command.envs(variables.iter().copied()))?;
        let start = Instant::now();
        while self.status("/nginx-health", "") != "200" {
            if start.elapsed() > Duration::from_secs(60) {
                return Err(Failure::Broken("nginx does not answer after a minute".to_owned()));
            }
            thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    fn down(&self) -> Result<(), Failure> {
        process::run(&mut self.command(&[
            "down",
            "--volumes",
            "--remove-orphans",
            "--timeout",
            "5",
        ]))
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.program[0]);
        command.args(&self.program[1..]).args(["--project-name", &self.project]).args(args);
        command.env("TOLLGATE_PORT", self.port.to_string()).current_dir(process::root());
        command
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// The status of an answer, for a client that says it comes from somewhere else.
    fn status(&self, path: &str, forwarded_for: &str) -> String {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--max-time", "5", "--output", "/dev/null"]);
        curl.args(["--write-out", "%{http_code}", &self.url(path)]);
        if !forwarded_for.is_empty() {
            curl.args(["--header", &format!("X-Forwarded-For: {forwarded_for}")]);
        }
        let output = curl.stderr(Stdio::null()).output();
        output.map_or_else(
            |error| error.to_string(),
            |output| String::from_utf8_lossy(&output.stdout).into_owned(),
        )
    }
}

fn check(what: &str, holds: bool, seen: &str) -> Result<(), Failure> {
    if holds {
        println!("ok: {what} ({})", seen.split_whitespace().collect::<Vec<_>>().join(" "));
        return Ok(());
    }
    Err(Failure::Broken(format!("it does not hold that {what}: {}", seen.trim())))
}
