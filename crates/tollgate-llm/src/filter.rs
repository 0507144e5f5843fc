use memchr::{memchr2, memmem};
use serde::Deserialize;
use serde::de::IgnoredAny;

/// Removes the event with the usage from a stream of chat completions.
///
/// [`Request::ask_for_usage`](crate::Request::ask_for_usage) adds this event to the stream, and a
/// client that did not request it may not expect its empty list of choices.
///
/// Events pass when they are complete. Clients discard an incomplete event at the end of a stream,
/// so it does not pass.
///
/// ```
/// let mut filter = tollgate_llm::UsageEventFilter::default();
/// let text = b"data: {\"choices\": [{\"delta\": {\"content\": \"42\"}}]}\n\n";
/// assert_eq!(filter.filter(text), text);
/// let usage = b"data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 13}}\n\n";
/// assert_eq!(filter.filter(usage), b"");
/// ```
#[derive(Clone, Debug, Default)]
pub struct UsageEventFilter {
    /// The start of the event that is not complete yet.
    event: Vec<u8>,
    /// The event is too long to report a usage, so its bytes pass immediately.
    is_long: bool,
    is_in_line: bool,
    /// The last line ended with a carriage return, so a line feed belongs to it.
    after_return: bool,
    /// Whether the last event was removed.
    has_removed: bool,
}

impl UsageEventFilter {
    /// Takes the next bytes of the stream and returns the bytes that may pass.
    pub fn filter(&mut self, mut bytes: &[u8]) -> Vec<u8> {
        let mut passed = Vec::with_capacity(self.event.len() + bytes.len());
        while let Some(&first) = bytes.first() {
            if std::mem::take(&mut self.after_return) && first == b'\n' {
                if !self.event.is_empty() {
                    self.event.push(b'\n');
                } else if !self.has_removed {
                    passed.push(b'\n');
                }
                bytes = &bytes[1..];
                continue;
            }
            let end = memchr2(b'\n', b'\r', bytes);
            let (line, rest) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
            self.event.extend_from_slice(line);
            bytes = rest;
            let is_blank = end == Some(0) && !self.is_in_line;
            self.is_in_line = end.is_none();
            self.after_return = line.ends_with(b"\r");
            self.is_long |= self.event.len() > MAX_EVENT;
            if is_blank || self.is_long {
                self.has_removed = !self.is_long && is_usage(&self.event);
                if !self.has_removed {
                    passed.extend_from_slice(&self.event);
                }
                self.event.clear();
                self.is_long &= !is_blank;
            }
        }
        passed
    }
}

/// Longer than any event with a usage.
const MAX_EVENT: usize = 64 << 10;

#[derive(Deserialize)]
struct Chunk {
    choices: Vec<IgnoredAny>,
    usage: IgnoredAny,
}

/// Whether an event only reports the usage. Other events may have `"usage": null`, and Azure sends
/// events with an empty list of choices and without a usage.
fn is_usage(event: &[u8]) -> bool {
    let Some(start) = memmem::find(event, b"\"usage\"") else { return false };
    let value = event[start + 7..].trim_ascii_start();
    let value = value.strip_prefix(b":").unwrap_or_default().trim_ascii_start();
    if value.starts_with(b"null") {
        return false;
    }
    let mut lines = event.split(|byte| matches!(byte, b'\n' | b'\r'));
    let data = lines.find_map(|line| line.strip_prefix(b"data:")).unwrap_or_default();
    let chunk = serde_json::from_slice::<Chunk>(data);
    chunk.is_ok_and(|Chunk { choices, usage: IgnoredAny }| choices.is_empty())
}
