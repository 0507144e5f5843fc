//! Patterns of paths.

use crate::Head;

/// A list of path patterns: exact paths (`/healthz`), or everything below one
/// (`/static/*`).
///
/// A pattern is held against the path as it was sent. A spelling that means the same
/// to some servers (`//`, `%2e`, `/../`) does not match one that ends in `*`: what is
/// exempt from a limit should be what it looks like.
///
/// ```
/// use tollgate::Paths;
///
/// let paths = Paths::new(["/healthz", "/static/*"]);
/// assert!(paths.contains("/healthz") && paths.contains("/static/app.css"));
/// assert!(!paths.contains("/healthz/") && !paths.contains("/static/../admin"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Paths {
    exact: Vec<Box<str>>,
    below: Vec<Box<str>>,
}

impl Paths {
    /// These patterns.
    pub fn new<P: AsRef<str>>(patterns: impl IntoIterator<Item = P>) -> Self {
        let mut paths = Self::default();
        for pattern in patterns {
            match pattern.as_ref().strip_suffix('*') {
                Some(prefix) => paths.below.push(prefix.into()),
                None => paths.exact.push(pattern.as_ref().into()),
            }
        }
        paths
    }

    /// Whether a path matches one of the patterns.
    pub fn contains(&self, path: &str) -> bool {
        self.exact.iter().any(|exact| **exact == *path)
            || (self.below.iter().any(|prefix| path.starts_with(&**prefix)) && is_plain(path))
    }

    /// Whether the path of a request matches one of the patterns.
    pub fn matches(&self, head: &Head<'_>) -> bool {
        self.contains(head.uri.path())
    }
}

/// Whether no server could take the path for another one.
fn is_plain(path: &str) -> bool {
    let suspicious = |segment: &str| segment == "." || segment == "..";
    !path.contains("//") && !path.contains(['%', '\\', ';']) && !path.split('/').any(suspicious)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_mean_another_path_is_not_below_a_pattern() {
        let paths = Paths::new(["/static/*"]);
        for path in ["/static/a", "/static/", "/static/a.b/..c"] {
            assert!(paths.contains(path), "{path}");
        }
        for path in [
            "/static",
            "/static/../admin",
            "/static/%2e%2e/admin",
            "/static//admin",
            "/static/./x",
            "/static/a;b",
            "/static\\..\\admin",
            "/Static/a",
        ] {
            assert!(!paths.contains(path), "{path}");
        }
    }
}
