//! `cargo xtask test`: everything that tests need, then every test.

use std::ffi::{OsStr, OsString};
use std::process::{Command, Stdio};

use clap::ValueEnum as _;

use crate::process::{self, Failure};
use crate::servers::{self, Server};
use crate::tools;

/// What can be said on the command line.
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

    /// For the test runner, as in `cargo xtask test -- token_bucket`
    #[arg(last = true, value_name = "RUNNER ARGS")]
    runner: Vec<OsString>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let path = tools::provide(tools::FOR_TESTS, args.install)?;
    if !args.servers.is_empty() {
        let test = |path: &OsStr| tests(&servers::TESTS, &args.runner, args.all, path);
        return servers::each(&args.servers, &path, test);
    }
    tests(&["--workspace", "--all-features"], &args.runner, args.all, &path)?;
    if args.all {
        // Long tests are about the store and not about the server.
        let test = |path: &OsStr| tests(&servers::TESTS, &args.runner, false, path);
        servers::each(Server::value_variants(), &path, test)?;
    }
    // Documentation tests, which no run above takes along.
    process::run(&mut prepare(
        process::cargo(&["test", "--workspace", "--all-features", "--doc"]),
        args.all,
        &path,
    ))
}

fn prepare(mut command: Command, is_long: bool, path: &OsStr) -> Command {
    command.env("PATH", path);
    if is_long {
        command.envs([("TOLLGATE_HEAVY", "1"), ("TOLLGATE_LONG", "1")]);
    }
    command
}

/// Runs the selected tests.
fn tests(
    selection: &[&str],
    runner: &[OsString],
    is_long: bool,
    path: &OsStr,
) -> Result<(), Failure> {
    if has_nextest() {
        let mut command = process::cargo(&["nextest", "run", "--no-fail-fast"]);
        // By a variable, so that an old cargo-nextest that does not know the option runs
        // as well, and so that it can be given after `--`.
        command.env("NEXTEST_NO_TESTS", "fail").args(selection).args(runner);
        return process::run(&mut prepare(command, is_long, path));
    }
    println!("cargo-nextest is not installed, so `cargo test` runs the tests, more slowly.");
    // `--tests` leaves out the documentation tests, which have their own run.
    let mut command = process::cargo(&["test", "--tests"]);
    command.args(selection).args(runner);
    let mut executed = 0;
    let mut command = prepare(command, is_long, path);
    process::run_watching(&mut command, |line| executed += executed_in(line))?;
    if executed == 0 {
        return Err(Failure::Broken(NO_TESTS.to_owned()));
    }
    Ok(())
}

fn has_nextest() -> bool {
    process::cargo(&["nextest", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// How many tests ran, read from a line `test result: ok. 12 passed; 0 failed; …`.
fn executed_in(line: &str) -> u64 {
    let Some(result) = line.trim().strip_prefix("test result: ") else {
        return 0;
    };
    let count_before = |word: &str| {
        let (before, _) = result.split_once(word)?;
        before.split_whitespace().last()?.parse::<u64>().ok()
    };
    count_before(" passed").unwrap_or(0) + count_before(" failed").unwrap_or(0)
}

const NO_TESTS: &str = "not one test ran, and a run that tests nothing proves nothing\n\
    cure: if you gave a filter after `--`, look for a typing mistake in it";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_ran_are_counted_and_ignored_ones_are_not() {
        let cases = [
            ("test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 0 filtered out", 12),
            ("test result: FAILED. 5 passed; 2 failed; 0 ignored; 0 measured", 7),
            ("test result: ok. 0 passed; 0 failed; 4 ignored; 0 measured; 9 filtered out", 0),
            ("running 12 tests", 0),
            ("12 passed", 0),
        ];
        for (line, executed) in cases {
            assert_eq!(executed_in(line), executed, "{line}");
        }
    }
}
