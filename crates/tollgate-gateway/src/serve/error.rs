//! Why what was read cannot be put to work.

use crate::files::FileError;

/// A plan that could not be put to work, and why: a file that it names, mostly.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BuildError(pub(crate) String);

impl From<FileError> for BuildError {
    fn from(error: FileError) -> Self {
        Self(error.to_string())
    }
}
