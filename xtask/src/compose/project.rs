//! Runs docker-compose and queries its containers.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{self as std_process, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::check;
use crate::process::{self, Failure};

/// The docker-compose command on this machine.
pub(super) struct Engine {
    program: &'static [&'static str],
}

impl Engine {
    pub(super) fn find() -> Result<Self, Failure> {
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
        process::run(Command::new("docker").args(["version", "--format", "{{.Server.Version}}"]))?;
        let engine = Self { program };
        process::run(engine.command().arg("version"))?;
        Ok(engine)
    }

    /// Runs a test with a project from these files. It uses free ports, so other containers are not
    /// affected, and is removed after the test.
    pub(super) fn with_project(
        &self,
        files: &[&str],
        ports: &[&'static str],
        variables: &[(&'static str, &str)],
        test: impl FnOnce(&Project<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let variables = variables.iter().map(|&(name, value)| (name, value.to_owned()));
        let project = Project {
            engine: self,
            name: format!("tollgate-test-{}", std_process::id()),
            files: files.iter().map(|&file| file.to_owned()).collect(),
            variables: free_ports(ports)?.into_iter().chain(variables).collect(),
        };
        println!("\n== {}", files.join(" and "));
        let outcome = test(&project);
        if outcome.is_err() {
            // The containers are removed afterwards, so their state and logs are printed now.
            let _ = process::run(&mut project.command(&["ps", "--all"]));
            let _ = process::run(&mut project.command(&["logs", "--tail=40"]));
        }
        let down = ["down", "--volumes", "--remove-orphans", "--timeout", "5"];
        let cleared = process::run(&mut project.command(&down));
        outcome.and(cleared)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.program[0]);
        command.args(&self.program[1..]);
        command
    }
}

pub(super) struct Project<'a> {
    engine: &'a Engine,
    name: String,
    files: Vec<String>,
    variables: BTreeMap<&'static str, String>,
}

impl Project<'_> {
    /// Builds and starts these services, by default all, and waits until they are healthy.
    pub(super) fn up(&self, services: &[&str]) -> Result<(), Failure> {
        let up = [&["up", "--build", "--detach"], services].concat();
        process::run(&mut self.command(&up))?;
        self.wait_until_healthy()
    }

    /// Waits until every container is healthy, or running if it has no health check.
    pub(super) fn wait_until_healthy(&self) -> Result<(), Failure> {
        let format = "{{.Name}} {{if .State.Health}}{{.State.Health.Status}}{{else}}{{.State.Status}}{{end}}";
        let states = wait_for(Duration::from_secs(90), || {
            let states = self.inspect(format).unwrap_or_default();
            let is_well = |line: &str| line.ends_with(" healthy") || line.ends_with(" running");
            (!states.is_empty() && states.lines().all(is_well), states)
        });
        check("every container is healthy", states.is_ok(), &either(states))
    }

    /// Stops all containers, and fails if Docker had to kill a container.
    pub(super) fn stop_gracefully(&self) -> Result<(), Failure> {
        process::run(&mut self.command(&["stop"]))?;
        let codes = self.inspect("{{.Name}} {{.State.ExitCode}}")?;
        let all_zero = !codes.is_empty() && codes.lines().all(|line| line.ends_with(" 0"));
        check("every container exits by itself with code 0", all_zero, &codes)
    }

    /// A docker-compose command for this project.
    pub(super) fn command(&self, args: &[&str]) -> Command {
        let mut command = self.engine.command();
        command.args(["--project-name", &self.name]);
        for file in &self.files {
            command.args(["--file", file]);
        }
        command.args(args).envs(&self.variables).current_dir(process::root());
        command
    }

    /// The URL for a path at the port in this variable.
    pub(super) fn url(&self, port: &str, path: &str) -> String {
        let port = self.variables.get(port).map_or("", String::as_str);
        format!("http://127.0.0.1:{port}{path}")
    }

    /// The host address that publishes a service's port. Empty if the port is not published.
    pub(super) fn published(&self, service: &str, port: &str) -> String {
        let output = self.command(&["port", service, port]).stderr(Stdio::null()).output();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        // For an unpublished port, docker-compose prints the port 0 or no line.
        text.ok().filter(|text| !text.ends_with(":0")).unwrap_or_default()
    }

    fn inspect(&self, format: &str) -> Result<String, Failure> {
        let ids = process::read(&mut self.command(&["ps", "--all", "--quiet"]))?;
        let mut inspect = Command::new("docker");
        inspect.args(["inspect", "--format", format]).args(ids.split_whitespace());
        process::read(&mut inspect)
    }
}

/// curl's output: the response, or the part that arrived within 5 s.
pub(super) fn curl(args: &[&str]) -> String {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--max-time", "5"]).args(args).stderr(Stdio::null());
    curl.output().map_or_else(
        |error| error.to_string(),
        |output| String::from_utf8_lossy(&output.stdout).into_owned(),
    )
}

/// The response status; 000 if there is no response.
pub(super) fn status(url: &str, args: &[&str]) -> String {
    let usual = ["--output", "/dev/null", "--write-out", "%{http_code}", url];
    curl(&[&usual, args].concat())
}

/// Polls until `look` returns true. Returns its last value, as an error after the timeout.
pub(super) fn wait_for<T>(patience: Duration, mut look: impl FnMut() -> (bool, T)) -> Result<T, T> {
    let start = Instant::now();
    loop {
        let (is_so, seen) = look();
        if is_so {
            return Ok(seen);
        }
        if start.elapsed() > patience {
            return Err(seen);
        }
        thread::sleep(Duration::from_millis(200));
    }
}

pub(super) fn either<T>(seen: Result<T, T>) -> T {
    seen.unwrap_or_else(|seen| seen)
}

fn free_ports(names: &[&'static str]) -> Result<Vec<(&'static str, String)>, Failure> {
    // All listeners remain open until the end, so the ports are distinct.
    let listeners: Result<Vec<_>, _> =
        names.iter().map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect();
    let ports = listeners.and_then(|listeners| {
        let ports: Result<Vec<_>, _> = listeners.iter().map(TcpListener::local_addr).collect();
        ports
    });
    let ports = ports.map_err(|error| Failure::Unready(format!("no free port: {error}")))?;
    Ok(names.iter().zip(ports).map(|(&name, at)| (name, at.port().to_string())).collect())
}
