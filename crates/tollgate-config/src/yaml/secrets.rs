//! Secrets in a file, which messages must not show.

use std::borrow::Cow;
use std::ops::Range;

use super::problem::Problems;

/// Hides likely secrets in text that cannot be parsed. Only the key shows that a value is secret,
/// and the value may continue in the lines below.
pub(super) fn hide_secrets(text: &str, problems: &Problems) {
    let (mut start, mut in_secret) = (0, false);
    for line in text.split_inclusive('\n') {
        let end = start + line.chars().count();
        match line.split_once(':') {
            Some((key, rest)) if looks_secret(key) || user(rest).is_some() => {
                problems.hide(start + key.chars().count() + 1..end);
                in_secret = true;
            }
            Some((_, rest)) if rest.is_empty() || rest.starts_with(char::is_whitespace) => {
                in_secret = false;
            }
            _ if in_secret => problems.hide(start..end),
            _ => {}
        }
        start = end;
    }
}

/// Removes user and password from a URL, without changing any other text.
pub(super) fn without_user(text: &str) -> Cow<'_, str> {
    match user(text) {
        Some(user) => Cow::Owned(format!("{}***{}", &text[..user.start], &text[user.end..])),
        None => Cow::Borrowed(text),
    }
}

/// The range of the user and password in a text's first URL.
pub(super) fn user(text: &str) -> Option<Range<usize>> {
    let start = text.find("://")? + 3;
    let rest = &text[start..];
    // A password may contain characters that should have been escaped.
    let end = rest.find(|it: char| it.is_whitespace() || "'\"".contains(it)).unwrap_or(rest.len());
    let host = rest[..end].rfind('@')?;
    Some(start..start + host)
}

pub(super) fn looks_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    ["secret", "sekret", "passw", "token", "sha256", "url", "apikey"]
        .iter()
        .any(|word| key.contains(word))
}
