//! Patterns of paths.

use crate::Head;

/// A list of path patterns: exact paths (`/healthz`), or everything below one
/// (`/static/*`).
///
/// A pattern is held against the path as it was sent (and inside axum's `nest`, against
/// what that has left of it). One resource has many spellings: to some servers `//`,
/// `%2e`, `;x` or `/../` lead elsewhere than they seem to. So there are two questions.
/// What is *exempt* must surely match, and a suspicious spelling does not. What is
/// *limited* may match, and a suspicious spelling does, whatever the pattern: no spelling
/// is a way around a limit.
///
/// ```
/// use tollgate::Paths;
///
/// let paths = Paths::new(["/healthz", "/static/*"])?;
/// assert!(paths.surely_contains("/healthz") && paths.surely_contains("/static/app.css"));
/// assert!(!paths.surely_contains("/static/../admin"));
/// assert!(paths.may_contain("/static/%61pp.css") && !paths.may_contain("/other"));
/// # Ok::<(), tollgate::PathsError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Paths {
    exact: Vec<Box<str>>,
    below: Vec<Box<str>>,
}

impl Paths {
    /// These patterns, or what is wrong with one of them.
    ///
    /// # Errors
    /// A pattern that does not begin with `/`, or has a `*` other than the last segment, or
    /// a parameter of a router in it: it would match nothing, and nobody would notice.
    pub fn new<P: AsRef<str>>(patterns: impl IntoIterator<Item = P>) -> Result<Self, PathsError> {
        let mut paths = Self::default();
        for pattern in patterns {
            let pattern = pattern.as_ref();
            let (list, fixed) = match pattern.strip_suffix("/*") {
                Some(prefix) => (&mut paths.below, format!("{prefix}/")),
                None => (&mut paths.exact, pattern.to_owned()),
            };
            if !fixed.starts_with('/') || fixed.contains(['*', '{', '}']) || !is_plain(&fixed) {
                return Err(PathsError { pattern: pattern.to_owned() });
            }
            list.push(fixed.into());
        }
        Ok(paths)
    }

    /// Whether a path matches one of the patterns and could be taken for no other.
    pub fn surely_contains(&self, path: &str) -> bool {
        is_plain(path) && self.matches(path)
    }

    /// Whether a path matches one of the patterns, or could be taken for one that does.
    pub fn may_contain(&self, path: &str) -> bool {
        !is_plain(path) || self.matches(path)
    }

    pub(crate) fn exempt(&self, head: &Head<'_>) -> bool {
        self.surely_contains(head.uri.path())
    }

    pub(crate) fn limit(&self, head: &Head<'_>) -> bool {
        self.may_contain(head.uri.path())
    }

    fn matches(&self, path: &str) -> bool {
        self.exact.iter().any(|exact| **exact == *path)
            || self.below.iter().any(|prefix| path.starts_with(&**prefix))
    }
}

/// Whether no server could take the path for another one.
fn is_plain(path: &str) -> bool {
    let suspicious = |segment: &str| segment == "." || segment == "..";
    !path.contains("//") && !path.contains(['%', '\\', ';']) && !path.split('/').any(suspicious)
}

/// A pattern that would match nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "path pattern {pattern:?}: begin with `/`, use `*` as the last segment alone \
     (`/static/*`), and no `//`, `%`, `;` or parameters; for a route like `/users/{{id}}` put \
     the layer on that route"
)]
pub struct PathsError {
    pattern: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spelling_that_may_mean_another_path_is_limited_and_not_exempt() {
        let paths = Paths::new(["/static/*", "/login"]).unwrap();
        for path in ["/static/a", "/static/", "/static/a.b/..c", "/login"] {
            assert!(paths.surely_contains(path) && paths.may_contain(path), "{path}");
        }
        for path in [
            "/static/../admin",
            "/static/%2e%2e/admin",
            "/static//admin",
            "/static/./x",
            "/static/a;b",
            "/static\\..\\admin",
            "/log%69n",
            "//login",
            "/login;x",
        ] {
            assert!(!paths.surely_contains(path) && paths.may_contain(path), "{path}");
        }
        for path in ["/static", "/Static/a", "/login/", "/other"] {
            assert!(!paths.surely_contains(path) && !paths.may_contain(path), "{path}");
        }
    }

    #[test]
    fn a_pattern_that_would_match_nothing_is_refused() {
        for pattern in ["", "login", "*", "/users/{id}", "/users/*/a", "/static*", "/a//b", "/%61"]
        {
            let error = Paths::new([pattern]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("path pattern {pattern:?}")), "{error}");
        }
    }
}
