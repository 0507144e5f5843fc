//! `cargo xtask test`: everything that tests need, then every test.

mod failures;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;

use clap::ValueEnum as _;

use self::failures::{Failed, Failures};
use crate::process::{self, Failure};
use crate::servers::{self, Server};
use crate::{tools, workspace};

/// Command-line arguments of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run the heavy and the long tests too (sets TOLLGATE_HEAVY=1 and TOLLGATE_LONG=1)
    #[arg(long)]
    all: bool,

    /// Test the Redis store against this server instead, which is fetched but not installed;
    /// say it again for several
    #[arg(long = "server", value_name = "SERVER")]
    servers: Vec<Server>,

    /// Install missing programs with sudo; root needs no such permission
    #[arg(long)]
    install: bool,

    /// Run everything N times, every second time beside one busy loop per processor
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,

    /// For the test runner, as in `cargo xtask test -- token_bucket`; no documentation test
    /// runs then
    #[arg(last = true, value_name = "RUNNER ARGS")]
    runner: Vec<OsString>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let path = tools::provide(tools::FOR_TESTS, args.install)?;
    let mut failures = Failures::default();
    for number in 1..=args.repeat {
        let is_busy = number % 2 == 0;
        if args.repeat > 1 {
            let beside = if is_busy { ", beside busy loops" } else { "" };
            println!("\n== run {number} of {}{beside}", args.repeat);
        }
        let _loops = is_busy.then(busy_loops);
        failures.add(once(args, &path)?);
    }
    if args.repeat > 1 {
        println!("\n{} runs, {} of them beside busy loops", args.repeat, args.repeat / 2);
    }
    failures.verdict(args.repeat)
}

/// One run of everything, which goes on after a failure.
fn once(args: &Args, path: &OsStr) -> Result<Vec<Failed>, Failure> {
    let Args { servers, runner, all, .. } = args;
    let mut failed = Vec::new();
    if servers.is_empty() {
        let run = Run { path, is_long: *all, server: None };
        failed.extend(run.tests(&["--workspace", "--all-features"], runner)?);
        if runner.is_empty() {
            failed.extend(run.documentation()?);
        }
    }
    let others = if servers.is_empty() && *all { Server::value_variants() } else { servers };
    for server in others {
        println!("\n== {}", server.name);
        let path = server.before(path)?;
        // Long tests are about the store and not about the server.
        let run = Run { path: &path, is_long: false, server: Some(server.name) };
        failed.extend(run.tests(&servers::TESTS, runner)?);
    }
    Ok(failed)
}

/// Where tests run and which of them.
struct Run<'a> {
    path: &'a OsStr,
    is_long: bool,
    server: Option<&'static str>,
}

impl Run<'_> {
    fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = process::cargo(arguments);
        command.env("PATH", self.path);
        if self.is_long {
            command.envs([("TOLLGATE_HEAVY", "1"), ("TOLLGATE_LONG", "1")]);
        }
        command
    }

    /// Runs the selected tests.
    fn tests(&self, selection: &[&str], runner: &[OsString]) -> Result<Vec<Failed>, Failure> {
        let failed = if has_nextest() {
            let mut command = self.cargo(&["nextest", "run"]);
            with_nextest(command.args(selection).args(runner))?
        } else {
            println!(
                "cargo-nextest is not installed, so `cargo test` runs the tests, more slowly."
            );
            // `--tests` leaves out the documentation tests, which have their own run.
            let mut command = self.cargo(&["test", "--no-fail-fast", "--tests"]);
            with_cargo(command.args(selection).args(runner))?
        };
        Ok(failed.into_iter().map(|failed| failed.with(self.server)).collect())
    }

    /// Runs the documentation tests, which no other run takes along.
    fn documentation(&self) -> Result<Vec<Failed>, Failure> {
        const TESTS: [&str; 5] =
            ["test", "--workspace", "--all-features", "--doc", "--no-fail-fast"];
        with_cargo(&mut self.cargo(&TESTS))
    }
}

fn has_nextest() -> bool {
    process::cargo(&["nextest", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

fn with_nextest(command: &mut Command) -> Result<Vec<Failed>, Failure> {
    let profile = std::env::var("NEXTEST_PROFILE").unwrap_or_else(|_| "default".to_owned());
    let report =
        Path::new(&workspace::target_folder()?).join("nextest").join(profile).join("junit.xml");
    // The report of an earlier run says nothing about this one.
    let _ = fs::remove_file(&report);
    // By a variable, so that an old cargo-nextest that does not know the option runs
    // as well, and so that it can be given after `--`.
    command.env("NEXTEST_NO_TESTS", "fail");
    if std::env::var_os(THREADS).is_none() {
        command.env(THREADS, (processors() * 2 + 1).to_string());
    }
    let status = process::status(command)?;
    // There is no report if something did not build.
    let failed =
        fs::read_to_string(&report).map_or_else(|_| Vec::new(), |it| failures::in_report(&it));
    if failed.is_empty() {
        process::expect_success(command, status)?;
    }
    Ok(failed)
}

fn with_cargo(command: &mut Command) -> Result<Vec<Failed>, Failure> {
    let is_doc = command.get_args().any(|argument| argument == "--doc");
    let (mut ran, mut failed) = (0, Vec::new());
    let status = process::status_watching(command, |line| {
        ran += failures::executed_in(line);
        failed.extend(failures::in_line(line, is_doc));
    })?;
    if failed.is_empty() {
        process::expect_success(command, status)?;
    }
    if ran == 0 {
        return Err(Failure::Broken(NO_TESTS.to_owned()));
    }
    Ok(failed)
}

/// Keeps every processor busy until the handle is dropped: a test that passes then does not
/// need a fast machine.
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

/// How many tests nextest runs at a time. Many wait for servers and timers, so that as many as
/// there are processors would leave these idle.
const THREADS: &str = "NEXTEST_TEST_THREADS";

const NO_TESTS: &str = "not one test ran, and a run that tests nothing proves nothing\n\
    cure: if you gave a filter after `--`, look for a typing mistake in it";
