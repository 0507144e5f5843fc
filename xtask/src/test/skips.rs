//! Skipped tests, and the list of accepted skips.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::process::{self, Failure};
use crate::workspace;

/// The skips in all runs.
#[derive(Debug)]
pub(crate) struct Skips {
    /// Where tests write their skips.
    record: PathBuf,
    /// Names of tests, by reason.
    by_reason: BTreeMap<String, BTreeSet<String>>,
}

impl Skips {
    /// No skips, and an empty record.
    pub(crate) fn new() -> Result<Self, Failure> {
        let record = Path::new(&workspace::target_folder()?).join("skips");
        // Forget earlier skips.
        let _ = fs::remove_file(&record);
        Ok(Self { record, by_reason: BTreeMap::new() })
    }

    /// The file that tests append to, which they find in [`RECORD`].
    pub(crate) fn record(&self) -> &Path {
        &self.record
    }

    /// Reads and clears the record after a run against this server.
    pub(crate) fn collect(&mut self, server: Option<&str>) -> Result<(), Failure> {
        match fs::read_to_string(&self.record) {
            Ok(record) => self.add(&record, server),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let record = self.record.display();
                return Err(Failure::Broken(format!("cannot read the skips in {record}: {error}")));
            }
        }
        let _ = fs::remove_file(&self.record);
        Ok(())
    }

    fn add(&mut self, record: &str, server: Option<&str>) {
        let server = server.map(|server| format!(" ({server})")).unwrap_or_default();
        for (test, reason) in record.lines().filter_map(|line| line.split_once('\t')) {
            self.by_reason.entry(reason.to_owned()).or_default().insert(format!("{test}{server}"));
        }
    }

    /// The number of skips, in total and per reason.
    pub(crate) fn summary(&self) -> String {
        let number: usize = self.by_reason.values().map(BTreeSet::len).sum();
        let mut summary = format!("\nskips: {number}\n");
        for (reason, tests) in &self.by_reason {
            let _ = writeln!(summary, "{:>6} × {reason}", tests.len());
        }
        summary
    }

    /// An error if the committed list lacks one of these skips.
    pub(crate) fn expect_listed(&self) -> Result<(), Failure> {
        let path = process::root().join(LIST);
        let list = fs::read_to_string(&path)
            .map_err(|error| Failure::Broken(format!("cannot read {LIST}: {error}")))?;
        self.expect_in(&list)
    }

    fn expect_in(&self, list: &str) -> Result<(), Failure> {
        let allowed: BTreeSet<_> = list.lines().map(str::trim).collect();
        let skips = self
            .by_reason
            .iter()
            .flat_map(|(reason, tests)| tests.iter().map(move |test| format!("{test} | {reason}")));
        let missing: Vec<_> = skips.filter(|skip| !allowed.contains(&**skip)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(Failure::Broken(format!(
            "these tests did not check what they are for:\n    {}\n\
             cure: let them check it, or add the line to {LIST} with the reason",
            missing.join("\n    "),
        )))
    }
}

/// The environment variable with the record's path, for tests.
pub(crate) const RECORD: &str = "TOLLGATE_SKIPS";

/// The skips that CI accepts.
const LIST: &str = ".config/skips.txt";

#[cfg(test)]
mod tests {
    use super::*;

    fn skips(record: &str, server: Option<&str>) -> Skips {
        let mut skips = Skips { record: PathBuf::new(), by_reason: BTreeMap::new() };
        skips.add(record, server);
        skips
    }

    #[test]
    fn summary_counts_each_test_once() {
        let record = "a::b\tno clock\nc\tno server\na::d\tno clock\na::b\tno clock\n";
        let summary = skips(record, None).summary();
        assert_eq!(summary, "\nskips: 3\n     2 × no clock\n     1 × no server\n");
        assert_eq!(skips("", None).summary(), "\nskips: 0\n");
    }

    #[test]
    fn unlisted_skips_are_errors() {
        let found = skips("moving::slot\tno server\n", Some("redis-6.0"));
        let missing = |list| found.expect_in(list).map_err(|error| error.to_string());
        assert_eq!(missing("# old\n\n  moving::slot (redis-6.0) | no server\n"), Ok(()));
        for list in ["", "# moving::slot (redis-6.0) | no server", "moving::slot | no server"] {
            let message = missing(list).unwrap_err();
            assert!(message.contains("\n    moving::slot (redis-6.0) | no server\n"), "{list}");
        }
    }

    #[test]
    fn list_contains_only_skips() {
        let list = fs::read_to_string(process::root().join(LIST)).unwrap();
        for line in list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            assert!(line.contains(" | "), "{LIST}: expected `test | reason` and not `{line}`");
        }
    }
}
