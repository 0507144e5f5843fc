//! Writes a JSON object (RFC 8259) into a string. `serde_json` is behind a feature of this crate.

use std::fmt::{Display, Write};

/// The members of an object: `,"limit":100,"window":"60 seconds"`.
///
/// Names are not escaped: they are literals, or [`Members`](super::Members) has checked them.
#[derive(Clone, Debug, Default)]
pub(super) struct JsonMembers(String);

impl JsonMembers {
    pub(super) const fn new() -> Self {
        Self(String::new())
    }

    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self(String::with_capacity(bytes))
    }

    pub(super) fn text(&mut self, name: &str, text: &str) {
        self.name(name);
        self.quote(text);
    }

    /// Adds a string that needs no escaping.
    pub(super) fn literal(&mut self, name: &str, text: &str) {
        self.name(name);
        self.0.push('"');
        self.0.push_str(text);
        self.0.push('"');
    }

    /// Adds a value whose display needs no escaping.
    pub(super) fn display(&mut self, name: &str, value: impl Display) {
        self.name(name);
        // Writing to a string does not fail.
        let _ = write!(self.0, "\"{value}\"");
    }

    /// Adds a list of at least one string.
    pub(super) fn texts(&mut self, name: &str, texts: &[&str]) {
        self.name(name);
        let mut before = '[';
        for text in texts {
            self.0.push(before);
            self.quote(text);
            before = ',';
        }
        self.0.push(']');
    }

    /// Adds a list of values that are JSON.
    pub(super) fn list(&mut self, name: &str, values: impl Iterator<Item = String>) {
        self.name(name);
        self.0.push('[');
        for (index, value) in values.enumerate() {
            self.0.push_str(if index > 0 { "," } else { "" });
            self.0.push_str(&value);
        }
        self.0.push(']');
    }

    pub(super) fn integer(&mut self, name: &str, number: impl itoa::Integer) {
        self.name(name);
        self.0.push_str(itoa::Buffer::new().format(number));
    }

    pub(super) fn flag(&mut self, name: &str, flag: bool) {
        self.name(name);
        self.0.push_str(if flag { "true" } else { "false" });
    }

    pub(super) fn extend(&mut self, members: &Self) {
        self.0.push_str(&members.0);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the object with these members, of which there is at least one.
    pub(super) fn into_object(mut self) -> String {
        self.0.replace_range(..1, "{");
        self.0.push('}');
        self.0
    }

    fn name(&mut self, name: &str) {
        self.0.push_str(",\"");
        self.0.push_str(name);
        self.0.push_str("\":");
    }

    fn quote(&mut self, text: &str) {
        self.0.push('"');
        let mut rest = text;
        // All escaped characters have one byte.
        while let Some(at) = rest.bytes().position(|b| matches!(b, b'"' | b'\\' | 0..b' ')) {
            self.0.push_str(&rest[..at]);
            match rest.as_bytes()[at] {
                byte @ (b'"' | b'\\') => self.0.extend(['\\', char::from(byte)]),
                control => {
                    let _ = write!(self.0, "\\u{control:04x}");
                }
            }
            rest = &rest[at + 1..];
        }
        self.0.push_str(rest);
        self.0.push('"');
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn strings_round_trip() {
        let all: String = (0..0x250).filter_map(char::from_u32).collect();
        for text in ["", "plain", "\"", "\\\"\n", "\u{7f}é🚦\0", &all] {
            let mut members = JsonMembers::new();
            members.text("text", text);
            members.texts("texts", &["a", text]);
            let read: Value = serde_json::from_str(&members.into_object()).unwrap();
            assert_eq!(read, json!({"text": text, "texts": ["a", text]}));
        }
    }
}
