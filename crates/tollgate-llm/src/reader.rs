use std::fmt;

use memchr::memchr2;

use crate::scan::Scanner;
use crate::{Model, Request, Usage};

/// Reads the usage from a response while it passes. The response is JSON or a stream of server-sent
/// events.
///
/// Chunks may be split anywhere. The reader uses less than 16 KiB for a response of any length, and
/// about a microsecond per event.
///
/// It trusts the model's server and does not validate the JSON.
pub struct UsageReader {
    /// `None` for JSON.
    lines: Option<Lines>,
    scanner: Scanner,
    has_bytes: bool,
    is_complete: bool,
}

impl UsageReader {
    /// Makes a reader for a JSON response, or for one JSON document per line.
    pub fn json() -> Self {
        let scanner = Scanner::default();
        Self { lines: None, scanner, has_bytes: false, is_complete: false }
    }

    /// Makes a reader for server-sent events.
    pub fn sse() -> Self {
        Self { lines: Some(Lines::default()), ..Self::json() }
    }

    /// Makes a reader for a response's `Content-Type`: [`sse`](Self::sse) for
    /// `text/event-stream`, else [`json`](Self::json).
    pub fn for_content_type(content_type: &str) -> Self {
        if Self::is_sse(content_type) { Self::sse() } else { Self::json() }
    }

    pub(crate) fn is_sse(content_type: &str) -> bool {
        let essence = content_type.split(';').next().unwrap_or_default().trim_ascii();
        essence.eq_ignore_ascii_case("text/event-stream")
    }

    /// Reads the next bytes.
    pub fn read(&mut self, bytes: &[u8]) {
        self.has_bytes |= !bytes.is_empty();
        match &mut self.lines {
            Some(lines) => lines.read(bytes, &mut self.scanner),
            None => self.scanner.feed(bytes),
        }
    }

    /// Marks the response as complete.
    pub const fn finish(&mut self) {
        self.is_complete = true;
    }

    /// Returns the usage that the response has reported: `None` before the report, and if there is
    /// none. If a response reports its usage several times, the largest numbers count. Output that
    /// only the total shows, such as hidden reasoning, is included.
    pub fn reported(&self) -> Option<Usage> {
        let (input, output) = self.scanner.found.usage();
        let (output, reasoning) = output?;
        Some(Usage { output, reasoning, ..input? })
    }

    /// Returns the bytes of the model's text that have passed.
    pub const fn text_bytes(&self) -> u64 {
        self.scanner.found.text_bytes
    }

    /// Returns the usage up to here, for a response that may have ended early. Numbers that are not
    /// reported are estimated: the input by the request, and the output by the text's bytes.
    ///
    /// The output is at least the [estimate](Request::estimate) if it may still grow: for work in the
    /// background, and for a [complete](Self::finish) response without text and error, which only
    /// accepts the work. It is the estimate too if the response cannot be read.
    pub fn usage(&self, request: &Request, model: &Model) -> Usage {
        let estimate = request.estimate(model);
        let found = &self.scanner.found;
        let (input, output) = found.usage();
        let input = input.unwrap_or(Usage { output: 0, ..estimate });
        // Work in the background has not started if it has no output.
        let output = output.filter(|(output, _)| *output > 0 || !request.background);
        let (output, reasoning) = output.unwrap_or_else(|| {
            let total = found.reported.total().unwrap_or(0);
            let seen = total.saturating_sub(input.total_input()).max(model.text(found.text_bytes));
            let may_grow = request.background || self.only_accepts_work();
            (if may_grow { seen.max(estimate.output) } else { seen }, 0)
        });
        Usage { output, reasoning, ..input }
    }

    const fn only_accepts_work(&self) -> bool {
        let found = &self.scanner.found;
        let is_unreadable = self.has_bytes && !found.any;
        // The work is finished when its stream closes.
        let may_accept = self.lines.is_none() || !found.any;
        let has_answer = found.text_bytes > 0 || found.has_error;
        is_unreadable || self.is_complete && may_accept && !has_answer
    }
}

/// Omits the response's bytes, which must not be in logs.
impl fmt::Debug for UsageReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UsageReader")
            .field("reported", &self.reported())
            .field("text_bytes", &self.text_bytes())
            .finish_non_exhaustive()
    }
}

/// The lines of server-sent events. Only the field `data` matters.
#[derive(Default)]
struct Lines {
    line: Line,
    /// The line has ended with a carriage return, so a line feed belongs to it.
    after_return: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Line {
    /// The line equals the start of `data:` up to this length.
    Name(usize),
    Data,
    Other,
}

impl Default for Line {
    fn default() -> Self {
        Self::Name(0)
    }
}

impl Lines {
    fn read(&mut self, mut bytes: &[u8], scanner: &mut Scanner) {
        while let Some((&first, rest)) = bytes.split_first() {
            let ended_with_return = std::mem::take(&mut self.after_return);
            if ended_with_return && first == b'\n' {
                bytes = rest;
            } else if let Line::Name(length) = self.line {
                self.name(length, first, scanner);
                bytes = rest;
            } else {
                bytes = self.value(bytes, scanner);
            }
        }
    }

    fn name(&mut self, length: usize, byte: u8, scanner: &mut Scanner) {
        const NAME: &[u8] = b"data:";
        match byte {
            b'\n' | b'\r' => {
                if length == 0 {
                    // An event's last line is empty.
                    scanner.restart();
                }
                self.end(byte);
            }
            _ if byte != NAME[length] => self.line = Line::Other,
            _ if length + 1 == NAME.len() => self.line = Line::Data,
            _ => self.line = Line::Name(length + 1),
        }
    }

    fn value<'a>(&mut self, bytes: &'a [u8], scanner: &mut Scanner) -> &'a [u8] {
        let end = memchr2(b'\n', b'\r', bytes);
        let (value, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
        if self.line == Line::Data {
            scanner.feed(value);
        }
        let Some((&end, rest)) = rest.split_first() else { return rest };
        self.end(end);
        rest
    }

    const fn end(&mut self, byte: u8) {
        self.line = Line::Name(0);
        self.after_return = byte == b'\r';
    }
}
