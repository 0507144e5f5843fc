use std::fmt;

use regex::{Regex, RegexBuilder};
use tollgate_engine::PathPattern;

/// A rule's paths. Only the normalized path is matched, without query and host.
#[derive(Clone, Debug)]
pub enum PathMatch {
    Pattern(PathPattern),
    /// A regular expression; anchor it with `^` and `$`.
    Regex(Regex),
}

#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct PathMatchError(#[from] pub(crate) regex::Error);

impl PathMatch {
    pub fn any() -> Self {
        Self::Pattern(PathPattern::any())
    }

    /// A regular expression, always matched in linear time.
    pub fn regex(expression: &str) -> Result<Self, PathMatchError> {
        let mut builder = RegexBuilder::new(expression);
        builder.size_limit(REGEX_BYTES).dfa_size_limit(REGEX_BYTES);
        Ok(Self::Regex(builder.build()?))
    }

    pub fn matches(&self, path: &str) -> bool {
        match self {
            Self::Pattern(pattern) => pattern.matches(path),
            Self::Regex(regex) => regex.is_match(path),
        }
    }

    /// Whether these include all of the `other` paths. Two different expressions are not compared.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Pattern(pattern), Self::Pattern(other)) => pattern.covers(other),
            (Self::Regex(regex), Self::Pattern(PathPattern::Exact(path))) => regex.is_match(path),
            _ => *self == Self::any() || self == other,
        }
    }
}

/// The maximum memory for a compiled expression; `\d{100}` needs about 30 KiB.
const REGEX_BYTES: usize = 256 << 10;

impl PartialEq for PathMatch {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Pattern(a), Self::Pattern(b)) => a == b,
            (Self::Regex(a), Self::Regex(b)) => a.as_str() == b.as_str(),
            _ => false,
        }
    }
}

impl Eq for PathMatch {}

impl fmt::Display for PathMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pattern(pattern) => pattern.fmt(f),
            Self::Regex(regex) => f.write_str(regex.as_str()),
        }
    }
}
