//! `cargo xtask test`: installs the programs that tests need, and runs every test.

mod alone;
mod failures;
mod skips;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;

use clap::ValueEnum as _;

use self::alone::Repeated;
use self::failures::{Failures, Outcomes, Runner, Test};
use self::skips::Skips;
use crate::process::{self, Failure};
use crate::servers::{self, Server};
use crate::tools;

/// Command-line arguments of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run the heavy and the long tests too (sets TOLLGATE_HEAVY=1 and TOLLGATE_LONG=1)
    #[arg(long)]
    all: bool,

    /// Test the Redis store against this server instead, which is fetched but not installed;
    /// repeat the option for several servers
    #[arg(long = "server", value_name = "SERVER")]
    servers: Vec<Server>,

    /// Install missing programs with sudo; root needs no such permission
    #[arg(long)]
    install: bool,

    /// Run everything N times, every second time beside one busy loop per processor. A single
    /// failure counts; a plain run repeats a failed test alone, up to twice
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,

    /// Arguments for the test runner, for example `cargo xtask test -- token_bucket`; documentation
    /// tests then do not run
    #[arg(last = true, value_name = "RUNNER ARGS")]
    runner: Vec<OsString>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let path = tools::provide(tools::FOR_TESTS, args.install)?;
    let path = if args.all { tools::with_envoy(&path)? } else { path };
    let mut failures = Failures::default();
    let mut skips = Skips::new()?;
    let mut repeated = Repeated::default();
    for number in 1..=args.repeat {
        let is_busy = number % 2 == 0;
        if args.repeat > 1 {
            let beside = if is_busy { ", beside busy loops" } else { "" };
            println!("\n== run {number} of {}{beside}", args.repeat);
        }
        let _loops = is_busy.then(busy_loops);
        let mut failed = once(args, &path, &mut skips)?;
        if args.excuses_chance() {
            let run = Run { path: &path, record: skips.record(), is_long: false };
            repeated = Repeated::of(failed, |failed| run.alone(failed))?;
            skips.collect(None)?;
            failed = std::mem::take(&mut repeated.failed);
        }
        failures.add(failed);
    }
    if args.repeat > 1 {
        println!("\n{} runs, {} of them beside busy loops", args.repeat, args.repeat / 2);
    }
    print!("{}{}", skips.summary(), repeated.block());
    failures.verdict(args.repeat)?;
    if profile() == "ci" { skips.expect_listed() } else { Ok(()) }
}

impl Args {
    /// Whether a failed test may pass when it is repeated alone. Runs that search for rare
    /// failures, or for a certain failure, count the first failure.
    fn excuses_chance(&self) -> bool {
        self.repeat == 1 && !self.all && self.servers.is_empty() && self.runner.is_empty()
    }
}

/// Runs everything one time, and continues after a failure.
fn once(args: &Args, path: &OsStr, skips: &mut Skips) -> Result<Vec<Test>, Failure> {
    let Args { servers, runner, all, .. } = args;
    let mut failed = Vec::new();
    if servers.is_empty() {
        let run = Run { path, record: skips.record(), is_long: *all };
        let selection = if *all { &TESTS[..3] } else { &TESTS };
        failed.extend(run.tests(selection, runner)?.failed);
        if runner.is_empty() {
            failed.extend(run.documentation(&[])?.failed);
        }
        skips.collect(None)?;
    }
    let others = if servers.is_empty() && *all { Server::value_variants() } else { servers };
    for server in others {
        println!("\n== {}", server.name);
        let path = server.before(path)?;
        // Long tests are about the store and not about the server.
        let server = Some(server.name);
        let run = Run { path: &path, record: skips.record(), is_long: false };
        let outcomes = run.tests(&servers::TESTS, runner)?;
        failed.extend(outcomes.failed.into_iter().map(|failed| failed.with(server)));
        skips.collect(server)?;
    }
    Ok(failed)
}

/// The environment of a run.
struct Run<'a> {
    path: &'a OsStr,
    /// The file to which tests append their skips.
    record: &'a Path,
    is_long: bool,
}

impl Run<'_> {
    fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = process::cargo(arguments);
        command.env("PATH", self.path).env(skips::RECORD, self.record);
        if self.is_long {
            command.envs([("TOLLGATE_HEAVY", "1"), ("TOLLGATE_LONG", "1")]);
        }
        command
    }

    /// Runs the selected tests.
    fn tests(&self, selection: &[&str], runner: &[OsString]) -> Result<Outcomes, Failure> {
        if has_nextest() {
            let mut command = self.cargo(&["nextest", "run"]);
            with_nextest(command.args(selection).args(runner))
        } else {
            println!(
                "cargo-nextest is not installed, so `cargo test` runs the tests, more slowly."
            );
            let mut command = self.cargo(&["test", "--no-fail-fast"]);
            with_cargo(command.args(selection).args(runner), Runner::Libtest)
        }
    }

    /// Runs the documentation tests, which the other runs do not include.
    fn documentation(&self, runner: &[OsString]) -> Result<Outcomes, Failure> {
        let mut command = self.cargo(&["test", "--no-fail-fast", "--doc"]);
        with_cargo(command.args(&TESTS[1..]).args(runner), Runner::Doctest)
    }

    /// Repeats failed tests one at a time, and returns the tests that passed.
    fn alone(&self, failed: &[Test]) -> Result<Vec<Test>, Failure> {
        let mut passed = Vec::new();
        for runner in Runner::ALL {
            let tests: Vec<_> = failed.iter().filter(|test| test.runner == runner).collect();
            if tests.is_empty() {
                continue;
            }
            let exactly: Vec<_> = runner.exactly(&tests).into_iter().map(OsString::from).collect();
            let outcomes = match runner {
                Runner::Nextest | Runner::Libtest => self.tests(&TESTS, &exactly)?,
                Runner::Doctest => self.documentation(&exactly)?,
            };
            passed.extend(tests.into_iter().filter(|test| outcomes.have_passed(test)).cloned());
        }
        Ok(passed)
    }
}

fn has_nextest() -> bool {
    process::cargo(&["nextest", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

fn with_nextest(command: &mut Command) -> Result<Outcomes, Failure> {
    // In the workspace's folder, even if cargo builds elsewhere (CARGO_TARGET_DIR).
    let report = process::root().join("target/nextest").join(profile()).join("junit.xml");
    // Remove the report of an earlier run.
    let _ = fs::remove_file(&report);
    set_nextest_variables(command);
    let status = process::status(command)?;
    let mut outcomes = Outcomes::default();
    // There is no report if something did not build.
    if let Ok(report) = fs::read_to_string(&report) {
        outcomes.add_report(&report);
    }
    if outcomes.failed.is_empty() {
        process::expect_success(command, status)?;
    }
    Ok(outcomes)
}

fn set_nextest_variables(command: &mut Command) {
    // A variable instead of the option, because an old cargo-nextest rejects an unknown option, and
    // so that users can pass the option after `--`.
    command.env("NEXTEST_NO_TESTS", "fail");
    // The variable overrides the profile, and a test that passes at its second attempt would count
    // as passed.
    command.env_remove("NEXTEST_RETRIES");
    if std::env::var_os(THREADS).is_none() {
        command.env(THREADS, (processors() * 3 + 1).to_string());
    }
}

fn with_cargo(command: &mut Command, runner: Runner) -> Result<Outcomes, Failure> {
    let (mut ran, mut outcomes) = (0, Outcomes::default());
    let status = process::status_watching(command, |line| {
        ran += failures::executed_in(line);
        outcomes.add_line(line, runner);
    })?;
    if outcomes.failed.is_empty() || !outcomes.are_complete() {
        process::expect_success(command, status)?;
    }
    if ran == 0 {
        return Err(Failure::Broken(NO_TESTS.to_owned()));
    }
    Ok(outcomes)
}

/// nextest's profile.
fn profile() -> String {
    std::env::var("NEXTEST_PROFILE").unwrap_or_else(|_| "default".to_owned())
}

/// Occupies every processor until the handle is dropped. A test that still passes does not need a
/// fast machine.
fn busy_loops() -> Arc<()> {
    let handle = Arc::new(());
    for _ in 0..processors() {
        let handle = Arc::downgrade(&handle);
        thread::spawn(move || {
            while handle.strong_count() > 0 {
                std::hint::spin_loop();
            }
        });
    }
    handle
}

fn processors() -> usize {
    thread::available_parallelism().map_or(2, usize::from)
}

/// All tests besides the documentation tests. `--all` drops the last two arguments. A plain run
/// would only compile benchmarks and examples, and `cargo xtask check clippy` does that.
const TESTS: [&str; 5] =
    ["--tests", "--workspace", "--all-features", "--exclude=tollgate-bench", "--exclude=examples"];

/// The number of tests that nextest runs at a time. Many tests wait for servers and timers, so one
/// test per processor would leave processors idle.
const THREADS: &str = "NEXTEST_TEST_THREADS";

const NO_TESTS: &str = "not one test ran, and a run that tests nothing proves nothing\n\
    cure: if you gave a filter after `--`, look for a typing mistake in it";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_from_the_environment_are_ignored() {
        let mut command = Command::new("cargo");
        command.env("NEXTEST_RETRIES", "2");
        set_nextest_variables(&mut command);
        let retries = command.get_envs().find(|(name, _)| *name == "NEXTEST_RETRIES");
        // `None` removes the variable of this process too.
        assert_eq!(retries, Some((OsStr::new("NEXTEST_RETRIES"), None)));
    }
}
