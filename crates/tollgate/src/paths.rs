//! Path patterns.

use std::borrow::Cow;

use tollgate_engine::PathPattern;

/// A list of path patterns: exact paths (`/healthz`), or all paths at and below a path (`/static/*`
/// is `/static`, `/static/` and `/static/a`, but not `/statics`).
///
/// Patterns are compared with the request's percent-decoded path, so `/검색` and
/// `/%EA%B2%80%EC%83%89` are equal, both in patterns and in requests. Inside axum's `nest` the path
/// has no prefix. The method and the query have no effect. `/login` does not match `/login/`: if
/// your service responds to both, list both, or `/login/*`.
///
/// A path can have many spellings, and servers interpret some in different ways: `//`, `\`, `;`,
/// the segments `.` and `..`, the escapes of these and of `%`, `?`, `#` and control characters, and
/// escapes that are not valid UTF-8. These spellings are [*ambiguous*](Self::is_ambiguous).
///
/// * A *limit* applies to every path that [may be](Self::may_contain) in the list. An ambiguous
///   spelling could mean any path, so no spelling avoids a limit.
/// * An *exemption* applies only to a path that is [surely](Self::surely_contains) in the list. It
///   excludes ambiguous spellings and unnecessary escapes, such as `%61` for `a`, because some
///   routers do not decode them.
///
/// Comparison is case-sensitive and does not normalize Unicode. If your service also accepts
/// `/LOGIN` or another Unicode form for `/login`, put the layer on the route instead.
///
/// ```
/// use tollgate::limit::Paths;
///
/// let paths = Paths::new(["/healthz", "/static/*", "/검색"])?;
/// assert!(paths.surely_contains("/healthz") && paths.surely_contains("/static/app.css"));
/// assert!(paths.surely_contains("/%EA%B2%80%EC%83%89"));
/// assert!(!paths.surely_contains("/static/../admin"));
/// assert!(paths.may_contain("/static/../admin") && !paths.may_contain("/caf%C3%A9"));
/// # Ok::<(), tollgate::limit::PathsError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Paths(Vec<PathPattern>);

impl Paths {
    /// Makes a list of path patterns.
    ///
    /// # Errors
    /// A pattern would match no path: it does not start with `/`, has a `*` before its last
    /// segment, contains a router parameter, or is ambiguous.
    pub fn new<P: AsRef<str>>(patterns: impl IntoIterator<Item = P>) -> Result<Self, PathsError> {
        let decoded = |path: &str| Decoded::of(path).map(|it| it.text.into_owned()).ok_or(());
        let parse = |pattern: P| {
            PathPattern::parse(pattern.as_ref(), decoded)
                .map_err(|_| PathsError { pattern: pattern.as_ref().to_owned() })
        };
        patterns.into_iter().map(parse).collect::<Result<_, _>>().map(Self)
    }

    /// Returns whether every server would interpret the path as one of the patterns.
    pub fn surely_contains(&self, path: &str) -> bool {
        Decoded::of(path).is_some_and(|path| !path.has_needless_escape && self.has(&path.text))
    }

    /// Returns whether any server could interpret the path as one of the patterns.
    pub fn may_contain(&self, path: &str) -> bool {
        Decoded::of(path).is_none_or(|path| self.has(&path.text))
    }

    /// Returns whether servers interpret this spelling of a path in different ways.
    ///
    /// ```
    /// use tollgate::limit::Paths;
    ///
    /// for path in ["//login", "/static/..%2Flogin", "/login;x", "/%252e%252e/login", "/%FF"] {
    ///     assert!(Paths::is_ambiguous(path));
    /// }
    /// assert!(!Paths::is_ambiguous("/log%69n") && !Paths::is_ambiguous("/caf%C3%A9"));
    /// ```
    pub fn is_ambiguous(path: &str) -> bool {
        Decoded::of(path).is_none()
    }

    fn has(&self, decoded: &str) -> bool {
        self.0.iter().any(|pattern| pattern.matches(decoded))
    }
}

/// A percent-decoded path that all servers interpret the same way.
struct Decoded<'a> {
    text: Cow<'a, str>,
    /// Whether an ASCII character is escaped unnecessarily.
    has_needless_escape: bool,
}

impl<'a> Decoded<'a> {
    /// `None` if the spelling is ambiguous.
    fn of(path: &'a str) -> Option<Self> {
        let is_dots = |segment: &str| segment == "." || segment == "..";
        let is_ambiguous = |letter: char| matches!(letter, '\\' | ';') || letter.is_control();
        if path.contains("//") || path.contains(is_ambiguous) || path.split('/').any(is_dots) {
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

/// Whether a path may contain this character unescaped (`pchar` in RFC 3986).
const fn may_be_raw(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'-' | b'_' | b'~' | b'!' | b'$' | b'&' | b'\'')
        || matches!(byte, b'(' | b')' | b'*' | b'+' | b',' | b'=' | b':' | b'@')
}

fn hex(digit: u8) -> Option<u8> {
    // A hexadecimal digit fits into a `u8`.
    char::from(digit).to_digit(16).map(|value| value as u8)
}

/// The error for a path pattern that would match no path.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[doc(alias = "TG0121")]
#[error(
    "path pattern {pattern:?}: start with `/`, use `*` as the last segment alone \
     (`/static/*`), and leave out `//`, `..`, `;`, the query, parameters, and escapes that servers \
     read in different ways (`%2F`); for a route like `/users/{{id}}` put the layer on that route [TG0121]"
)]
pub struct PathsError {
    pattern: String,
}

tollgate_core::debug_as_display!(PathsError);

#[cfg(test)]
mod tests;
