//! The path that the service receives.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::{Ambiguous, MOST_DECODINGS, PathFault, hex, normalise};

/// How to read and forward paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathRules {
    pub ambiguous: Ambiguous,
    pub forward: Forwarded,
}

/// How the service receives paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Forwarded {
    /// The client's spelling, unless servers could find another resource there.
    #[default]
    Original,
    Normalized,
    /// The client's spelling, because another proxy forwards the request.
    Unchanged,
}

/// A request's path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestPath<'a> {
    /// The normalized form, which routes and limits match.
    pub normal: Cow<'a, str>,
    /// The path that the service receives, if it differs.
    pub original: Option<Cow<'a, str>>,
}

impl PathRules {
    /// Reads a request's path. `serve`, `replay` and `explain` share this function, so they agree.
    pub fn read<'a>(&self, path: &'a str) -> Result<RequestPath<'a>, PathFault> {
        let normal = normalise(path, self.ambiguous)?;
        if *normal == *path {
            return Ok(RequestPath { normal, original: None });
        }
        let original = match self.forward {
            Forwarded::Original => original(path),
            Forwarded::Normalized => None,
            Forwarded::Unchanged => Some(in_ascii(path)),
        };
        Ok(RequestPath { original: original.filter(|it| *it != normal), normal })
    }
}

impl RequestPath<'_> {
    /// The path that the service receives.
    pub fn forwarded(&self) -> &str {
        self.original.as_ref().unwrap_or(&self.normal)
    }
}

/// The client's spelling of a path, with characters outside ASCII escaped. `None` if some server
/// could read this spelling as a resource that it does not find in the normalized path, so another
/// limit would apply:
///
/// * A segment `.` or `..`, also if it is escaped several times. Not all servers resolve these, and
///   others do it before they merge slashes.
/// * `//` at the start, also if it is escaped, after which some servers read a host.
/// * `;` before the last segment, where some servers cut the path. After the last segment, only
///   text that is no separator in any reading.
/// * `\`, escapes of letters, digits, `-`, `.`, `_` and `~`, and `%` without two digits. No client
///   depends on these spellings.
fn original(path: &str) -> Option<Cow<'_, str>> {
    let (folders, name) = path.rsplit_once('/')?;
    let parameters = name.split_once(';').map_or("", |(_, parameters)| parameters);
    let is_dots = |segment: &[u8]| matches!(segment, b"." | b"..");
    let decoded_path = decoded(path);
    let is_safe = !matches!(decoded_path[..], [_, b'/' | b'\\', ..])
        && !folders.contains(';')
        && !path.contains('\\')
        && has_only_needed_escapes(path)
        && !decoded(parameters).iter().any(|byte| b"/\\\0".contains(byte))
        && !decoded_path.split(|byte| b"/\\;".contains(byte)).any(is_dots);
    is_safe.then(|| in_ascii(path))
}

fn has_only_needed_escapes(path: &str) -> bool {
    path.split('%').skip(1).all(|rest| {
        let is_unreserved = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        escaped(rest.as_bytes()).is_some_and(|byte| !is_unreserved(byte))
    })
}

/// The byte that an escape with these digits stands for.
fn escaped(digits: &[u8]) -> Option<u8> {
    let [high, low, ..] = digits else { return None };
    Some(hex(*high)? << 4 | hex(*low)?)
}

/// The text after all decodings that servers may make.
fn decoded(text: &str) -> Vec<u8> {
    (0..=MOST_DECODINGS).fold(text.as_bytes().to_vec(), |text, _| {
        let mut decoded = Vec::with_capacity(text.len());
        let mut rest = &text[..];
        while let [byte, after @ ..] = rest {
            let escape = escaped(after).filter(|_| *byte == b'%');
            decoded.push(escape.unwrap_or(*byte));
            rest = if escape.is_some() { &after[2..] } else { after };
        }
        decoded
    })
}

fn in_ascii(path: &str) -> Cow<'_, str> {
    if path.is_ascii() {
        return Cow::Borrowed(path);
    }
    let mut escaped = String::with_capacity(path.len() * 2);
    for byte in path.bytes() {
        if byte.is_ascii() {
            escaped.push(char::from(byte));
        } else {
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::super::other_readings;
    use super::*;

    const KEEP: PathRules = PathRules { ambiguous: Ambiguous::Keep, forward: Forwarded::Original };

    #[test]
    fn signed_spellings_are_forwarded() {
        for (path, forwarded) in [
            ("/a", "/a"),
            ("/bucket//a%2Bb", "/bucket//a%2Bb"),
            ("/bucket/%2b%40%3D//", "/bucket/%2b%40%3D//"),
            ("/a;jsessionid=1%20b", "/a;jsessionid=1%20b"),
            ("/a%3fb%23%25", "/a%3fb%23%25"),
            ("/caf\u{e9};x", "/caf%C3%A9;x"),
            ("/{a}|[b]", "/{a}|[b]"),
            ("/a%2fb//", "/a%2fb//"),
            // The others have another reading.
            ("//host//a", "/host/a"),
            ("/a//../b", "/b"),
            ("/a//%2E/b", "/a/b"),
            ("/a//%252e%252e/b", "/a/%252e%252e/b"),
            ("/a//..%2fb", "/a/..%2Fb"),
            ("/a//..;/b", "/b"),
            ("/a;x/b", "/a/b"),
            ("/a;x%2Fb", "/a"),
            ("/a;x%252fb", "/a"),
            ("/a;x%5Cb", "/a"),
            ("/a;%00", "/a"),
            ("/a;%zz", "/a"),
            ("/%61//b", "/a/b"),
            ("/a\\b//", "/a%5Cb/"),
            ("/a%//b", "/a%25/b"),
        ] {
            assert_eq!(KEEP.read(path).unwrap().forwarded(), forwarded, "{path}");
            let normalized = PathRules { forward: Forwarded::Normalized, ..KEEP };
            let read = normalized.read(path).unwrap();
            assert_eq!(read.forwarded(), &*read.normal, "{path}");
        }
    }

    /// The steps in which servers read a path. Each server makes some of them, in its own order.
    const STEPS: [fn(&str) -> String; 6] = [
        |path| String::from_utf8_lossy(&once_decoded(path)).into_owned(),
        |path| path.replace('\\', "/"),
        |path| {
            let mut path = path.to_owned();
            while path.contains("//") {
                path = path.replace("//", "/");
            }
            path
        },
        |path| {
            let names = path.split('/').map(|segment| segment.split(';').next().unwrap());
            names.collect::<Vec<_>>().join("/")
        },
        |path| path.split(';').next().unwrap().to_owned(),
        // Without the host, as `new URL(path, base)` reads it.
        |path| match path.strip_prefix("//") {
            Some(rest) => rest.find('/').map_or("/", |slash| &rest[slash..]).to_owned(),
            None => path.to_owned(),
        },
    ];

    fn once_decoded(path: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut rest = path.as_bytes();
        while let [byte, after @ ..] = rest {
            let escape = escaped(after).filter(|_| *byte == b'%');
            bytes.push(escape.unwrap_or(*byte));
            rest = if escape.is_some() { &after[2..] } else { after };
        }
        bytes
    }

    /// Resolves dots like RFC 3986, with empty segments.
    fn without_dots(path: &str) -> String {
        let mut segments: Vec<&str> = Vec::new();
        for segment in path.split('/').skip(1) {
            match segment {
                "." => {}
                ".." => drop(segments.pop()),
                _ => segments.push(segment),
            }
        }
        format!("/{}", segments.join("/"))
    }

    /// The resources that servers find, in normalized form.
    fn resources(path: &str) -> HashSet<String> {
        let mut found = HashSet::new();
        let mut open = vec![(path.to_owned(), 0_usize)];
        let mut seen = HashSet::new();
        while let Some((path, steps)) = open.pop() {
            if !seen.insert(path.clone()) {
                continue;
            }
            for read in [path.clone(), without_dots(&path)] {
                if let Ok(normal) = normalise(&read, Ambiguous::Keep) {
                    found.insert(normal.into_owned());
                }
            }
            if steps < 5 {
                open.extend(STEPS.iter().map(|step| (step(&path), steps + 1)));
                open.push((without_dots(&path), steps + 1));
            }
        }
        found
    }

    proptest! {
        /// A limit is found in the normalized path or its readings, so the forwarded path must
        /// have no other.
        #[test]
        fn forwarded_path_has_no_new_readings(
            pieces in prop::collection::vec(
                prop::sample::select(vec![
                    "/", "/", "a", "b", ".", "..", ";", "x", "%2F", "%2f", "%5C", "\\", "%3B",
                    "%2E", "%2e", "%25", "%252F", "%2B", "+", "%61", "%", "=", "//", "%C3%A9",
                ]),
                0..9,
            ),
        ) {
            let path = format!("/{}", pieces.concat());
            for ambiguous in [Ambiguous::Refuse, Ambiguous::Keep] {
                let rules = PathRules { ambiguous, ..KEEP };
                let Ok(read) = rules.read(&path) else { continue };
                let Some(original) = &read.original else { continue };
                let mut known = resources(&read.normal);
                known.extend(other_readings(&read.normal));
                for resource in resources(original) {
                    prop_assert!(known.contains(&resource), "{path}: {resource}, {known:?}");
                }
            }
        }
    }
}
