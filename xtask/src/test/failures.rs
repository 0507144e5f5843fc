//! Test results, and the command that repeats a failed test.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::process::Failure;

/// A program that runs tests. It determines how tests are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Runner {
    /// cargo-nextest.
    Nextest,
    /// `cargo test --tests`.
    Libtest,
    /// `cargo test --doc`.
    Doctest,
}

impl Runner {
    /// Every runner.
    pub(crate) const ALL: [Self; 3] = [Self::Nextest, Self::Libtest, Self::Doctest];

    /// The arguments that run these tests one at a time. For documentation tests they select entire
    /// files, because rustdoc splits a test's name at spaces.
    pub(crate) fn exactly(self, tests: &[&Test]) -> Vec<String> {
        match self {
            Self::Nextest => {
                let filters: Vec<_> =
                    tests.iter().map(|test| format!("({})", test.filter())).collect();
                vec!["--test-threads=1".to_owned(), "-E".to_owned(), filters.join(" or ")]
            }
            Self::Libtest => {
                let options = ["--", "--test-threads=1", "--exact"].map(str::to_owned);
                options.into_iter().chain(tests.iter().map(|test| test.name.clone())).collect()
            }
            Self::Doctest => {
                let files: BTreeSet<_> = tests.iter().map(|test| test.file()).collect();
                let options = ["--", "--test-threads=1"];
                options.into_iter().chain(files).map(str::to_owned).collect()
            }
        }
    }
}

/// A test with the name that its runner uses.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Test {
    pub(crate) runner: Runner,
    /// Empty if the runner does not report it.
    program: String,
    name: String,
    /// The server that it ran against, if it was not the machine's own.
    server: Option<&'static str>,
}

impl Test {
    /// Adds the server that the test ran against.
    pub(crate) fn with(self, server: Option<&'static str>) -> Self {
        Self { server, ..self }
    }

    /// The test's name in a list for users.
    pub(crate) fn title(&self) -> String {
        let server = self.server.map(|server| format!(" ({server})")).unwrap_or_default();
        format!("{} {}{server}", self.program, self.name).trim_start().to_owned()
    }

    /// The command that runs this test alone.
    fn command(&self) -> String {
        let server = self.server.map(|server| format!(" --server {server}")).unwrap_or_default();
        match self.runner {
            Runner::Nextest => format!("cargo xtask test{server} -- -E '{}'", self.filter()),
            Runner::Libtest => format!("cargo xtask test{server} -- {}", self.name),
            Runner::Doctest => {
                format!("cargo test --workspace --all-features --doc -- {}", self.file())
            }
        }
    }

    /// The file that contains a documentation test.
    fn file(&self) -> &str {
        self.name.split(" - ").next().unwrap_or(&self.name)
    }

    fn filter(&self) -> String {
        format!("binary_id(={}) and test(={})", self.program, self.name)
    }
}

/// A run's results.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcomes {
    pub(crate) passed: Vec<Test>,
    pub(crate) failed: Vec<Test>,
    ignored: usize,
    /// The number of tests that the programs of `cargo test` announced.
    announced: usize,
}

impl Outcomes {
    /// Whether the test passed and no test with the same name failed: the output of `cargo test`
    /// does not name the test program.
    pub(crate) fn have_passed(&self, test: &Test) -> bool {
        self.passed.contains(test) && !self.failed.contains(test)
    }

    /// Whether each test that `cargo test` announced has a result. If a test program crashes, some
    /// tests have none, and only the exit code of cargo shows it.
    pub(crate) fn are_complete(&self) -> bool {
        self.announced == self.passed.len() + self.failed.len() + self.ignored
    }

    /// Adds the tests in nextest's report, which has JUnit's format.
    pub(crate) fn add_report(&mut self, report: &str) {
        // Text is escaped in reports, so `<` always starts a tag.
        for case in report.split("<testcase ").skip(1) {
            let (Some(name), Some(program)) =
                (attribute(case, "name"), attribute(case, "classname"))
            else {
                continue;
            };
            let test = Test {
                runner: Runner::Nextest,
                program: program.to_owned(),
                name: name.to_owned(),
                server: None,
            };
            let has_failed = case.contains("<failure") || case.contains("<error");
            if has_failed { &mut self.failed } else { &mut self.passed }.push(test);
        }
    }

    /// Parses a line of `cargo test` such as `running 12 tests` or
    /// `test decides::twice ... FAILED`, and ignores other lines.
    pub(crate) fn add_line(&mut self, line: &str, runner: Runner) {
        let line = line.trim();
        if let Some(number) = line.strip_prefix("running ").and_then(|rest| rest.split(' ').next())
        {
            self.announced += number.parse::<usize>().unwrap_or(0);
        }
        let Some((test, verdict)) =
            line.strip_prefix("test ").and_then(|test| test.split_once(" ... "))
        else {
            return;
        };
        let outcomes = match verdict {
            "ok" => &mut self.passed,
            "FAILED" => &mut self.failed,
            _ => {
                // libtest appends the reason to `ignored`.
                self.ignored += usize::from(verdict.starts_with("ignored"));
                return;
            }
        };
        // libtest appends `- should panic` or `- compile` to the name.
        let name = match runner {
            Runner::Doctest => test.split_inclusive(')').next(),
            Runner::Libtest | Runner::Nextest => test.split(" - ").next(),
        };
        outcomes.push(Test {
            runner,
            program: String::new(),
            name: name.unwrap_or(test).to_owned(),
            server: None,
        });
    }
}

/// The number of runs in which each test failed.
#[derive(Debug, Default)]
pub(crate) struct Failures(BTreeMap<Test, u32>);

impl Failures {
    /// Adds a run's failures.
    pub(crate) fn add(&mut self, failed: Vec<Test>) {
        for failed in failed {
            *self.0.entry(failed).or_default() += 1;
        }
    }

    /// An error that lists the failures, if there are any.
    pub(crate) fn verdict(&self, runs: u32) -> Result<(), Failure> {
        if self.0.is_empty() {
            return Ok(());
        }
        let mut list =
            String::from("these tests failed; below each is the command that repeats it\n");
        for (failed, times) in &self.0 {
            let often = if runs > 1 { format!("{times} of {runs} runs: ") } else { String::new() };
            let _ = write!(list, "\n{often}{}\n    {}\n", failed.title(), failed.command());
        }
        Err(Failure::Broken(list))
    }
}

/// An attribute's value in the tag at the start of `text`.
fn attribute<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let tag = text.split('>').next()?;
    tag.split("\" ")
        .find_map(|pair| pair.strip_prefix(name)?.strip_prefix("=\"")?.split('"').next())
}

/// The number of tests that ran, from a line `test result: ok. 12 passed; 0 failed; …`.
pub(crate) fn executed_in(line: &str) -> u64 {
    let Some(result) = line.trim().strip_prefix("test result: ") else {
        return 0;
    };
    let count_before = |word: &str| {
        let (before, _) = result.split_once(word)?;
        before.split_whitespace().last()?.parse::<u64>().ok()
    };
    count_before(" passed").unwrap_or(0) + count_before(" failed").unwrap_or(0)
}

/// A test, for unit tests.
#[cfg(test)]
pub(crate) fn test(runner: Runner, program: &str, name: &str) -> Test {
    Test { runner, program: program.to_owned(), name: name.to_owned(), server: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_tests_are_not_counted() {
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
        let mut outcomes = Outcomes::default();
        outcomes.add_report(report);
        let of_suite = |name| test(Runner::Nextest, "core::suite", name);
        assert_eq!(outcomes.passed, [of_suite("passes"), of_suite("prints")]);
        assert_eq!(outcomes.failed, [of_suite("lease::ends")]);
        let failed = outcomes.failed.remove(0).with(Some("redis-6.0"));
        assert_eq!(failed.title(), "core::suite lease::ends (redis-6.0)");
        assert_eq!(
            failed.command(),
            "cargo xtask test --server redis-6.0 -- \
             -E 'binary_id(=core::suite) and test(=lease::ends)'"
        );
    }

    #[test]
    fn cargo_test_lines_name_outcomes() {
        use Runner::{Doctest, Libtest};
        let documented = "test src/quota.rs - quota::Quota (line 13) - compile ... FAILED";
        let repeat_documented = "cargo test --workspace --all-features --doc -- src/quota.rs";
        for (line, runner, passed, failed) in [
            ("test lease::ends ... FAILED", Libtest, None, Some("cargo xtask test -- lease::ends")),
            (
                "test ends - should panic ... FAILED",
                Libtest,
                None,
                Some("cargo xtask test -- ends"),
            ),
            (documented, Doctest, None, Some(repeat_documented)),
            ("test lease::ends ... ok", Libtest, Some("cargo xtask test -- lease::ends"), None),
            ("test lease::ends ... ignored", Libtest, None, None),
            ("test result: FAILED. 5 passed; 2 failed", Libtest, None, None),
        ] {
            let mut outcomes = Outcomes::default();
            outcomes.add_line(line, runner);
            let commands = |tests: &[Test]| tests.first().map(Test::command);
            assert_eq!(commands(&outcomes.passed).as_deref(), passed, "{line}");
            assert_eq!(commands(&outcomes.failed).as_deref(), failed, "{line}");
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
            let mut outcomes = Outcomes::default();
            lines.iter().for_each(|line| outcomes.add_line(line, Runner::Libtest));
            assert_eq!(outcomes.are_complete(), are_complete, "{lines:?}");
        }
    }

    #[test]
    fn each_runner_repeats_failures_alone() {
        let [a, b] = ["one", "two"].map(|name| test(Runner::Nextest, "core::suite", name));
        assert_eq!(
            Runner::Nextest.exactly(&[&a, &b]),
            [
                "--test-threads=1",
                "-E",
                "(binary_id(=core::suite) and test(=one)) or \
                 (binary_id(=core::suite) and test(=two))",
            ]
        );
        let ends = test(Runner::Libtest, "", "lease::ends");
        let expected = ["--", "--test-threads=1", "--exact", "lease::ends"];
        assert_eq!(Runner::Libtest.exactly(&[&ends]), expected);
        let [a, b] = ["src/lib.rs - (line 3)", "src/lib.rs - Key (line 9)"]
            .map(|name| test(Runner::Doctest, "", name));
        assert_eq!(Runner::Doctest.exactly(&[&a, &b]), ["--", "--test-threads=1", "src/lib.rs"]);
    }

    #[test]
    fn failed_namesake_counts() {
        let [ends, begins] = ["ends", "begins"].map(|name| test(Runner::Libtest, "", name));
        let mut outcomes = Outcomes::default();
        for line in ["test ends ... ok", "test begins ... ok", "test ends ... FAILED"] {
            outcomes.add_line(line, Runner::Libtest);
        }
        assert!(outcomes.have_passed(&begins) && !outcomes.have_passed(&ends));
    }

    #[test]
    fn list_counts_failures_per_test() {
        let failed = |name| test(Runner::Libtest, "", name);
        let mut failures = Failures::default();
        assert!(failures.verdict(1).is_ok());
        failures.add(vec![failed("b"), failed("a")]);
        failures.add(vec![failed("b")]);
        let list = failures.verdict(20).unwrap_err().to_string();
        let a = "a\n    cargo xtask test -- a\n";
        let b = "b\n    cargo xtask test -- b\n";
        assert!(list.ends_with(&format!("\n1 of 20 runs: {a}\n2 of 20 runs: {b}")), "{list}");
        let list = failures.verdict(1).unwrap_err().to_string();
        assert!(list.ends_with(&format!("\n{a}\n{b}")), "{list}");
    }
}
