//! Runs a suite of tests, and reads which tests passed and failed.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::process::{Command, Stdio};
use std::thread;

use crate::process::{self, Failure};

/// A program that runs tests. It determines how tests are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Suite {
    /// cargo-nextest: `program name`.
    Nextest,
    /// `cargo test --tests`: `name`.
    Libtest,
    /// `cargo test --doc`: `file - item (line 1)`.
    Doctest,
}

impl Suite {
    /// nextest if it is installed.
    pub(crate) fn of_this_machine() -> Self {
        let mut version = process::cargo(&["nextest", "--version"]);
        let status = version.stdout(Stdio::null()).stderr(Stdio::null()).status();
        if status.is_ok_and(|status| status.success()) {
            return Self::Nextest;
        }
        println!("cargo-nextest is not installed, so `cargo test` runs the tests, more slowly.");
        Self::Libtest
    }

    pub(crate) fn command(self) -> &'static [&'static str] {
        match self {
            Self::Nextest => &["nextest", "run"],
            Self::Libtest => &["test", "--no-fail-fast"],
            Self::Doctest => &["test", "--no-fail-fast", "--doc"],
        }
    }

    /// Runs the command. Fails if something other than a test failed.
    pub(crate) fn run(self, command: &mut Command) -> Result<Outcomes, Failure> {
        let mut outcomes = Outcomes::of(self);
        let status = if self == Self::Nextest {
            let report = format!("target/nextest/{}/junit.xml", profile());
            // In the workspace's folder, even if cargo builds elsewhere (CARGO_TARGET_DIR).
            let report = process::root().join(report);
            // Remove the report of an earlier run.
            let _ = fs::remove_file(&report);
            set_nextest_variables(command);
            let status = process::status(command)?;
            // There is no report if something did not build.
            outcomes.add_report(&fs::read_to_string(&report).unwrap_or_default());
            status
        } else {
            process::status_watching(command, |line| outcomes.add_line(line))?
        };
        if outcomes.failed.is_empty() || !outcomes.are_complete() {
            process::expect_success(command, status)?;
        }
        if outcomes.passed.is_empty() && outcomes.failed.is_empty() {
            return Err(Failure::Broken(NO_TESTS.to_owned()));
        }
        Ok(outcomes)
    }

    /// The arguments that run these tests one at a time. For documentation tests they select entire
    /// files, because rustdoc splits a test's name at spaces.
    pub(crate) fn exactly(self, tests: &BTreeSet<String>) -> Vec<String> {
        let options: &[&str] = match self {
            Self::Nextest => &["--test-threads=1", "-E"],
            Self::Libtest => &["--", "--test-threads=1", "--exact"],
            Self::Doctest => &["--", "--test-threads=1"],
        };
        let selectors: BTreeSet<_> = tests
            .iter()
            .map(|test| match self {
                Self::Nextest => {
                    let (program, name) = test.split_once(' ').unwrap_or(("", test));
                    format!("(binary_id(={program}) and test(={name}))")
                }
                Self::Libtest => test.clone(),
                Self::Doctest => test.split(" - ").next().unwrap_or(test).to_owned(),
            })
            .collect();
        let selectors = match self {
            Self::Nextest => vec![Vec::from_iter(selectors).join(" or ")],
            Self::Libtest | Self::Doctest => Vec::from_iter(selectors),
        };
        options.iter().map(|&option| option.to_owned()).chain(selectors).collect()
    }

    /// The tests' names, and the command that repeats them. Empty if there are no tests.
    pub(crate) fn list(self, tests: &BTreeSet<String>, server: Option<&str>) -> String {
        if tests.is_empty() {
            return String::new();
        }
        let server_flag = server.map(|server| format!(" --server {server}")).unwrap_or_default();
        let arguments = self.exactly(tests);
        let command = match self {
            Self::Nextest => format!("cargo xtask test{server_flag} -- -E '{}'", arguments[2]),
            Self::Libtest => format!("cargo xtask test{server_flag} -- {}", arguments.join(" ")),
            Self::Doctest => {
                format!("cargo test --workspace --all-features --doc {}", arguments.join(" "))
            }
        };
        let server = server.map(|server| format!(" ({server})")).unwrap_or_default();
        let names: String = tests.iter().map(|test| format!("\n{test}{server}")).collect();
        format!("{names}\n    repeat: {command}\n")
    }
}

/// A suite's results.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcomes {
    pub(crate) suite: Suite,
    pub(crate) passed: BTreeSet<String>,
    pub(crate) failed: BTreeSet<String>,
    /// The number of tests that the programs of `cargo test` announced, without the tests that have
    /// a result.
    missing: usize,
}

impl Outcomes {
    pub(crate) fn of(suite: Suite) -> Self {
        Self { suite, passed: BTreeSet::new(), failed: BTreeSet::new(), missing: 0 }
    }

    /// Whether each test that `cargo test` announced has a result. If a test program crashes, some
    /// tests have none, and only the exit code of cargo shows it.
    fn are_complete(&self) -> bool {
        self.missing == 0
    }

    /// Adds the tests in nextest's report, which has JUnit's format.
    fn add_report(&mut self, report: &str) {
        // Text is escaped in reports, so `<` always starts a tag.
        for case in report.split("<testcase ").skip(1) {
            // `name="…" classname="…"`.
            let mut parts = case.split('"').skip(1).step_by(2);
            let (Some(name), Some(program)) = (parts.next(), parts.next()) else { continue };
            let has_failed = case.contains("<failure") || case.contains("<error");
            if has_failed { &mut self.failed } else { &mut self.passed }
                .insert(format!("{program} {name}"));
        }
    }

    /// Parses a line of `cargo test` such as `running 12 tests` or
    /// `test decides::twice ... FAILED`, and ignores other lines.
    fn add_line(&mut self, line: &str) {
        let mut words = line.trim().split(' ');
        if words.next() == Some("running") {
            self.missing += words.next().and_then(|number| number.parse().ok()).unwrap_or(0);
        }
        let test = line.trim().strip_prefix("test ").and_then(|test| test.split_once(" ... "));
        let Some((test, verdict)) = test else { return };
        // libtest appends `- should panic` or `- compile` to the name.
        let name = match self.suite {
            Suite::Doctest => test.split_inclusive(')').next(),
            Suite::Libtest | Suite::Nextest => test.split(" - ").next(),
        };
        let name = name.unwrap_or(test).to_owned();
        match verdict {
            "ok" => self.passed.insert(name),
            "FAILED" => self.failed.insert(name),
            // libtest appends the reason to `ignored`.
            _ if verdict.starts_with("ignored") => true,
            _ => return,
        };
        self.missing = self.missing.saturating_sub(1);
    }
}

fn set_nextest_variables(command: &mut Command) {
    // A variable instead of the option, because an old cargo-nextest rejects an unknown option, and
    // so that users can pass the option after `--`.
    command.env("NEXTEST_NO_TESTS", "fail");
    // The variable overrides the profile, and a test that passes at its second attempt would count
    // as passed.
    command.env_remove("NEXTEST_RETRIES");
    if env::var_os(THREADS).is_none() {
        let processors = thread::available_parallelism().map_or(2, usize::from);
        command.env(THREADS, (processors * 3 + 1).to_string());
    }
}

/// nextest's profile.
pub(crate) fn profile() -> String {
    env::var("NEXTEST_PROFILE").unwrap_or_else(|_| "default".to_owned())
}

/// The number of tests that nextest runs at a time. Many tests wait for servers and timers, so one
/// test per processor would leave processors idle.
const THREADS: &str = "NEXTEST_TEST_THREADS";

const NO_TESTS: &str = "no test ran\n\
    cure: if you gave a filter after `--`, look for a typing mistake in it";

#[cfg(test)]
mod tests {
    use super::*;

    fn names<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
        names.map(str::to_owned).into()
    }

    #[test]
    fn report_names_tests_and_programs() {
        let report = r#"<testsuite name="core::suite" tests="2">
            <testcase name="passes" classname="core::suite" time="0.004">
            </testcase>
            <testcase name="lease::ends" classname="core::suite" time="0.004">
                <failure message="expected &lt;failure" type="test failure">left: 39</failure>
                <system-out>PASS</system-out>
            </testcase>
            <testcase name="prints" classname="core::suite" time="0.004">
                <system-out>&lt;failure&gt;</system-out>
            </testcase>
        </testsuite>"#;
        let mut outcomes = Outcomes::of(Suite::Nextest);
        outcomes.add_report(report);
        assert_eq!(outcomes.passed, names(["core::suite passes", "core::suite prints"]));
        assert_eq!(outcomes.failed, names(["core::suite lease::ends"]));
    }

    #[test]
    fn cargo_test_lines_name_outcomes() {
        for (suite, line, passed, failed) in [
            (Suite::Libtest, "test lease::ends ... ok", Some("lease::ends"), None),
            (Suite::Libtest, "test lease::ends ... FAILED", None, Some("lease::ends")),
            (Suite::Libtest, "test ends - should panic ... FAILED", None, Some("ends")),
            (Suite::Libtest, "test lease::ends ... ignored, slow", None, None),
            (Suite::Libtest, "test result: FAILED. 5 passed; 2 failed", None, None),
            (
                Suite::Doctest,
                "test src/quota.rs - quota::Quota (line 13) - compile ... FAILED",
                None,
                Some("src/quota.rs - quota::Quota (line 13)"),
            ),
        ] {
            let mut outcomes = Outcomes::of(suite);
            outcomes.add_line(line);
            assert_eq!(outcomes.passed.first().map(String::as_str), passed, "{line}");
            assert_eq!(outcomes.failed.first().map(String::as_str), failed, "{line}");
        }
    }

    #[test]
    fn a_crash_leaves_outcomes_incomplete() {
        let failed =
            ["running 3 tests", "test a ... ok", "test b ... ignored, slow", "test c ... FAILED"];
        let crashed = ["running 1 test", "error: process didn't exit successfully"];
        for (lines, are_complete) in [
            (&failed[..], true),
            (&crashed, false),
            (&[failed.as_slice(), &crashed].concat(), false),
        ] {
            let mut outcomes = Outcomes::of(Suite::Libtest);
            lines.iter().for_each(|line| outcomes.add_line(line));
            assert_eq!(outcomes.are_complete(), are_complete, "{lines:?}");
        }
    }

    #[test]
    fn failed_tests_have_a_command() {
        let list = |suite: Suite, tests: &BTreeSet<String>| suite.list(tests, Some("redis-6.0"));
        assert_eq!(list(Suite::Libtest, &names([])), "");
        assert_eq!(
            list(Suite::Nextest, &names(["core::suite one", "core::suite two"])),
            "\ncore::suite one (redis-6.0)\ncore::suite two (redis-6.0)\n    \
             repeat: cargo xtask test --server redis-6.0 -- -E \
             '(binary_id(=core::suite) and test(=one)) or \
             (binary_id(=core::suite) and test(=two))'\n"
        );
        assert!(
            list(Suite::Libtest, &names(["lease::ends"]))
                .ends_with("--server redis-6.0 -- -- --test-threads=1 --exact lease::ends\n")
        );
        let documented = names(["src/lib.rs - (line 3)", "src/lib.rs - Key (line 9)"]);
        assert!(
            list(Suite::Doctest, &documented).ends_with("--doc -- --test-threads=1 src/lib.rs\n")
        );
    }

    #[test]
    fn retries_from_the_environment_are_ignored() {
        let mut command = Command::new("cargo");
        command.env("NEXTEST_RETRIES", "2");
        set_nextest_variables(&mut command);
        let retries = command.get_envs().find(|(name, _)| *name == "NEXTEST_RETRIES");
        // `None` removes the variable of this process too.
        assert_eq!(retries.map(|(_, value)| value), Some(None));
    }
}
