//! Safe output of client-supplied text.

use std::fmt::{self, Write as _};

/// Makes client-supplied text safe to print: escapes terminal control characters and truncates long
/// text.
///
/// ```
/// use tollgate_replay::log::Visible;
///
/// assert_eq!(Visible("ann\u{1b}[2J").to_string(), r"ann\u{1b}[2J");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Visible<'a>(pub &'a str);

/// The maximum length in characters.
const LONGEST: usize = 200;

impl fmt::Display for Visible<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = self.0.chars();
        all.by_ref().take(LONGEST).try_for_each(|c| match c {
            '"' | '\'' | '\\' => f.write_char(c),
            c => write!(f, "{}", c.escape_debug()),
        })?;
        if all.next().is_some() { f.write_char('…') } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        for (text, shown) in [
            ("Zoë's \"a\\b\"", "Zoë's \"a\\b\""),
            ("\u{1b}[31mred", "\\u{1b}[31mred"),
            ("a\nb\rc\u{7}\u{7f}", "a\\nb\\rc\\u{7}\\u{7f}"),
            // Some terminals read U+009B as ESC `[`, and U+202E reverses the line.
            ("\u{9b}2J\u{202e}", "\\u{9b}2J\\u{202e}"),
        ] {
            assert_eq!(Visible(text).to_string(), shown);
        }
    }

    #[test]
    fn long_text_is_truncated() {
        let shown = Visible(&"é".repeat(1_000)).to_string();
        assert_eq!(shown.chars().count(), LONGEST + 1);
        assert!(shown.ends_with('…'));
    }
}
