//! Path patterns.

use std::fmt;

/// A path pattern. Callers match it with paths in one normal form, without the query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathPattern {
    /// Only this path.
    Exact(Box<str>),
    /// This path and all paths below it: `/static` stands for `/static`, `/static/` and
    /// `/static/a`, but not for `/statics`. An empty text stands for all paths.
    Below(Box<str>),
}

/// Why a text is no path pattern, with the reason of the caller's normal form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathPatternError<E> {
    /// It does not start with `/`.
    Relative,
    /// It has a `*` that is not its whole last segment.
    Wildcard,
    /// It has a `?` or `#`, which end the path of a request.
    Query,
    /// It has a router's placeholder, such as `{id}` or `<id>`.
    Placeholder,
    /// It has no normal form.
    Path(E),
}

impl PathPattern {
    /// Parses an exact path (`/login`), or a path with everything below it (`/static/*`). `normal`
    /// returns the normal form of a path.
    ///
    /// # Errors
    /// No request has a path that matches.
    pub fn parse<E>(
        pattern: &str,
        normal: impl FnOnce(&str) -> Result<String, E>,
    ) -> Result<Self, PathPatternError<E>> {
        let (path, is_exact) = match pattern.strip_suffix('*') {
            Some(path) if path.ends_with('/') => (path, false),
            _ => (pattern, true),
        };
        if !path.starts_with('/') {
            return Err(PathPatternError::Relative);
        }
        if path.contains('*') {
            return Err(PathPatternError::Wildcard);
        }
        if path.contains(['?', '#']) {
            return Err(PathPatternError::Query);
        }
        if path.contains(['{', '}', '<']) {
            return Err(PathPatternError::Placeholder);
        }
        let normal = normal(path).map_err(PathPatternError::Path)?;
        Ok(match is_exact {
            true => Self::Exact(normal.into()),
            false => Self::Below(normal.strip_suffix('/').unwrap_or(&normal).into()),
        })
    }

    /// Returns the pattern for all paths.
    pub fn any() -> Self {
        Self::Below(Box::default())
    }

    /// Returns whether a path matches.
    pub fn matches(&self, path: &str) -> bool {
        match self {
            Self::Exact(exact) => **exact == *path,
            Self::Below(prefix) => path
                .strip_prefix(&**prefix)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
        }
    }

    /// Returns whether all paths that match `other` match this pattern too.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (_, Self::Exact(path)) => self.matches(path),
            (Self::Below(_), Self::Below(prefix)) => self.matches(prefix),
            (Self::Exact(_), Self::Below(_)) => false,
        }
    }
}

/// The text from which it was parsed, or "any path".
impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(path) => f.write_str(path),
            Self::Below(prefix) if prefix.is_empty() => f.write_str("any path"),
            Self::Below(prefix) => write!(f, "{prefix}/*"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pattern: &str) -> Result<PathPattern, PathPatternError<()>> {
        let normal = |path: &str| if path.contains("//") { Err(()) } else { Ok(path.to_owned()) };
        PathPattern::parse(pattern, normal)
    }

    #[test]
    fn patterns_match_a_path_or_all_below() {
        let paths = [
            "/",
            "/static",
            "/static/",
            "/static/a",
            "/static/a/b",
            "/statics",
            "/Static/a",
            "/a/static",
            "/login",
            "/login/",
        ];
        for (pattern, matched) in [
            ("/static/*", &["/static", "/static/", "/static/a", "/static/a/b"][..]),
            ("/static/", &["/static/"]),
            ("/login", &["/login"]),
            ("/", &["/"]),
            ("/*", &paths),
        ] {
            let parsed = parse(pattern).unwrap();
            let found: Vec<_> = paths.into_iter().filter(|path| parsed.matches(path)).collect();
            assert_eq!(found, matched, "{pattern}");
        }
        assert!(!PathPattern::any().matches("*"));
    }

    #[test]
    fn patterns_without_matches_are_rejected() {
        use PathPatternError::*;
        for (pattern, error) in [
            ("", Relative),
            ("login", Relative),
            ("*", Relative),
            ("/users/*/a", Wildcard),
            ("/static*", Wildcard),
            ("/a?b", Query),
            ("/a#b", Query),
            ("/users/{id}", Placeholder),
            ("/users/<id>/*", Placeholder),
            ("/a//b", Path(())),
            ("/a//*", Path(())),
        ] {
            assert_eq!(parse(pattern), Err(error), "{pattern}");
        }
    }

    #[test]
    fn wider_patterns_cover_narrower_ones() {
        for (wide, narrow, covers) in [
            ("/*", "/a/*", true),
            ("/a/*", "/*", false),
            ("/a/*", "/a/b/*", true),
            ("/a/*", "/ab/*", false),
            ("/a/*", "/a", true),
            ("/a", "/a", true),
            ("/a", "/a/*", false),
        ] {
            let is_covered = parse(wide).unwrap().covers(&parse(narrow).unwrap());
            assert_eq!(is_covered, covers, "{wide} {narrow}");
        }
    }
}
