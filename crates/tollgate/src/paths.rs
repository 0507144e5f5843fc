//! Patterns of paths.

use std::borrow::Cow;

use crate::RequestHead;

/// A list of path patterns: exact paths (`/healthz`), or everything at and below one
/// (`/static/*` is `/static`, `/static/` and `/static/a`, but not `/statics`).
///
/// A pattern is compared with the path of the request after percent-decoding, so that `/검색`
/// and `/%EA%B2%80%EC%83%89` are one pattern and one path. Inside axum's `nest` the prefix of the
/// nest is already gone. Method and query play no part.
///
/// One path has many spellings, and servers read some of them in different ways: `//`, `\`, `;`,
/// the segments `.` and `..`, and the escapes of these and of `%`, `?`, `#` and control characters,
/// as well as escapes that are not valid UTF-8. These spellings are [*ambiguous*](Self::is_ambiguous).
/// So there are two questions:
///
/// * A *limit* holds for every path that [may be one](Self::may_contain) of its paths. An ambiguous
///   spelling may be any path, so that no spelling is a way around a limit.
/// * An *exemption* holds only for a path that [surely is one](Self::surely_contains) of its paths.
///   An ambiguous spelling never is. Nor is an escape that no client needs, as `%61` for `a`,
///   because a router that does not decode it takes it for another path.
///
/// Letters are compared as they are. If your service also takes `/LOGIN` or another Unicode form
/// for `/login`, put the layer on the route instead.
///
/// ```
/// use tollgate::Paths;
///
/// let paths = Paths::new(["/healthz", "/static/*", "/검색"])?;
/// assert!(paths.surely_contains("/healthz") && paths.surely_contains("/static/app.css"));
/// assert!(paths.surely_contains("/%EA%B2%80%EC%83%89"));
/// assert!(!paths.surely_contains("/static/../admin"));
/// assert!(paths.may_contain("/static/../admin") && !paths.may_contain("/caf%C3%A9"));
/// # Ok::<(), tollgate::layer::PathsError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Paths {
    exact: Vec<Box<str>>,
    /// Without the slash at the end.
    below: Vec<Box<str>>,
}

impl Paths {
    /// These patterns, or what is wrong with one of them.
    ///
    /// # Errors
    /// A pattern that would match nothing: it does not begin with `/`, has a `*` other than the
    /// last segment, has a parameter of a router in it, or is ambiguous.
    pub fn new<P: AsRef<str>>(patterns: impl IntoIterator<Item = P>) -> Result<Self, PathsError> {
        let mut paths = Self::default();
        for pattern in patterns {
            let pattern = pattern.as_ref();
            let fixed = pattern.strip_suffix("/*");
            let error = || PathsError { pattern: pattern.to_owned() };
            if !pattern.starts_with('/')
                || fixed.unwrap_or(pattern).contains(['*', '{', '}', '?', '#'])
            {
                return Err(error());
            }
            let text = Decoded::of(pattern).ok_or_else(error)?.text;
            match text.strip_suffix("/*").filter(|_| fixed.is_some()) {
                Some(prefix) => paths.below.push(prefix.into()),
                None => paths.exact.push(text.into()),
            }
        }
        Ok(paths)
    }

    /// Whether a path surely matches one of the patterns, however a server reads it.
    pub fn surely_contains(&self, path: &str) -> bool {
        Decoded::of(path).is_some_and(|path| !path.has_needless_escape && self.has(&path.text))
    }

    /// Whether a path matches one of the patterns, or some server could read it as one that does.
    pub fn may_contain(&self, path: &str) -> bool {
        Decoded::of(path).is_none_or(|path| self.has(&path.text))
    }

    /// Whether servers read this spelling of a path in different ways.
    ///
    /// ```
    /// use tollgate::Paths;
    ///
    /// for path in ["//login", "/static/..%2Flogin", "/login;x", "/%252e%252e/login", "/%FF"] {
    ///     assert!(Paths::is_ambiguous(path));
    /// }
    /// assert!(!Paths::is_ambiguous("/log%69n") && !Paths::is_ambiguous("/caf%C3%A9"));
    /// ```
    pub fn is_ambiguous(path: &str) -> bool {
        Decoded::of(path).is_none()
    }

    pub(crate) fn exempt(&self, head: &RequestHead<'_>) -> bool {
        self.surely_contains(head.uri.path())
    }

    pub(crate) fn limit(&self, head: &RequestHead<'_>) -> bool {
        self.may_contain(head.uri.path())
    }

    fn has(&self, decoded: &str) -> bool {
        let is_below = |prefix: &str| {
            decoded
                .strip_prefix(prefix)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.exact.iter().any(|exact| **exact == *decoded)
            || self.below.iter().any(|prefix| is_below(prefix))
    }
}

/// A path that all servers read in the same way, percent-decoded.
struct Decoded<'a> {
    text: Cow<'a, str>,
    /// Whether an ASCII character is escaped that needs no escape, so that it has two spellings.
    has_needless_escape: bool,
}

impl<'a> Decoded<'a> {
    /// `None` if the spelling is ambiguous.
    fn of(path: &'a str) -> Option<Self> {
        let is_dots = |segment: &str| segment == "." || segment == "..";
        let is_odd = |letter: char| matches!(letter, '\\' | ';') || letter.is_control();
        if path.contains("//") || path.contains(is_odd) || path.split('/').any(is_dots) {
            return None;
        }
        if !path.contains('%') {
            return Some(Self { text: Cow::Borrowed(path), has_needless_escape: false });
        }
        let mut bytes = Vec::with_capacity(path.len());
        let mut has_needless_escape = false;
        let mut rest = path.bytes();
        while let Some(byte) = rest.next() {
            if byte != b'%' {
                bytes.push(byte);
                continue;
            }
            let byte = hex(rest.next()?)? << 4 | hex(rest.next()?)?;
            if matches!(byte, b'/' | b'\\' | b'.' | b';' | b'%' | b'?' | b'#') {
                return None;
            }
            has_needless_escape |= may_be_raw(byte);
            bytes.push(byte);
        }
        let text = String::from_utf8(bytes).ok()?;
        let text = (!text.contains(char::is_control)).then(|| text.into())?;
        Some(Self { text, has_needless_escape })
    }
}

/// Whether a path may hold this character without an escape (`pchar` of RFC 3986).
const fn may_be_raw(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'-' | b'_' | b'~' | b'!' | b'$' | b'&' | b'\'')
        || matches!(byte, b'(' | b')' | b'*' | b'+' | b',' | b'=' | b':' | b'@')
}

fn hex(digit: u8) -> Option<u8> {
    // A digit to the base of 16 fits.
    char::from(digit).to_digit(16).map(|value| value as u8)
}

/// A pattern that would match nothing.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "path pattern {pattern:?}: begin with `/`, use `*` as the last segment alone \
     (`/static/*`), and leave out `//`, `..`, `;`, the query, parameters, and escapes that servers \
     read in different ways (`%2F`); for a route like `/users/{{id}}` put the layer on that route"
)]
pub struct PathsError {
    pattern: String,
}

tollgate_core::debug_as_display!(PathsError);

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use proptest::prelude::*;

    use super::*;

    /// The answers to the two questions about a path.
    #[derive(Debug, PartialEq)]
    enum Is {
        /// Limited and exempt.
        Sure,
        /// Limited, and never exempt.
        Possible,
        /// Neither.
        Other,
    }

    #[test]
    fn a_path_is_limited_if_it_may_match_and_exempt_if_it_surely_does() {
        let paths = Paths::new(["/static/*", "/login", "/검색", "/caf%C3%A9/*"]).unwrap();
        for (expected, spellings) in [
            (
                Is::Sure,
                &[
                    "/static",
                    "/static/",
                    "/static/a",
                    "/static/a.b/..c",
                    "/static/a%20b",
                    "/static/%EA%B2%80",
                    "/login",
                    "/%EA%B2%80%EC%83%89",
                    "/%ea%b2%80%ec%83%89",
                    "/검색",
                    "/caf%C3%A9",
                    "/café/menu",
                ][..],
            ),
            // ASCII that needs no escape: a router may or may not decode it.
            (
                Is::Possible,
                &[
                    "/log%69n",
                    "/%6C%6f%67%69%6e",
                    "/static/%61pp.css",
                    "/static/a%2Bb",
                    "/%63af%C3%A9",
                ],
            ),
            // Another path in plain letters, however it is escaped.
            (
                Is::Other,
                &[
                    "/statics",
                    "/Static/a",
                    "/login/",
                    "/other",
                    "/%6Fther",
                    "/%EA%B2%80",
                    "/%EA%B2%80%EC%83%89/",
                    "/caf%C3%A8",
                    "/cafe",
                    "/a%20b",
                    "/100%E2%82%AC",
                ],
            ),
        ] {
            for path in spellings {
                let is = match (paths.may_contain(path), paths.surely_contains(path)) {
                    (true, true) => Is::Sure,
                    (true, false) => Is::Possible,
                    (false, _) => Is::Other,
                };
                assert_eq!(is, expected, "{path}");
            }
        }
    }

    #[test]
    fn an_ambiguous_spelling_is_always_limited_and_never_exempt() {
        let paths = Paths::new(["/static/*", "/login"]).unwrap();
        for path in [
            "/static/../admin",
            "/static/%2e%2e/admin",
            "/static/.%2E/admin",
            "/static/..%2Fadmin",
            "/static/%2fadmin",
            "/static//admin",
            "/static/./x",
            "/static/a%2Ehtml",
            "/static/a;b",
            "/static/a%3Bb",
            "/static\\..\\admin",
            "/static/..%5Cadmin",
            "/static/%5cadmin",
            // Double encodings.
            "/static/%252e%252e/admin",
            "/static/%25%32%65/admin",
            "/static/100%25",
            // Control characters.
            "/static/%00",
            "/static/a%0D%0Ab",
            "/static/a%7F",
            "/static/a%C2%85",
            // Not UTF-8: a lone byte, a part of a letter, overlong `/` and `.`, a surrogate.
            "/static/%FF",
            "/static/%EA%B2",
            "/static/%EA%B2/%80",
            "/static/..%C0%AFadmin",
            "/static/%E0%80%AFadmin",
            "/static/%C0%AE%C0%AE/admin",
            "/static/%ED%A0%80",
            // Not an escape.
            "/static/%",
            "/static/%2",
            "/static/%zz",
            "/static/%u002e",
            "/static/%+2",
            "/static/%é",
            // The query of a server that decodes first.
            "/static/a%3Fb",
            "/static/a%23b",
            "//login",
            "/login;x",
            "/other//",
        ] {
            assert!(Paths::is_ambiguous(path), "{path}");
            assert!(!paths.surely_contains(path) && paths.may_contain(path), "{path}");
        }
    }

    #[test]
    fn everything_is_below_the_root() {
        let paths = Paths::new(["/*"]).unwrap();
        for path in ["/", "/a", "/a/b/", "/%EA%B2%80"] {
            assert!(paths.surely_contains(path), "{path}");
        }
        assert!(!paths.may_contain("*"));
        assert!(!Paths::new(["/"]).unwrap().may_contain("/a"));
    }

    #[test]
    fn a_pattern_that_would_match_nothing_is_refused() {
        for pattern in [
            "",
            "login",
            "*",
            "/users/{id}",
            "/users/*/a",
            "/static*",
            "/a//b",
            "/a//*",
            "/../a",
            "/a;b",
            "/a?b",
            "/a#b",
            "/%2e",
            "/a%2Fb",
            "/%zz",
            "/%FF",
            "/%25",
            "/%00",
            "/a\n",
        ] {
            let error = Paths::new([pattern]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("path pattern {pattern:?}")), "{error}");
        }
    }

    #[test]
    fn a_pattern_may_be_written_as_it_is_sent() {
        let paths = Paths::new(["/%EA%B2%80%EC%83%89/*", "/%61/%2A"]).unwrap();
        assert!(paths.surely_contains("/검색/a") && paths.surely_contains("/a/*"));
        assert!(!paths.may_contain("/a/b"));
    }

    proptest! {
        #[test]
        fn no_spelling_of_a_path_is_a_way_around_its_limit(
            letters in prop::collection::vec((prop::char::any(), 0..3_u8), 1..8),
            before in "(/|//|/\\./|/a/\\.\\./|/%2e/|/;x/|/%2F)",
            after in "(|/|/b|;x|%00|%2fb|%5C|\\\\)",
        ) {
            let name: String = letters.iter().map(|(letter, _)| *letter).collect();
            let Ok(paths) = Paths::new([format!("/{name}/*")]) else { return Ok(()) };
            let mut path = before;
            for (letter, spelled) in letters {
                let mut bytes = [0; 4];
                for byte in letter.encode_utf8(&mut bytes).bytes() {
                    match spelled {
                        0 => {}
                        1 => write!(path, "%{byte:02x}").unwrap(),
                        _ => write!(path, "%{byte:02X}").unwrap(),
                    }
                }
                if spelled == 0 {
                    path.push(letter);
                }
            }
            path.push_str(&after);
            prop_assert!(paths.may_contain(&path), "{}", path);
        }

        #[test]
        fn what_is_exempt_would_be_limited_as_well(path in "/[a-c./;%25eEfF0{\u{e9}\u{ac80}]{0,16}") {
            let paths = Paths::new(["/a/*", "/b", "/\u{e9}/*"]).unwrap();
            prop_assert!(paths.may_contain(&path) || !paths.surely_contains(&path));
        }
    }
}
