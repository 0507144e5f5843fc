//! Which paths and methods.

use std::fmt;

use http::Method;
use regex::{Regex, RegexBuilder};

/// Which methods a rule is about. GET covers HEAD, and an empty list is all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Methods(Vec<Method>);

impl Methods {
    /// These; none is all.
    pub fn new(methods: impl IntoIterator<Item = Method>) -> Self {
        Self(methods.into_iter().collect())
    }

    /// Whether it is about every method.
    pub const fn is_all(&self) -> bool {
        self.0.is_empty()
    }

    /// The methods in the list.
    pub fn iter(&self) -> impl Iterator<Item = &Method> {
        self.0.iter()
    }

    /// Whether the rule is about this method, in whatever letters. In HTTP, `post`
    /// and `POST` are different methods, but some services treat them alike.
    pub fn contain(&self, method: &Method) -> bool {
        let has = |method: &str| self.0.iter().any(|own| is_same(own.as_str(), method));
        self.0.is_empty()
            || has(method.as_str())
            || (is_same(method.as_str(), "HEAD") && has("GET"))
    }

    /// Whether a method is among both.
    pub fn meet(&self, others: &Self) -> bool {
        let any_in = |methods: &Self, of: &Self| methods.iter().any(|method| of.contain(method));
        self.is_all() || others.is_all() || any_in(self, others) || any_in(others, self)
    }

    /// Whether these are all of `others`, and perhaps more.
    pub fn cover(&self, others: &Self) -> bool {
        self.0.is_empty()
            || (!others.0.is_empty() && others.0.iter().all(|method| self.contain(method)))
    }
}

/// Whether two methods differ in letters alone.
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

/// Which paths a rule is about. It looks at the normal form of the path and at nothing
/// else: neither query nor host.
#[derive(Clone, Debug)]
pub enum PathMatch {
    /// Every path.
    Any,
    /// Exactly this one.
    Plain(String),
    /// This and everything below: `/static` holds for `/static`, `/static/` and
    /// `/static/a`, not for `/statics`.
    Below(String),
    /// A match of a regular expression; anchor it with `^` and `$`.
    Regex(Regex),
}

/// The error of a regular expression.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct PathMatchError(#[from] pub(crate) regex::Error);

impl PathMatch {
    /// A regular expression. It is matched in linear time, whatever it says.
    ///
    /// # Errors
    /// The expression is not valid, or is larger than 256 KiB when it is compiled.
    pub fn regex(expression: &str) -> Result<Self, PathMatchError> {
        let mut builder = RegexBuilder::new(expression);
        builder.size_limit(REGEX_BYTES).dfa_size_limit(REGEX_BYTES);
        Ok(Self::Regex(builder.build()?))
    }

    /// Whether a path in normal form is one of them.
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

    /// Whether these are all of the `other` paths, as far as that can be told: of two
    /// expressions it cannot, unless they are the same.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (_, Self::Plain(path)) => self.matches(path),
            (Self::Below(_), Self::Below(prefix)) => self.matches(prefix),
            _ => self == other,
        }
    }
}

/// As large as one expression may become: `\d{100}` takes some 30 KiB.
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
