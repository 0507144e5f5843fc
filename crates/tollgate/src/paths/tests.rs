use std::fmt::Write;

use percent_encoding::percent_decode_str;
use proptest::prelude::*;

use super::*;

/// How limits and exemptions treat a path.
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
fn limits_and_exemptions_match_decoded_paths() {
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
        // Escaped ASCII that needs no escape: routers differ in whether they decode it.
        (
            Is::Possible,
            &["/log%69n", "/%6C%6f%67%69%6e", "/static/%61pp.css", "/static/a%2Bb", "/%63af%C3%A9"],
        ),
        // Different paths, regardless of escapes.
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
fn ambiguous_paths_are_limited_never_exempt() {
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
        // Not UTF-8: a lone byte, part of a character, overlong `/` and `.`, a surrogate.
        "/static/%FF",
        "/static/%EA%B2",
        "/static/%EA%B2/%80",
        "/static/..%C0%AFadmin",
        "/static/%E0%80%AFadmin",
        "/static/%C0%AE%C0%AE/admin",
        "/static/%ED%A0%80",
        // Not escapes.
        "/static/%",
        "/static/%2",
        "/static/%zz",
        "/static/%u002e",
        "/static/%+2",
        "/static/%é",
        // A server that decodes first would see a query.
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
fn root_pattern_contains_all_paths() {
    let paths = Paths::new(["/*"]).unwrap();
    for path in ["/", "/a", "/a/b/", "/%EA%B2%80"] {
        assert!(paths.surely_contains(path), "{path}");
    }
    assert!(!paths.may_contain("*"));
    assert!(!Paths::new(["/"]).unwrap().may_contain("/a"));
}

#[test]
fn patterns_without_matches_are_rejected() {
    for pattern in [
        "login", "/a//b", "/a//*", "/../a", "/a;b", "/%2e", "/a%2Fb", "/%zz", "/%FF", "/%25",
        "/%00", "/a\n",
    ] {
        let error = Paths::new([pattern]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("path pattern {pattern:?}")), "{error}");
    }
}

#[test]
fn patterns_may_be_percent_encoded() {
    let paths = Paths::new(["/%EA%B2%80%EC%83%89/*", "/%61/%2A"]).unwrap();
    assert!(paths.surely_contains("/검색/a") && paths.surely_contains("/a/*"));
    assert!(!paths.may_contain("/a/b"));
}

proptest! {
    #[test]
    fn no_spelling_evades_limit(
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
    fn all_readings_agree_on_exempt_paths(
        path in "(/a|/b|/\u{e9}|/%61|/%C3%A9|/c)(/|)[a-c./;%25eEfF0\\\\\u{e9}\u{ac80}]{0,6}",
    ) {
        let paths = Paths::new(["/a/*", "/b", "/\u{e9}/*"]).unwrap();
        let is_listed = |reading: &str| {
            let is_below = |prefix| {
                reading.strip_prefix(prefix).is_some_and(|it| it.is_empty() || it.starts_with('/'))
            };
            reading == "/b" || is_below("/a") || is_below("/\u{e9}")
        };
        for reading in readings(&path) {
            let is_listed = is_listed(&reading);
            prop_assert!(is_listed || !paths.surely_contains(&path), "{path} read as {reading}");
            prop_assert!(!is_listed || paths.may_contain(&path), "{path} read as {reading}");
        }
    }
}

/// How servers read a path that they decode not at all, once or twice.
fn readings(path: &str) -> Vec<String> {
    let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    // A client has to escape other letters than ASCII, so every server decodes them.
    let raw = path.replace("%C3%A9", "\u{e9}");
    let (once, twice) = (decode(path), decode(&decode(path)));
    let mut readings = Vec::new();
    for text in [raw, once, twice] {
        let slashes = text.replace('\\', "/");
        let without_parameters = |text: &str| {
            let segments = text.split('/').map(|it| it.split(';').next().unwrap_or_default());
            segments.collect::<Vec<_>>().join("/")
        };
        readings.push(without_parameters(&text));
        readings.push(resolved(&text));
        readings.push(resolved(&without_parameters(&slashes)));
        readings.extend([text, slashes]);
    }
    readings
}

/// The path without empty and dot segments.
fn resolved(path: &str) -> String {
    let mut segments = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            other => segments.push(other),
        }
    }
    let end = if path.ends_with('/') && !segments.is_empty() { "/" } else { "" };
    format!("/{}{end}", segments.join("/"))
}
