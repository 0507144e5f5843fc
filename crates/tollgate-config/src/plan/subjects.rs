use std::path::PathBuf;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubjectsPlan {
    pub addresses: Vec<String>,
    /// The API keys' SHA-256, in hex.
    pub api_keys: Vec<String>,
    /// Users, with or without their issuer.
    pub users: Vec<String>,
    pub file: Option<PathBuf>,
}

impl SubjectsPlan {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
