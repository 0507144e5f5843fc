//! Places in a configuration.

use std::ops::Range;

/// A range of characters in the source.
pub type Span = Range<usize>;

/// A value in the source: its characters, and the keys that lead to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The value's characters.
    pub span: Span,
    /// For example `rateLimiter.apis[2].limit`; empty for the entire file.
    pub path: String,
}

impl Place {
    /// The start of the file.
    pub(crate) const START: Self = Self { span: 0..0, path: String::new() };

    /// The line and column where the value starts in its text, both from 1.
    pub(crate) fn position(&self, text: &str) -> (usize, usize) {
        let before = text.chars().take(self.span.start);
        before.fold((1, 1), |(line, column), character| match character {
            '\n' => (line + 1, 1),
            _ => (line, column + 1),
        })
    }
}

/// The path of a key in a section.
pub(crate) fn join(path: &str, key: &str) -> String {
    // Keys are the file's own text, so messages shorten long keys and escape control characters.
    let key: String = key.chars().take(60).flat_map(char::escape_debug).collect();
    if path.is_empty() { key } else { format!("{path}.{key}") }
}
