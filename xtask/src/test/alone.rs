//! Repeats failed tests alone, at the end of a run.
//!
//! A user's first run must not fail by chance. The flaky test is still visible: the run names it,
//! and `--repeat`, `--all` and the nightly job count it as a failure.

use super::failures::Test;
use crate::process::Failure;

/// What remains after the failed tests ran alone.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Repeated {
    /// Tests that failed each time.
    pub(crate) failed: Vec<Test>,
    /// Tests that failed at first and passed alone.
    pub(crate) passed: Vec<Test>,
}

impl Repeated {
    /// Calls `passes` with the failed tests, and again with the tests that still fail. `passes`
    /// runs the tests and returns the tests that passed.
    pub(crate) fn of(
        mut failed: Vec<Test>,
        mut passes: impl FnMut(&[Test]) -> Result<Vec<Test>, Failure>,
    ) -> Result<Self, Failure> {
        let mut passed = Vec::new();
        if failed.len() > MOST {
            return Ok(Self { failed, passed });
        }
        for round in 1..=ROUNDS {
            if failed.is_empty() {
                break;
            }
            println!("\n== repeating {} alone, {round} of {ROUNDS}", tests(failed.len()));
            let now = passes(&failed)?;
            failed.retain(|test| !now.contains(test));
            passed.extend(now);
        }
        Ok(Self { failed, passed })
    }

    /// The text at the end of the run, empty if no repeated test passed.
    pub(crate) fn block(&self) -> String {
        if self.passed.is_empty() {
            return String::new();
        }
        let mut block = String::from("\npassed when repeated alone\n");
        for test in &self.passed {
            block.push_str(&format!("    {}\n", test.title()));
        }
        block.push_str(
            "These tests failed beside others, so each has a race or depends on the machine's\n\
             speed. They do not count as failures here; please report them.\n",
        );
        block
    }
}

fn tests(number: usize) -> String {
    if number == 1 { "1 failed test".to_owned() } else { format!("{number} failed tests") }
}

/// How often a failed test is repeated.
const ROUNDS: u32 = 2;

/// With more failures, the tree is broken or the machine lacks something, and repeating one after
/// the other would only delay the message.
const MOST: usize = 10;

#[cfg(test)]
mod tests {
    use super::super::failures::{Runner, test};
    use super::*;

    fn named(name: &str) -> Test {
        test(Runner::Nextest, "core::suite", name)
    }

    /// Each test passes in the round at the end of its name.
    fn repeat(names: &[&str]) -> (Repeated, Vec<usize>) {
        let mut calls = Vec::new();
        let failed = names.iter().map(|name| named(name)).collect();
        let repeated = Repeated::of(failed, |failed| {
            calls.push(failed.len());
            let round = calls.len().to_string();
            Ok(failed.iter().filter(|test| test.title().ends_with(&round)).cloned().collect())
        });
        (repeated.unwrap(), calls)
    }

    #[test]
    fn only_two_repetitions_excuse_a_failure() {
        let (repeated, calls) = repeat(&["passes_in_1", "passes_in_2", "passes_in_3"]);
        assert_eq!(calls, [3, 2]);
        assert_eq!(repeated.passed, [named("passes_in_1"), named("passes_in_2")]);
        assert_eq!(repeated.failed, [named("passes_in_3")]);
        let block = repeated.block();
        assert!(block.contains("passed when repeated alone\n    core::suite passes_in_1\n"));
        assert!(!block.contains("passes_in_3"), "{block}");
    }

    #[test]
    fn a_green_run_repeats_nothing() {
        let (repeated, calls) = repeat(&[]);
        assert_eq!((repeated.block().as_str(), calls), ("", vec![]));
    }

    #[test]
    fn many_failures_are_not_repeated() {
        let (repeated, calls) = repeat(&["passes_in_1"; MOST + 1]);
        assert_eq!((repeated.failed.len(), calls), (MOST + 1, vec![]));
    }

    #[test]
    fn failed_repetition_is_an_error() {
        let outcome =
            Repeated::of(vec![named("a")], |_| Err(Failure::Unready("no cargo".to_owned())));
        assert!(outcome.is_err());
    }
}
