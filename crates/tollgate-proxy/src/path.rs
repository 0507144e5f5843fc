//! Normalizes paths.
//!
//! A resource has many spellings. If a limit matched only one of these, clients could evade the
//! limit with another spelling. So the gateway first normalizes every path, and then matches the
//! normalized form. The service receives the client's spelling where that is safe; see
//! [`PathRules::read`].

mod spelling;

use std::borrow::Cow;
use std::fmt::Write;

pub use self::spelling::{Forwarded, PathRules, RequestPath};

/// How to treat spellings that servers read in different ways: `%2F` and `%5C` (a separator for
/// some servers, a letter for others), `\` (the same), and a `%` without two hexadecimal digits. A
/// path with `%00` is always rejected with 400, because servers in C would cut it there. So is a
/// path that is escaped more than three times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ambiguous {
    #[default]
    Refuse,
    /// The characters remain percent-encoded, and a stray `%` becomes `%25`.
    Keep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathFault {
    /// The target does not start with `/`: it is `*`, or a CONNECT target.
    #[error("the request target has no path that starts with `/`")]
    NotAbsolute,
    #[error("the path contains `{0}`, which servers read in different ways")]
    Ambiguous(&'static str),
    #[error("the path contains a `%` without two hexadecimal digits after it")]
    BadEscape,
}

/// The normalized form, which is the same for all spellings of a resource.
///
/// * Escapes of characters that need no escape in a path (RFC 3986 `pchar`, except `;`) are
///   decoded. All other escapes are written in uppercase. Raw characters that are not allowed in a
///   path are escaped.
/// * Each segment loses its parameters (`;` and the text after it), because servers ignore them
///   when they look for the resource.
/// * `//` becomes `/`, `.` and `..` are resolved, and `..` never leads above the root.
pub fn normalise(path: &str, ambiguous: Ambiguous) -> Result<Cow<'_, str>, PathFault> {
    let normal = decoded_once(path, ambiguous)?;
    // A path may be decoded again, for example by a proxy in front of the service.
    let mut again = decoded_again(&normal)?;
    for _ in 0..MOST_DECODINGS {
        again = match again {
            Some(path) => decoded_again(&path)?,
            None => return Ok(normal),
        };
    }
    if again.is_none() { Ok(normal) } else { Err(PathFault::Ambiguous("%2525")) }
}

/// How often a server may decode a path after the first time.
const MOST_DECODINGS: usize = 2;

fn decoded_once(path: &str, ambiguous: Ambiguous) -> Result<Cow<'_, str>, PathFault> {
    if !path.starts_with('/') {
        return Err(PathFault::NotAbsolute);
    }
    if is_normal(path) {
        return Ok(Cow::Borrowed(path));
    }
    let mut normal = String::with_capacity(path.len() + 8);
    let mut segments = path[1..].split('/').peekable();
    while let Some(segment) = segments.next() {
        let start = normal.len();
        normal.push('/');
        let segment = segment.split_once(';').map_or(segment, |(name, _)| name);
        append(&mut normal, segment, ambiguous)?;
        let is_last = segments.peek().is_none();
        match &normal[start + 1..] {
            // If such a segment is the last one, its slash remains: `/a/.` is `/a/`.
            "" | "." => normal.truncate(start + usize::from(is_last)),
            ".." => {
                normal.truncate(start);
                normal.truncate(normal.rfind('/').unwrap_or(0));
                if is_last {
                    normal.push('/');
                }
            }
            _ => {}
        }
    }
    if normal.is_empty() {
        normal.push('/');
    }
    Ok(Cow::Owned(normal))
}

/// The result of `find` for a normalized path, in all its readings. Most paths have a single
/// reading.
///
/// # Errors
/// `find` returns different values for two readings.
pub fn in_all_readings<T: PartialEq>(
    normal: &str,
    find: impl Fn(&str) -> Option<T>,
) -> Result<Option<T>, PathFault> {
    let found = find(normal);
    let Some(escape) = ambiguity(normal) else { return Ok(found) };
    other_readings(normal).try_fold(found, |found, reading| match (found, find(&reading)) {
        (Some(one), Some(other)) if one != other => Err(PathFault::Ambiguous(escape)),
        (one, other) => Ok(one.or(other)),
    })
}

/// The first escape that gives a normalized path several readings, if any.
pub fn ambiguity(normal: &str) -> Option<&'static str> {
    let escape = escapes(normal).next().map(|(escape, _)| *escape);
    escape.or_else(|| is_escaped_twice(normal).then_some("%25"))
}

/// Whether a normalized path changes if a server decodes it twice.
fn is_escaped_twice(normal: &str) -> bool {
    normal.contains('%') && normal.split("%25").skip(1).any(begins_with_digits)
}

/// Whether a `%` before this text starts an escape.
fn begins_with_digits(text: &str) -> bool {
    matches!(text.as_bytes(), [high, low, ..] if hex(*high).is_some() && hex(*low).is_some())
}

/// The normalized path that a server sees if it decodes a normalized path again. `None` if that
/// makes no difference.
fn decoded_again(normal: &str) -> Result<Option<String>, PathFault> {
    if !is_escaped_twice(normal) {
        return Ok(None);
    }
    let mut path = String::with_capacity(normal.len());
    let mut parts = normal.split("%25");
    path.extend(parts.next());
    for part in parts {
        path.push_str(if begins_with_digits(part) { "%" } else { "%25" });
        path.push_str(part);
    }
    decoded_once(&path, Ambiguous::Keep).map(|path| Some(path.into_owned()))
}

// Nearly all paths have no escapes, and searching for `%` is faster than for an escape.
fn escapes(normal: &str) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    let readings = if normal.contains('%') { &READINGS[..] } else { &[] };
    readings.iter().filter(|(escape, _)| normal.contains(escape))
}

/// The other readings of a normalized path. A server has another reading if it decodes some escapes
/// before it looks for separators, or if it decodes the path more than once.
pub fn other_readings(normal: &str) -> impl Iterator<Item = String> {
    let next = |path: &String| decoded_again(path).ok().flatten();
    let again = std::iter::successors(decoded_again(normal).ok().flatten(), next);
    let again = again.take(MOST_DECODINGS);
    readings(normal).chain(again.flat_map(|path| {
        let others: Vec<_> = readings(&path).collect();
        std::iter::once(path).chain(others)
    }))
}

/// The readings of servers that decode some escapes before they look for separators.
fn readings(normal: &str) -> impl Iterator<Item = String> {
    let escapes: Vec<_> = escapes(normal).collect();
    (1_u32..1 << escapes.len()).filter_map(move |decoded| {
        let chosen = escapes.iter().enumerate().filter(|(bit, _)| decoded >> bit & 1 == 1);
        let path = chosen.fold(normal.to_owned(), |path, (_, (escape, character))| {
            path.replace(escape, character)
        });
        decoded_once(&path, Ambiguous::Keep).ok().map(Cow::into_owned)
    })
}

/// Two escapes that some servers read as separators, and `%3B`, which some servers read as the
/// start of parameters. A proxy between the gateway and the service may decode them.
const READINGS: [(&str, &str); 3] = [("%2F", "/"), ("%5C", "/"), ("%3B", ";")];

/// Most paths are already normal and need only this check.
fn is_normal(path: &str) -> bool {
    let mut before = 0;
    path.bytes().all(|byte| {
        // A dot at the start of a segment may be part of `.` or `..`.
        let plain =
            is_literal(byte) && !(before == b'/' && byte == b'.') || byte == b'/' && before != b'/';
        before = byte;
        plain
    })
}

fn append(normal: &mut String, segment: &str, ambiguous: Ambiguous) -> Result<(), PathFault> {
    let refuse = ambiguous == Ambiguous::Refuse;
    let mut rest = segment.as_bytes();
    while let [byte, after @ ..] = rest {
        rest = after;
        let escaped = match (byte, after) {
            (b'%', [high, low, ..]) => hex(*high).zip(hex(*low)),
            _ => None,
        };
        let byte = match escaped {
            Some((high, low)) => {
                rest = &after[2..];
                high << 4 | low
            }
            None if *byte == b'%' && refuse => return Err(PathFault::BadEscape),
            None => *byte,
        };
        if byte == 0 {
            return Err(PathFault::Ambiguous("%00"));
        }
        if refuse {
            match byte {
                b'/' => return Err(PathFault::Ambiguous("%2F")),
                b'\\' if escaped.is_some() => return Err(PathFault::Ambiguous("%5C")),
                b'\\' => return Err(PathFault::Ambiguous("\\")),
                _ => {}
            }
        }
        if is_literal(byte) {
            normal.push(char::from(byte));
        } else {
            let _ = write!(normal, "%{byte:02X}");
        }
    }
    Ok(())
}

/// Whether a character needs no escape in a segment: `pchar`, except `;`.
const fn is_literal(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'-' | b'.' | b'_' | b'~')
        || matches!(byte, b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b'=')
        || matches!(byte, b':' | b'@')
}

fn hex(digit: u8) -> Option<u8> {
    // A hexadecimal digit fits into a byte.
    char::from(digit).to_digit(16).map(|value| value as u8)
}

#[cfg(test)]
mod tests {
    use http::Uri;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn spellings_have_one_normal_form() {
        for (path, normal) in [
            ("/", "/"),
            ("/api/item/7/comment", "/api/item/7/comment"),
            ("/api/item/7/comment;x", "/api/item/7/comment"),
            ("/api;v=1/item/7;a/comment;x=%zz", "/api/item/7/comment"),
            ("//api///item/7/comment", "/api/item/7/comment"),
            ("/api/item/7/%63omment", "/api/item/7/comment"),
            ("/api/item/7/%63%6F%6d%6D%65nt", "/api/item/7/comment"),
            ("/api/./item/8/../7/comment", "/api/item/7/comment"),
            ("/api/%2e/item/8/.%2E/7/comment", "/api/item/7/comment"),
            ("/api/item/8/..;x/7/comment", "/api/item/7/comment"),
            ("/../../api/item/7/comment", "/api/item/7/comment"),
            ("/;x/api/item/7/comment", "/api/item/7/comment"),
            ("/a/", "/a/"),
            ("/a//", "/a/"),
            ("/a/.", "/a/"),
            ("/a/b/..", "/a/"),
            ("/..", "/"),
            ("/.", "/"),
            ("/;", "/"),
            ("/a%21b", "/a!b"),
            ("/a%3bb", "/a%3Bb"),
            ("/caf%c3%a9", "/caf%C3%A9"),
            ("/a%252Fb", "/a%252Fb"),
            ("/a%20b%0d%0a", "/a%20b%0D%0A"),
            ("/a|b\"{", "/a%7Cb%22%7B"),
            ("/.well-known/x", "/.well-known/x"),
            ("/...", "/..."),
        ] {
            assert_eq!(normalise(path, Ambiguous::Refuse).as_deref(), Ok(normal), "{path}");
        }
    }

    #[test]
    fn ambiguous_escapes_are_rejected_or_kept() {
        for (path, fault, kept) in [
            ("/a%2Fb", PathFault::Ambiguous("%2F"), "/a%2Fb"),
            ("/a%2fb", PathFault::Ambiguous("%2F"), "/a%2Fb"),
            ("/a%5cb", PathFault::Ambiguous("%5C"), "/a%5Cb"),
            ("/a\\b", PathFault::Ambiguous("\\"), "/a%5Cb"),
            ("/a%", PathFault::BadEscape, "/a%25"),
            ("/a%4", PathFault::BadEscape, "/a%254"),
            ("/a%zz", PathFault::BadEscape, "/a%25zz"),
        ] {
            assert_eq!(normalise(path, Ambiguous::Refuse), Err(fault), "{path}");
            assert_eq!(normalise(path, Ambiguous::Keep).as_deref(), Ok(kept), "{path}");
        }
    }

    #[test]
    fn null_characters_are_rejected() {
        for treatment in [Ambiguous::Refuse, Ambiguous::Keep] {
            for path in ["/a%00b", "/a%2500b", "/a%252500b"] {
                assert_eq!(normalise(path, treatment), Err(PathFault::Ambiguous("%00")), "{path}");
            }
        }
    }

    #[test]
    fn at_most_three_escapes_are_allowed() {
        let path = |times: usize| format!("/lo%{}67in", "25".repeat(times));
        for treatment in [Ambiguous::Refuse, Ambiguous::Keep] {
            for times in [1, 2] {
                assert_eq!(normalise(&path(times), treatment).unwrap(), path(times));
            }
            for times in [3, 4, 20_000] {
                let fault = PathFault::Ambiguous("%2525");
                assert_eq!(normalise(&path(times), treatment), Err(fault));
            }
        }
    }

    #[test]
    fn targets_without_paths_are_rejected() {
        for path in ["", "*", "a/b"] {
            assert_eq!(normalise(path, Ambiguous::Keep), Err(PathFault::NotAbsolute));
        }
    }

    #[test]
    fn normal_paths_are_not_copied() {
        for path in ["/", "/api/item/7", "/a.b/c..d/~x", "/a/"] {
            let normal = normalise(path, Ambiguous::Refuse);
            assert!(matches!(normal, Ok(Cow::Borrowed(_))), "{path}");
        }
    }

    #[test]
    fn escapes_give_several_readings() {
        for (path, readings) in [
            ("/a/b%20c", &[][..]),
            ("/static/..%2Flogin", &["/login"]),
            ("/a%5Cb%2F..%2Flogin", &["/a%5Cb/../login", "/a/b%2F..%2Flogin", "/a/login"]),
            ("/a/..%3B/b", &["/b"]),
            ("/a%3Bx%2Fb", &["/a%3Bx/b", "/a", "/a/b"]),
            ("/%2F%2Fa", &["/a"]),
            ("/lo%2567in", &["/login"]),
            ("/lo%252567in", &["/lo%2567in", "/login"]),
            ("/static/%252E%252E/login", &["/login"]),
            ("/static/..%252Flogin", &["/static/..%2Flogin", "/login"]),
            ("/a%2F..%2Flo%2567in", &["/lo%2567in", "/a%2F..%2Flogin", "/login"]),
            ("/100%25/of%25it", &[]),
        ] {
            let normal = |reading: &&str| normalise(reading, Ambiguous::Keep).unwrap().into_owned();
            let mut expected: Vec<_> = readings.iter().map(normal).collect();
            let mut found: Vec<_> = other_readings(path).collect();
            expected.sort();
            found.sort();
            assert_eq!(found, expected, "{path}");
            assert_eq!(ambiguity(path).is_some(), !readings.is_empty(), "{path}");
        }
    }

    #[test]
    fn readings_must_agree() {
        let find = |path: &str| match path {
            "/login" => Some(1),
            _ => path.starts_with("/files/").then_some(2),
        };
        for (path, found) in [
            ("/login", Ok(Some(1))),
            ("/other", Ok(None)),
            ("/x/..%2Flogin", Ok(Some(1))),
            ("/files/a%2Fb", Ok(Some(2))),
            ("/files/..%2Fx", Ok(Some(2))),
            ("/files/..%2Flogin", Err(PathFault::Ambiguous("%2F"))),
            ("/lo%2567in", Ok(Some(1))),
            ("/files/50%25ab", Ok(Some(2))),
            ("/files/..%252Flogin", Err(PathFault::Ambiguous("%25"))),
        ] {
            assert_eq!(in_all_readings(path, find), found, "{path}");
        }
    }

    proptest! {
        #[test]
        fn normalization_is_idempotent(path in "/[a-c./;%\\\\25eEfF0{ü]{0,24}") {
            let normal = normalise(&path, Ambiguous::Keep);
            prop_assume!(!matches!(normal, Err(PathFault::Ambiguous("%00" | "%2525"))));
            let normal = normal.unwrap();
            let again = normalise(&normal, Ambiguous::Keep).unwrap();
            prop_assert_eq!(&again, &normal);
            prop_assert!(!normal.contains("//") && !normal.contains(';'));
            prop_assert!(!normal.split('/').any(|segment| segment == "." || segment == ".."));
            prop_assert!(normal.parse::<Uri>().is_ok());
        }

        /// Escaped letters and doubled separators do not change the normal form.
        #[test]
        fn spelling_does_not_matter(
            segments in prop::collection::vec("[a-z]{1,4}", 1..4),
            spelled in prop::collection::vec((any::<bool>(), 1_usize..3, any::<bool>()), 4),
        ) {
            let mut path = String::new();
            for (segment, (escape, slashes, parameter)) in segments.iter().zip(&spelled) {
                path.push_str(&"/".repeat(*slashes));
                for byte in segment.bytes() {
                    if *escape {
                        write!(path, "%{byte:02x}").unwrap();
                    } else {
                        path.push(char::from(byte));
                    }
                }
                path.push_str(if *parameter { ";p=1" } else { "" });
            }
            let plain = format!("/{}", segments.join("/"));
            prop_assert_eq!(normalise(&path, Ambiguous::Refuse).unwrap(), plain);
        }
    }
}
