//! A list of clients, and its text syntax.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use ipnet::IpNet;

use crate::key::{ApiKeys, SubjectName, network};

/// Networks, API keys and users for a list in [`AccessLists`](super::AccessLists).
///
/// The text syntax has one entry per line. Comments start with `#`:
///
/// | entry | clients |
/// |---|---|
/// | `203.0.113.0/24`, `2001:db8::7` | in this network, or with this address |
/// | `sha256:2c26…` | with the API key that has this digest |
/// | `user:mallory`, `user:https://issuer.example mallory` | this user, see [`SubjectName`] |
///
/// A network that contains all addresses is an error.
///
/// ```
/// use tollgate::access::SubjectList;
///
/// let list: SubjectList = "
///     203.0.113.0/24   # a botnet
///     user:mallory
/// ".parse()?;
/// assert_eq!(list.len(), 2);
///
/// let error = "198.51.100.7\n203.0.113.1/24".parse::<SubjectList>().unwrap_err();
/// assert!(error.to_string().starts_with("line 2: it has bits beyond its prefix"));
/// # Ok::<(), tollgate::access::SubjectListError>(())
/// ```
#[derive(Clone, Default)]
#[must_use]
pub struct SubjectList {
    pub(super) networks: Vec<IpNet>,
    pub(super) api_keys: HashSet<[u8; 32]>,
    pub(super) users: Vec<SubjectName>,
}

/// The error for an invalid list entry. It does not repeat the text, which may be a key by mistake.
#[derive(Clone, PartialEq, Eq)]
pub struct SubjectListError {
    /// The entry's line, starting at 1, if the list was parsed from text.
    pub line: Option<usize>,
    cure: String,
}

tollgate_core::debug_as_display!(SubjectListError);

impl SubjectList {
    /// Creates a list without entries.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a network (`203.0.113.0/24`) or an address to the list.
    ///
    /// # Errors
    /// The text is not a network, has bits beyond its prefix, or includes all addresses.
    pub fn network(mut self, network: &str) -> Result<Self, SubjectListError> {
        self.networks.push(parse(network)?);
        Ok(self)
    }

    /// Adds clients that have any of these API keys.
    pub fn api_keys(mut self, keys: &ApiKeys) -> Self {
        self.api_keys.extend(keys.digests());
        self
    }

    /// Adds a user: `mallory`, or `https://issuer.example mallory`.
    ///
    /// # Errors
    /// The name is empty.
    pub fn user(mut self, name: &str) -> Result<Self, SubjectListError> {
        let name = format!("user:{name}").parse();
        self.users.push(name.map_err(|_| SubjectListError::new("the name of the user is empty"))?);
        Ok(self)
    }

    /// Adds the entries from another list.
    pub fn and(mut self, other: Self) -> Self {
        self.networks.extend(other.networks);
        self.api_keys.extend(other.api_keys);
        self.users.extend(other.users);
        self
    }

    /// Returns the number of entries in the list.
    pub fn len(&self) -> usize {
        self.networks.len() + self.api_keys.len() + self.users.len()
    }

    /// Returns whether the list has no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn entry(self, entry: &str) -> Result<Self, SubjectListError> {
        if let Some(digest) = entry.strip_prefix("sha256:") {
            let keys = ApiKeys::from_sha256_hex([digest]).map_err(|_| {
                SubjectListError::new(
                    "after `sha256:` expected the SHA-256 of a key as 64 hex digits: \
                     `printf %s KEY | sha256sum`",
                )
            })?;
            return Ok(self.api_keys(&keys));
        }
        match entry.strip_prefix("user:") {
            Some(name) => self.user(name),
            None => self.network(entry),
        }
    }
}

impl FromStr for SubjectList {
    type Err = SubjectListError;

    fn from_str(text: &str) -> Result<Self, SubjectListError> {
        let mut list = Self::default();
        for (index, line) in text.lines().enumerate() {
            let entry = line.split_once('#').map_or(line, |(entry, _)| entry).trim();
            if !entry.is_empty() {
                let at = |error| SubjectListError { line: Some(index + 1), ..error };
                list = list.entry(entry).map_err(at)?;
            }
        }
        Ok(list)
    }
}

fn parse(entry: &str) -> Result<IpNet, SubjectListError> {
    let parsed = network(
        entry,
        "expected a network such as 203.0.113.0/24 or 2001:db8::/32, an address, `sha256:DIGEST` \
         or `user:NAME`",
        "it matches every client; name the intended networks",
    );
    parsed.map_err(SubjectListError::new)
}

impl SubjectListError {
    /// Returns how to fix the entry.
    pub fn cure(&self) -> &str {
        &self.cure
    }

    fn new(cure: impl Into<String>) -> Self {
        Self { line: None, cure: cure.into() }
    }
}

impl fmt::Display for SubjectListError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.cure),
            None => f.write_str(&self.cure),
        }
    }
}

impl std::error::Error for SubjectListError {}

/// Shows counts instead of names.
impl fmt::Debug for SubjectList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubjectList")
            .field("networks", &self.networks.len())
            .field("api_keys", &self.api_keys.len())
            .field("users", &self.users.len())
            .finish()
    }
}
