use std::error::Error;
use std::fmt;

/// Why a plan cannot be served. Does not implement [`Error`], so `?` can convert any error into it.
#[derive(Clone, Debug)]
pub struct BuildError(pub(crate) String);

impl<E: Error> From<E> for BuildError {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
