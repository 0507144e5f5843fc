use memchr::{memchr2, memmem};
use serde::Deserialize;
use serde::de::IgnoredAny;

/// Removes the event with the usage from a stream of chat completions.
///
/// [`Request::ask_for_usage`](crate::Request::ask_for_usage) adds this event to the stream, and a
/// client that did not request it may not expect its empty list of choices.
///
/// All other bytes pass, and each line when it is complete. At the end of the stream,
/// [`finish`](Self::finish) returns the rest, because some servers end a stream without a newline.
///
/// ```
/// let mut filter = tollgate_llm::UsageEventFilter::default();
/// let text = b"data: {\"choices\": [{\"delta\": {\"content\": \"42\"}}]}\n\n";
/// assert_eq!(filter.filter(text), text);
/// let usage = b"data: {\"choices\": [], \"usage\": {\"prompt_tokens\": 13}}\n\n";
/// assert_eq!(filter.filter(usage), b"");
/// assert_eq!(filter.filter(b"data: [DONE]"), b"");
/// assert_eq!(filter.finish(), b"data: [DONE]");
/// ```
#[derive(Clone, Debug, Default)]
pub struct UsageEventFilter {
    /// The fields before an event's data, and the start of the line that is not complete yet.
    held: Vec<u8>,
    /// Where that line starts.
    line: usize,
    /// The line is too long to report a usage, so its bytes pass immediately.
    is_long: bool,
    /// The last line ended with a carriage return, so a line feed belongs to it.
    after_return: bool,
    last: LastLine,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum LastLine {
    #[default]
    Passed,
    Held,
    Usage,
    /// The empty line after a usage.
    UsageEnd,
}

impl UsageEventFilter {
    /// Takes the next bytes of the stream and returns the bytes that may pass.
    pub fn filter(&mut self, mut bytes: &[u8]) -> Vec<u8> {
        let mut passed = Vec::with_capacity(self.held.len() + bytes.len());
        while let Some(&first) = bytes.first() {
            if std::mem::take(&mut self.after_return) && first == b'\n' {
                match self.last {
                    LastLine::Passed => passed.push(b'\n'),
                    LastLine::Held => self.hold(b"\n"),
                    LastLine::Usage | LastLine::UsageEnd => {}
                }
                bytes = &bytes[1..];
                continue;
            }
            let end = memchr2(b'\n', b'\r', bytes);
            let (line, rest) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
            self.held.extend_from_slice(line);
            bytes = rest;
            self.is_long |= self.held.len() > MAX_EVENT;
            if end.is_some() {
                self.after_return = line.ends_with(b"\r");
                self.end_line(&mut passed);
            } else if self.is_long {
                self.pass(&mut passed);
            }
        }
        passed
    }

    /// Returns the bytes that may pass at the end of the stream.
    pub fn finish(&mut self) -> Vec<u8> {
        let Self { held, line, is_long, .. } = std::mem::take(self);
        let is_usage = !is_long && is_usage(&held[line..]);
        if is_usage { Vec::new() } else { held }
    }

    fn end_line(&mut self, passed: &mut Vec<u8>) {
        let line = self.held[self.line..].trim_ascii_end();
        let is_long = std::mem::take(&mut self.is_long);
        if is_long {
            self.pass(passed);
        } else if self.held.len() == 1 && line.is_empty() && self.last == LastLine::Usage {
            self.remove(LastLine::UsageEnd);
        } else if is_usage(line) {
            self.remove(LastLine::Usage);
        } else if BEFORE_DATA.iter().any(|field| line.starts_with(field)) {
            self.hold(b"");
        } else {
            self.pass(passed);
        }
    }

    fn hold(&mut self, end: &[u8]) {
        self.held.extend_from_slice(end);
        self.line = self.held.len();
        self.last = LastLine::Held;
    }

    fn remove(&mut self, last: LastLine) {
        self.held.clear();
        self.line = 0;
        self.last = last;
    }

    fn pass(&mut self, passed: &mut Vec<u8>) {
        passed.extend_from_slice(&self.held);
        self.remove(LastLine::Passed);
    }
}

/// Longer than any event with a usage.
const MAX_EVENT: usize = 64 << 10;

/// The fields that belong to the following data.
const BEFORE_DATA: [&[u8]; 3] = [b"event:", b"id:", b"retry:"];

#[derive(Deserialize)]
struct Chunk {
    choices: Vec<IgnoredAny>,
    usage: Option<IgnoredAny>,
}

/// Whether a line only reports the usage. Other events may have `"usage": null`, and Azure sends
/// events with an empty list of choices and without a usage.
fn is_usage(line: &[u8]) -> bool {
    let Some(data) = line.strip_prefix(b"data:") else { return false };
    if memmem::find(data, b"\"usage\"").is_none() {
        return false;
    }
    let chunk = serde_json::from_slice::<Chunk>(data);
    chunk.is_ok_and(|Chunk { choices, usage }| choices.is_empty() && usage.is_some())
}
