//! What a log teaches, and what a suggested file would do with it.

use tollgate_replay::Report;
use tollgate_replay::log::FileFormat;
use tollgate_replay::suggest::{Suggestion, Trial};

/// The result of reading the log.
pub(super) struct Learned {
    pub(super) suggestion: Suggestion,
    pub(super) formats: Vec<FileFormat>,
    pub(super) unreadable: u64,
    /// Lines that charge no limit.
    pub(super) not_limited: u64,
    /// Lines with `X-Forwarded-For` although their peer counts as the client.
    pub(super) not_forwarded: u64,
    /// Charged lines with a user, and charged lines with a status.
    pub(super) with_user: u64,
    pub(super) with_status: u64,
    /// The paths that the user describes.
    pub(super) patterns: Vec<String>,
}

/// The clients that a file denies.
pub(super) struct Judged<'a> {
    pub(super) trial: Trial<'a>,
    pub(super) report: Report,
}
