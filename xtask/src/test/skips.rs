//! Skipped tests, and the list of accepted skips.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::process::Failure;
use crate::workspace;

/// The skips in all runs.
#[derive(Debug)]
pub(crate) struct Skips {
    /// Where tests write their skips.
    record: PathBuf,
    /// Lines of the form `test | reason` or `test (server) | reason`.
    skips: BTreeSet<String>,
}

impl Skips {
    /// No skips, and an empty record.
    pub(crate) fn new() -> Result<Self, Failure> {
        let record = workspace::target_folder()?.join("skips");
        // Forget earlier skips.
        let _ = fs::remove_file(&record);
        Ok(Self { record, skips: BTreeSet::new() })
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
        let skips = record.lines().filter_map(|line| line.split_once('\t'));
        self.skips.extend(skips.map(|(test, reason)| format!("{test}{server} | {reason}")));
    }

    /// The number of skips, and each skip.
    pub(crate) fn summary(&self) -> String {
        let skips = self.skips.iter().map(|skip| format!("    {skip}\n"));
        format!("\nskips: {}\n{}", self.skips.len(), skips.collect::<String>())
    }

    /// An error if the list of accepted skips lacks one of these skips.
    pub(crate) fn expect_in(&self, list: &str) -> Result<(), Failure> {
        let allowed: BTreeSet<_> = list.lines().map(str::trim).collect();
        let skips = self.skips.iter().map(String::as_str);
        let missing: Vec<_> = skips.filter(|skip| !allowed.contains(skip)).collect();
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
pub(crate) const LIST: &str = ".config/skips.txt";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process;

    fn skips(record: &str, server: Option<&str>) -> Skips {
        let mut skips = Skips { record: PathBuf::new(), skips: BTreeSet::new() };
        skips.add(record, server);
        skips
    }

    #[test]
    fn summary_counts_each_skip_once() {
        let summary = skips("c\tno server\na::b\tno clock\na::b\tno clock\n", None).summary();
        assert_eq!(summary, "\nskips: 2\n    a::b | no clock\n    c | no server\n");
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
        let list = process::read_file(LIST).unwrap();
        for line in list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            assert!(line.contains(" | "), "{LIST}: expected `test | reason` and not `{line}`");
        }
    }
}
