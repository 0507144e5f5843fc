use std::fmt;

use http::Method;
use regex::{Regex, RegexBuilder};

/// A rule's methods. GET covers HEAD, and an empty list means all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Methods(Vec<Method>);

impl Methods {
    pub fn new(methods: impl IntoIterator<Item = Method>) -> Self {
        Self(methods.into_iter().collect())
    }

    pub const fn is_all(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Method> {
        self.0.iter()
    }

    /// Whether the method is in the list, ignoring case. In HTTP, `post` and `POST` are different
    /// methods, but some services treat them alike.
    pub fn contain(&self, method: &Method) -> bool {
        let has = |method: &str| self.0.iter().any(|own| is_same(own.as_str(), method));
        self.0.is_empty()
            || has(method.as_str())
            || (is_same(method.as_str(), "HEAD") && has("GET"))
    }

    pub fn meet(&self, others: &Self) -> bool {
        let any_in = |methods: &Self, of: &Self| methods.iter().any(|method| of.contain(method));
        self.is_all() || others.is_all() || any_in(self, others) || any_in(others, self)
    }

    /// Whether these include all of `others`.
    pub fn cover(&self, others: &Self) -> bool {
        self.0.is_empty()
            || (!others.0.is_empty() && others.0.iter().all(|method| self.contain(method)))
    }
}

pub(super) fn is_same(one: &str, other: &str) -> bool {
    one.eq_ignore_ascii_case(other)
}

impl fmt::Display for Methods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("any method");
        }
        for (index, method) in self.0.iter().enumerate() {
            write!(f, "{}{method}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// A rule's paths. Only the normalized path is matched, without query and host.
#[derive(Clone, Debug)]
pub enum PathMatch {
    Any,
    Plain(String),
    /// This path and everything below it: `/static` matches `/static`, `/static/` and `/static/a`,
    /// but not `/statics`.
    Below(String),
    /// A regular expression; anchor it with `^` and `$`.
    Regex(Regex),
}

#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct PathMatchError(#[from] pub(crate) regex::Error);

impl PathMatch {
    /// A regular expression, always matched in linear time.
    pub fn regex(expression: &str) -> Result<Self, PathMatchError> {
        let mut builder = RegexBuilder::new(expression);
        builder.size_limit(REGEX_BYTES).dfa_size_limit(REGEX_BYTES);
        Ok(Self::Regex(builder.build()?))
    }

    pub fn matches(&self, path: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Plain(plain) => plain == path,
            Self::Below(prefix) => path
                .strip_prefix(prefix.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
            Self::Regex(regex) => regex.is_match(path),
        }
    }

    /// Whether these include all of the `other` paths. Two different expressions are not compared.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (_, Self::Plain(path)) => self.matches(path),
            (Self::Below(_), Self::Below(prefix)) => self.matches(prefix),
            _ => self == other,
        }
    }
}

/// The maximum memory for a compiled expression; `\d{100}` needs about 30 KiB.
const REGEX_BYTES: usize = 256 << 10;

impl PartialEq for PathMatch {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, Self::Any) => true,
            (Self::Plain(a), Self::Plain(b)) | (Self::Below(a), Self::Below(b)) => a == b,
            (Self::Regex(a), Self::Regex(b)) => a.as_str() == b.as_str(),
            _ => false,
        }
    }
}

impl Eq for PathMatch {}

impl fmt::Display for PathMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any path"),
            Self::Plain(path) => f.write_str(path),
            Self::Below(prefix) => write!(f, "{prefix}/*"),
            Self::Regex(regex) => f.write_str(regex.as_str()),
        }
    }
}
