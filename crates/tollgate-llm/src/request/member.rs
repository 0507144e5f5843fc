//! Edits a member of a JSON object without changing any other byte.

use std::ops::Range;

use serde::Deserialize;
use serde::de::IgnoredAny;

/// Returns the byte range of a member's value.
pub(super) fn member(object: &[u8], name: &str) -> Option<Range<usize>> {
    let mut at = after(object, 0, b'{')?;
    loop {
        let found: String = next(object, &mut at)?;
        at = after(object, at, b':')?;
        at += object[at..].iter().position(|byte| !byte.is_ascii_whitespace())?;
        let start = at;
        next::<IgnoredAny>(object, &mut at)?;
        if found == name {
            return Some(start..at);
        }
        at = after(object, at, b',')?;
    }
}

/// Returns the object after setting the member to this value.
pub(super) fn with_member(object: &[u8], name: &str, value: &[u8]) -> Option<Vec<u8>> {
    if let Some(Range { start, end }) = member(object, name) {
        return Some([&object[..start], value, &object[end..]].concat());
    }
    let start = after(object, 0, b'{')?;
    let is_empty = object[start..].trim_ascii_start().starts_with(b"}");
    let comma: &[u8] = if is_empty { b"" } else { b"," };
    let name = format!("\"{name}\":");
    Some([&object[..start], name.as_bytes(), value, comma, &object[start..]].concat())
}

/// Reads the next value and advances past it.
fn next<'de, T: Deserialize<'de>>(object: &'de [u8], at: &mut usize) -> Option<T> {
    let mut values = serde_json::Deserializer::from_slice(&object[*at..]).into_iter::<T>();
    let value = values.next()?.ok()?;
    *at += values.byte_offset();
    Some(value)
}

/// Returns the position after the next occurrence of this byte.
fn after(object: &[u8], at: usize, byte: u8) -> Option<usize> {
    Some(at + memchr::memchr(byte, &object[at..])? + 1)
}
