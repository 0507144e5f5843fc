//! `cargo xtask test`: installs the programs that tests need, and runs every test.

use std::collections::BTreeSet;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::thread;

use clap::builder::PossibleValuesParser;

use crate::process::{self, Failure};
use crate::servers::{self, SERVERS};
use crate::tools;
use crate::workspace;

/// Command-line arguments of `cargo xtask test`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run the heavy and the long tests too (sets TOLLGATE_HEAVY=1 and TOLLGATE_LONG=1)
    #[arg(long)]
    all: bool,

    /// Test the Redis store against this server instead, which is fetched but not installed;
    /// repeat the option for several servers
    #[arg(long = "server", value_name = "SERVER")]
    #[arg(value_parser = PossibleValuesParser::new(SERVERS.map(|(name, _)| name)))]
    servers: Vec<String>,

    /// Install missing programs with sudo; not needed if you are root
    #[arg(long)]
    install: bool,

    /// Arguments for the test runner, for example `cargo xtask test -- token_bucket` or, with
    /// nextest, `-- --stress-count 20`; documentation tests then do not run
    #[arg(last = true, value_name = "RUNNER ARGS")]
    runner: Vec<OsString>,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let path = tools::provide(&tools::TESTS, args.install)?;
    let path = tools::with_envoy(&path)?;
    let (path, tests) = match tools::with_nextest(&path) {
        Some(path) => (path, &["nextest", "run"][..]),
        None => (path, &["test", "--no-fail-fast"][..]),
    };
    // Tests append their skips to this file. Forget earlier skips.
    let record = workspace::target_folder()?.join("skips");
    let _ = fs::remove_file(&record);
    let mut skips = BTreeSet::new();
    let mut failed = Vec::new();
    let mut run = |command: &[&str], selection: &[&str], path: &OsStr, server: Option<&str>| {
        let mut command = process::cargo(command);
        command.args(selection).args(&args.runner).env("PATH", path);
        command.env("TOLLGATE_SKIPS", &record);
        // A variable instead of the option, because an old cargo-nextest rejects an unknown option.
        command.env("NEXTEST_NO_TESTS", "fail");
        // Runs that search for rare failures, or for a certain failure, do not retry. Other runs use
        // the profile's retries.
        if args.all || !args.servers.is_empty() || !args.runner.is_empty() {
            command.env("NEXTEST_RETRIES", "0");
        } else {
            command.env_remove("NEXTEST_RETRIES");
        }
        // Many tests wait for servers and timers, so a test per processor would leave it idle.
        if env::var_os("NEXTEST_TEST_THREADS").is_none() {
            let processors = thread::available_parallelism().map_or(2, usize::from);
            command.env("NEXTEST_TEST_THREADS", (processors * 3 + 1).to_string());
        }
        // Long tests are about the store, not the server.
        if args.all && server.is_none() {
            command.envs([("TOLLGATE_HEAVY", "1"), ("TOLLGATE_LONG", "1")]);
        }
        match process::run(&mut command) {
            Err(Failure::Broken(reason)) => failed.push(reason),
            outcome => outcome?,
        }
        // Without a skip, there is no file.
        let lines = fs::read_to_string(&record).unwrap_or_default();
        let _ = fs::remove_file(&record);
        skips.extend(lines.lines().map(|skip| match server {
            Some(server) => skip.replacen(" |", &format!(" ({server}) |"), 1),
            None => skip.to_owned(),
        }));
        Ok::<_, Failure>(())
    };

    if args.servers.is_empty() {
        run(tests, if args.all { &TESTS[..3] } else { &TESTS }, &path, None)?;
        if args.runner.is_empty() {
            run(&["test", "--no-fail-fast", "--doc"], &TESTS[1..], &path, None)?;
        }
    }
    let is_meant = |name: &str| match args.servers.is_empty() {
        true => args.all,
        false => args.servers.iter().any(|it| it == name),
    };
    for (name, suites) in SERVERS.into_iter().filter(|(name, _)| is_meant(name)) {
        println!("\n== {name}");
        run(tests, &servers::TESTS, &servers::before(&path, name, suites)?, Some(name))?;
    }

    println!("\nskips: {}", skips.len());
    skips.iter().for_each(|skip| println!("    {skip}"));
    if !failed.is_empty() {
        return Err(Failure::Broken(failed.join("\n")));
    }
    if env::var("NEXTEST_PROFILE").is_ok_and(|it| it == "ci") {
        expect_listed(&skips, &process::read_file(LIST)?)?;
    }
    Ok(())
}

/// The skips that CI accepts, lines of the form `test | reason` or `test (server) | reason`.
const LIST: &str = ".config/skips.txt";

fn expect_listed(skips: &BTreeSet<String>, list: &str) -> Result<(), Failure> {
    let listed: BTreeSet<_> = list.lines().map(str::to_owned).collect();
    let missing: Vec<_> = skips.difference(&listed).map(String::as_str).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::Broken(format!(
        "these tests did not test their subject:\n    {}\n\
         cure: let them check it, or add the line to {LIST} with the reason",
        missing.join("\n    "),
    )))
}

/// All tests besides the documentation tests. `--all` drops the last two arguments. A plain run
/// would only compile benchmarks and examples, and `cargo xtask check clippy` does that.
const TESTS: [&str; 5] =
    ["--tests", "--workspace", "--all-features", "--exclude=tollgate-bench", "--exclude=examples"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unlisted_skips_are_errors() {
        let skips = BTreeSet::from(["slot (redis-6.0) | no server".to_owned()]);
        expect_listed(&skips, "# old\n\nslot (redis-6.0) | no server\n").unwrap();
        for list in ["", "# slot (redis-6.0) | no server", "slot | no server"] {
            let failure = expect_listed(&skips, list).unwrap_err().to_string();
            assert!(failure.contains("\n    slot (redis-6.0) | no server\n"), "{list}");
        }
    }
}
