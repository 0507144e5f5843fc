//! `cargo xtask test`: installs the programs that tests need, and runs every test.

mod skips;
mod suite;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;

use clap::builder::PossibleValuesParser;

use self::skips::Skips;
use self::suite::{Outcomes, Suite};
use crate::process::{self, Failure};
use crate::servers::{self, SERVERS};
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
    #[arg(value_parser = PossibleValuesParser::new(SERVERS.map(|server| server.name)))]
    servers: Vec<String>,

    /// Install missing programs with sudo; root needs no such permission
    #[arg(long)]
    install: bool,

    /// Arguments for the test runner, for example `cargo xtask test -- token_bucket` or, with
    /// nextest, `-- --stress-count 20`; documentation tests then do not run
    #[arg(last = true, value_name = "RUNNER ARGS")]
    runner: Vec<OsString>,
}

impl Args {
    /// Whether a failed test may pass when it is repeated alone. Runs that search for rare
    /// failures, or for a certain failure, count the first failure.
    fn excuses_chance(&self) -> bool {
        !self.all && self.servers.is_empty() && self.runner.is_empty()
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let path = tools::provide(args.install)?;
    let path = if args.all { tools::with_envoy(&path)? } else { path };
    let mut skips = Skips::new()?;
    let (mut failed, mut flaky) = (String::new(), Vec::new());
    let mut once = |suite: Suite, server: Option<&str>, path: &OsStr, selection: &[&str]| {
        // Long tests are about the store and not about the server.
        let is_long = args.all && server.is_none();
        let run = Run { suite, path, record: skips.record(), is_long };
        let mut outcomes = run.tests(selection, &args.runner)?;
        if args.excuses_chance() {
            flaky.extend(repeat_alone(&mut outcomes, |arguments| run.tests(selection, arguments))?);
        }
        failed.push_str(&suite.list(&outcomes.failed, server));
        skips.collect(server)
    };

    let suite = Suite::of_this_machine();
    if args.servers.is_empty() {
        once(suite, None, &path, if args.all { &TESTS[..3] } else { &TESTS })?;
        if args.runner.is_empty() {
            once(Suite::Doctest, None, &path, &TESTS[1..])?;
        }
    }
    let is_meant = |name: &str| match args.servers.is_empty() {
        true => args.all,
        false => args.servers.iter().any(|it| it == name),
    };
    for server in SERVERS.iter().filter(|server| is_meant(server.name)) {
        println!("\n== {}", server.name);
        once(suite, Some(server.name), &server.before(&path)?, &servers::TESTS)?;
    }

    print!("{}", skips.summary());
    if !flaky.is_empty() {
        println!("\n{FLAKY}\n    {}", flaky.join("\n    "));
    }
    if !failed.is_empty() {
        return Err(Failure::Broken(format!("these tests failed\n{failed}")));
    }
    if suite::profile() == "ci" { skips.expect_listed() } else { Ok(()) }
}

/// A suite with its environment.
struct Run<'a> {
    suite: Suite,
    path: &'a OsStr,
    /// The file to which tests append their skips.
    record: &'a Path,
    is_long: bool,
}

impl Run<'_> {
    fn tests(&self, selection: &[&str], arguments: &[OsString]) -> Result<Outcomes, Failure> {
        let mut command: Command = process::cargo(self.suite.command());
        command.args(selection).args(arguments).env("PATH", self.path);
        command.env(skips::RECORD, self.record);
        if self.is_long {
            command.envs([("TOLLGATE_HEAVY", "1"), ("TOLLGATE_LONG", "1")]);
        }
        self.suite.run(&mut command)
    }
}

/// Repeats failed tests one at a time, up to twice, because a user's first run must not fail by
/// chance. Returns the tests that passed.
fn repeat_alone(
    outcomes: &mut Outcomes,
    run: impl Fn(&[OsString]) -> Result<Outcomes, Failure>,
) -> Result<Vec<String>, Failure> {
    let mut flaky = Vec::new();
    // With more failures, the tree is broken or the machine lacks something.
    if outcomes.failed.len() > 10 {
        return Ok(flaky);
    }
    for _ in 0..2 {
        if outcomes.failed.is_empty() {
            break;
        }
        println!("\n== repeating failed tests alone");
        let arguments: Vec<_> =
            outcomes.suite.exactly(&outcomes.failed).into_iter().map(OsString::from).collect();
        let again = run(&arguments)?;
        let passed = |test: &String| again.passed.contains(test) && !again.failed.contains(test);
        flaky.extend(outcomes.failed.iter().filter(|test| passed(test)).cloned());
        outcomes.failed.retain(|test| !passed(test));
    }
    Ok(flaky)
}

/// All tests besides the documentation tests. `--all` drops the last two arguments. A plain run
/// would only compile benchmarks and examples, and `cargo xtask check clippy` does that.
const TESTS: [&str; 5] =
    ["--tests", "--workspace", "--all-features", "--exclude=tollgate-bench", "--exclude=examples"];

const FLAKY: &str = "These tests failed beside others and passed alone, so each has a race or depends \
    on the machine's\nspeed. They do not count as failures here; please report them.";

#[cfg(test)]
mod tests {
    use super::*;

    /// Each test passes in the round at the end of its name. Returns the tests that still fail, the
    /// tests that passed, and the number of rounds.
    fn repeat(failed: &[&str]) -> (Vec<String>, Vec<String>, usize) {
        let mut outcomes = outcomes(failed, &[]);
        let round = std::cell::Cell::new(0);
        let flaky = repeat_alone(&mut outcomes, |_| {
            round.set(round.get() + 1);
            let passes = |name: &&&str| name.ends_with(&round.get().to_string());
            let passed: Vec<_> = failed.iter().filter(passes).copied().collect();
            // A test with the same name in another program fails.
            Ok(self::outcomes(&["twin_1"], &passed))
        });
        (outcomes.failed.into_iter().collect(), flaky.unwrap(), round.get())
    }

    fn outcomes(failed: &[&str], passed: &[&str]) -> Outcomes {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let mut outcomes = Outcomes::of(Suite::Libtest);
        (outcomes.failed, outcomes.passed) = (names(failed), names(passed));
        outcomes
    }

    #[test]
    fn only_two_repetitions_excuse_a_failure() {
        let (failed, flaky, rounds) = repeat(&["in_1", "in_2", "in_3", "twin_1"]);
        assert_eq!((failed, rounds), (vec!["in_3".to_owned(), "twin_1".to_owned()], 2));
        assert_eq!(flaky, ["in_1", "in_2"]);
        assert_eq!(repeat(&[]), (vec![], vec![], 0));
    }

    #[test]
    fn many_failures_are_not_repeated() {
        let names: Vec<_> = (0..11).map(|number| format!("{number}_1")).collect();
        let (failed, flaky, rounds) = repeat(&names.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!((failed.len(), flaky.len(), rounds), (11, 0, 0));
    }

    #[test]
    fn failed_repetition_is_an_error() {
        let failed = repeat_alone(&mut outcomes(&["a"], &[]), |_| {
            Err(Failure::Unready("no cargo".to_owned()))
        });
        assert!(failed.is_err());
    }
}
