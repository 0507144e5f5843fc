//! The blocklist and the allowlist.

use std::path::PathBuf;

/// A list of subjects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubjectsPlan {
    /// Networks and addresses.
    pub addresses: Vec<String>,
    /// The SHA-256 of API keys, in hex.
    pub api_keys: Vec<String>,
    /// Users, with or without their issuer.
    pub users: Vec<String>,
    /// A file with more of them, a line each.
    pub file: Option<PathBuf>,
}

impl SubjectsPlan {
    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
