//! The settings for reading logs, and the results beside the records.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use tollgate_core::Timestamp;

use super::{Format, Reason, Zone};

/// The settings for reading logs.
#[derive(Clone, Debug)]
pub struct Options {
    /// The line format.
    pub format: Format,
    /// The time zone of times that name none.
    pub zone: Zone,
    /// How far lines may be out of order. A line that is further behind is replayed late, at the
    /// time of the previous line. A line that is more than an hour behind is skipped, and many such
    /// lines abort the run.
    pub reorder: Duration,
    /// The maximum number of lines per file that wait for sorting.
    pub max_held: usize,
    /// Whether an unreadable line aborts the run.
    pub strict: bool,
    /// How many unreadable lines to store for the report.
    pub shown: usize,
    /// Whether the reasons may quote parts of the unreadable lines.
    pub excerpts: bool,
    /// Lines with a later time are skipped because their time must be wrong.
    pub not_after: Timestamp,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            format: Format::AUTO,
            zone: Zone::default(),
            reorder: Duration::from_secs(60),
            max_held: 250_000,
            strict: false,
            shown: 10,
            excerpts: true,
            not_after: Timestamp::from_micros(u64::MAX),
        }
    }
}

/// An unreadable log line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The name of the file with the line.
    pub file: Box<str>,
    /// The line number in the file, from 1.
    pub line: u64,
    /// Why the line cannot be read.
    pub reason: Reason,
}

/// The progress of reading logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Lines that were returned or are unreadable.
    pub lines: u64,
    /// Bytes read from the files, before decompression.
    pub read: u64,
    /// The total size of the files, if known.
    pub size: Option<u64>,
}

/// How a file's lines are read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileFormat {
    /// The name of the file.
    pub file: Box<str>,
    /// The format, such as "a W3C log".
    pub format: &'static str,
    /// A W3C log's columns, or the fields with their paths in JSON objects.
    pub fields: Vec<Box<str>>,
    /// The zone for times that name none, if there are such times.
    pub zone: Option<Box<str>>,
}

impl fmt::Display for FileFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.format)?;
        if !self.fields.is_empty() {
            write!(f, " ({})", self.fields.join(", "))?;
        }
        self.zone.as_ref().map_or(Ok(()), |zone| write!(f, ", times without a zone are in {zone}"))
    }
}
