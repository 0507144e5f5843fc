//! Records tests that could not test their subject.

use std::env;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::thread;

/// Records that the calling test cannot test its subject, or a part of it.
///
/// Prints the reason and appends a line `test | reason` to the file that the environment
/// variable `TOLLGATE_SKIPS` names, if it is set. `cargo xtask test` sets it, prints the number
/// of skips at the end, and fails in CI on a skip that `.config/skips.txt` does not list.
///
/// The reason must be the same in each run, without addresses or times, because the list contains
/// it.
///
/// # Panics
///
/// If the line cannot be written, because the skip would be lost.
pub fn skip(reason: &str) {
    println!("skipped: {reason}");
    if let Some(path) = env::var_os("TOLLGATE_SKIPS") {
        append(Path::new(&path), &test_name(), reason);
    }
}

fn append(record: &Path, test: &str, reason: &str) {
    let line = format!("{test} | {}\n", reason.replace('\n', " "));
    // A single write in append mode, because parallel tests append to the same file.
    let written = OpenOptions::new()
        .create(true)
        .append(true)
        .open(record)
        .and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(error) = written {
        panic!("cannot record a skip in {}: {error}", record.display());
    }
}

/// Returns the running test's name.
fn test_name() -> String {
    // cargo-nextest sets the variable. libtest names the thread after the test.
    let of_thread = || thread::current().name().unwrap_or("unnamed").to_owned();
    env::var("NEXTEST_TEST_NAME").unwrap_or_else(|_| of_thread())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn each_skip_adds_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let record = folder.path().join("skips");
        append(&record, "moving::a_slot", "no such server");
        append(&record, &test_name(), "two\nlines");
        let lines = fs::read_to_string(record).unwrap();
        let expected = "moving::a_slot | no such server\n\
            skip::tests::each_skip_adds_a_line | two lines\n";
        assert_eq!(lines, expected);
    }

    #[test]
    #[should_panic(expected = "cannot record a skip in /nowhere/skips")]
    fn unwritable_record_fails() {
        append(Path::new("/nowhere/skips"), "test", "reason");
    }
}
