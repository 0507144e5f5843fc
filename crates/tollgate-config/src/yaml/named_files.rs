//! The files that a configuration names. `check` opens them, and a reload watches them.

use std::fmt;
use std::path::PathBuf;

use super::place::Place;
use crate::code::Code;

/// A file that cannot be used, with the reason and the cure.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}: {what}; {cure} [{code}]", file.display())]
pub struct FileError {
    pub file: PathBuf,
    pub code: Code,
    pub what: String,
    pub cure: String,
}

/// Files that belong together, each with its place in the configuration.
pub struct NamedFiles {
    pub files: Vec<(PathBuf, Place)>,
    /// Whether a change to their contents causes a reload.
    pub reload: bool,
    /// Reads the files, and returns their errors.
    pub(crate) check: Box<FileCheck>,
}

pub(crate) type FileCheck = dyn Fn() -> Vec<FileError> + Send + Sync;

impl fmt::Debug for NamedFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamedFiles").field("files", &self.files).finish_non_exhaustive()
    }
}
