//! Which tests failed, how often, and the command that runs one of them again.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::process::Failure;

/// A test that failed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Failed {
    test: String,
    /// Runs this test alone.
    command: String,
}

impl Failed {
    /// Says which other server it failed against.
    pub(crate) fn with(mut self, server: Option<&str>) -> Self {
        if let Some(server) = server {
            self.test = format!("{} ({server})", self.test);
            let to = format!("xtask test --server {server} ");
            self.command = self.command.replacen("xtask test ", &to, 1);
        }
        self
    }
}

/// In how many runs each test failed.
#[derive(Debug, Default)]
pub(crate) struct Failures(BTreeMap<Failed, u32>);

impl Failures {
    /// Adds the failures of one run.
    pub(crate) fn add(&mut self, failed: Vec<Failed>) {
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
            let _ = write!(list, "\n{often}{}\n    {}\n", failed.test, failed.command);
        }
        Err(Failure::Broken(list))
    }
}

/// Failures in a report of nextest, which is in JUnit's format.
pub(crate) fn in_report(report: &str) -> Vec<Failed> {
    // Text is escaped in it, so a `<` always begins a tag.
    let cases = report.split("<testcase ").skip(1);
    let failed = cases.filter(|case| case.contains("<failure") || case.contains("<error"));
    failed
        .filter_map(|case| {
            let (test, program) = (attribute(case, "name")?, attribute(case, "classname")?);
            Some(Failed {
                test: format!("{program} {test}"),
                command: format!(
                    "cargo xtask test -- -E 'binary_id(={program}) and test(={test})'"
                ),
            })
        })
        .collect()
}

/// The value of an attribute of the tag that `text` begins in.
fn attribute<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let tag = text.split('>').next()?;
    tag.split("\" ")
        .find_map(|pair| pair.strip_prefix(name)?.strip_prefix("=\"")?.split('"').next())
}

/// The failure in a line `test decides::twice ... FAILED` of `cargo test`.
pub(crate) fn in_line(line: &str, is_doc: bool) -> Option<Failed> {
    let test = line.trim().strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
    // After the name, libtest says `- should panic` or `- compile`.
    let command = if is_doc {
        let name = test.split_inclusive(')').next()?;
        format!("cargo test --workspace --all-features --doc -- '{name}'")
    } else {
        let name = test.split(" - ").next()?;
        format!("cargo xtask test -- {name}")
    };
    Some(Failed { test: test.to_owned(), command })
}

/// How many tests ran, read from a line `test result: ok. 12 passed; 0 failed; …`.
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

    #[test]
    fn failures_of_a_report_are_named_with_their_programs() {
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
        let expected = Failed {
            test: "core::suite lease::ends".to_owned(),
            command: "cargo xtask test -- -E 'binary_id(=core::suite) and test(=lease::ends)'"
                .to_owned(),
        };
        let failed = in_report(report);
        assert_eq!(failed, [expected]);
        let failed = failed.into_iter().map(|failed| failed.with(Some("redis-6.0")));
        let commands: Vec<_> = failed.map(|failed| failed.command).collect();
        let expected = "cargo xtask test --server redis-6.0 -- \
            -E 'binary_id(=core::suite) and test(=lease::ends)'";
        assert_eq!(commands, [expected]);
    }

    #[test]
    fn failures_of_cargo_test_are_read_line_by_line() {
        let command = |line, is_doc| in_line(line, is_doc).map(|failed| failed.command);
        for (line, is_doc, expected) in [
            ("test lease::ends ... FAILED", false, Some("cargo xtask test -- lease::ends")),
            ("test ends - should panic ... FAILED", false, Some("cargo xtask test -- ends")),
            (
                "test src/quota.rs - quota::Quota (line 13) - compile ... FAILED",
                true,
                Some(
                    "cargo test --workspace --all-features --doc -- 'src/quota.rs - quota::Quota (line 13)'",
                ),
            ),
            ("test lease::ends ... ok", false, None),
            ("test result: FAILED. 5 passed; 2 failed", false, None),
        ] {
            assert_eq!(command(line, is_doc).as_deref(), expected, "{line}");
        }
    }

    #[test]
    fn a_table_says_how_often_each_test_failed() {
        let failed = |test: &str| Failed { test: test.to_owned(), command: format!("run {test}") };
        let mut failures = Failures::default();
        assert!(failures.verdict(1).is_ok());
        failures.add(vec![failed("b"), failed("a")]);
        failures.add(vec![failed("b")]);
        let list = failures.verdict(20).unwrap_err().to_string();
        assert!(
            list.ends_with("\n1 of 20 runs: a\n    run a\n\n2 of 20 runs: b\n    run b\n"),
            "{list}"
        );
        let list = failures.verdict(1).unwrap_err().to_string();
        assert!(list.ends_with("\na\n    run a\n\nb\n    run b\n"), "{list}");
    }
}
