//! No path spelling bypasses a limit.
//!
//! The first byte is the length of the expression that follows. The rest is the path.
#![no_main]

use std::fmt::Write;

use libfuzzer_sys::fuzz_target;
use tollgate_proxy::path::{Ambiguous, PathRules, normalise};
use tollgate_config::plan::PathMatch;
use tollgate_engine::PathPattern;

fuzz_target!(|data: &[u8]| {
    let Some((&length, rest)) = data.split_first() else { return };
    let (expression, path) = rest.split_at(rest.len().min(usize::from(length)));
    let Ok(path) = std::str::from_utf8(path) else { return };
    for ambiguous in [Ambiguous::Refuse, Ambiguous::Keep] {
        let Ok(normal) = normalise(path, ambiguous) else { continue };
        assert!(normal.starts_with('/') && normal.is_ascii());
        assert!(!normal.contains("//") && !normal.contains(';') && !normal.contains("/../"));
        // Normalising is idempotent.
        assert_eq!(normalise(&normal, ambiguous).as_deref(), Ok(&*normal));
        // The forwarded spelling has the same normal form, and no dots.
        let rules = PathRules { ambiguous, ..PathRules::default() };
        if let Some(original) = rules.read(path).expect("it is valid").original {
            assert_eq!(normalise(&original, ambiguous).as_deref(), Ok(&*normal));
            assert!(!original.starts_with("//") && !original.contains("/../"));
        }
        // Unnecessary escapes do not change the normal form.
        let mut escaped = String::new();
        let mut letters = normal.bytes().enumerate().peekable();
        while let Some((index, byte)) = letters.next() {
            match byte {
                b'/' => escaped.push('/'),
                b'%' => {
                    escaped.push('%');
                    let digits = letters.by_ref().take(2).map(|(_, digit)| char::from(digit));
                    escaped.extend(digits.map(|digit| digit.to_ascii_lowercase()));
                }
                _ if index % 2 == 0 => {
                    let _ = write!(escaped, "%{byte:02x}");
                }
                _ => escaped.push(char::from(byte)),
            }
        }
        let again = normalise(&escaped, ambiguous);
        assert_eq!(again.as_deref(), Ok(&*normal), "{escaped}");
        // A normalised path matches itself and anything below its parent.
        let exact = PathMatch::Pattern(PathPattern::Exact((*normal).into()));
        assert!(exact.matches(&normal));
        if let Some((parent, _)) = normal.rsplit_once('/')
            && !parent.is_empty()
        {
            assert!(PathPattern::Below(parent.into()).matches(&normal));
        }
        if let Ok(expression) = std::str::from_utf8(expression)
            && let Ok(regex) = PathMatch::regex(expression)
        {
            let found = regex.matches(&normal);
            assert!(!found || regex.covers(&exact));
        }
    }
});
