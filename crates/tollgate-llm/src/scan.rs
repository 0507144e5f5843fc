//! An incremental scanner of JSON. It accepts bytes in any chunking, in constant memory.
//!
//! It is not a validator: it finds usage and text, and skips the rest.

use memchr::memchr2;

use crate::Usage;
use crate::usage::{Counter, Reported};

/// Containers deeper than this are not responses. The rest of the document is skipped.
const MAX_DEPTH: usize = 64;

/// Longer than all relevant names.
const MAX_NAME: usize = 32;

/// Longer than all numbers of tokens.
const MAX_NUMBER: usize = 24;

#[derive(Default)]
pub(crate) struct Scanner {
    position: Position,
    frames: Vec<Frame>,
    /// The role of the next value.
    next: Role,
    /// Whether the next string is a member's name.
    expects_name: bool,
    name: Vec<u8>,
    /// The number of tokens that the scanner is in.
    number: Vec<u8>,
    is_lost: bool,
    pub(crate) found: Found,
}

#[derive(Default)]
pub(crate) struct Found {
    pub(crate) reported: Reported,
    /// The bytes of the model's text.
    pub(crate) text_bytes: u64,
    /// Whether any object has started.
    pub(crate) any: bool,
    /// Whether the response describes an error.
    pub(crate) has_error: bool,
}

impl Found {
    /// Returns the reported input tokens by kind, and the reported output with its reasoning.
    pub(crate) fn usage(&self) -> (Option<Usage>, Option<(u64, u64)>) {
        let Self { reported, text_bytes, .. } = self;
        match (reported.input(), reported.output(), reported.total()) {
            // Embeddings have no output.
            (None, None, Some(total @ 1..)) if *text_bytes == 0 => {
                (Some(Usage::new(total, 0)), Some((0, 0)))
            }
            // A server that does not count reports zeros.
            (input, Some((0, _)), _) if input.is_none() || *text_bytes > 0 => (input, None),
            (input, output, _) => (input, output),
        }
    }
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Position {
    #[default]
    BetweenStrings,
    String,
    Escape,
    /// The number of hex digits that follow.
    Unicode(u8),
}

#[derive(Clone, Copy)]
struct Frame {
    role: Role,
    is_object: bool,
}

/// A value's meaning in the response. The elements in choices and texts inherit it.
#[derive(Clone, Copy, Default, PartialEq)]
enum Role {
    #[default]
    Document,
    /// `response` in the events of OpenAI responses.
    Response,
    /// `message` in Anthropic's first event.
    Message,
    Choices,
    /// Text of the model, or a container of such text.
    Text,
    /// The usage, or an object with details of it.
    Usage,
    /// The usage in a stream's first event, with the final input and a preliminary output.
    InitialUsage,
    /// A number in the usage.
    Count(Counter),
    Error,
    /// A vendor's object around the usage, such as `x_groq`.
    Wrapper,
    Other,
}

impl Role {
    const fn of_member(self, name: &[u8]) -> Self {
        match (self, name) {
            (Self::Document | Self::Response | Self::Choices | Self::Wrapper, b"usage") => {
                Self::Usage
            }
            (Self::Message, b"usage") => Self::InitialUsage,
            (
                Self::Usage | Self::InitialUsage,
                b"prompt_tokens_details"
                | b"completion_tokens_details"
                | b"input_tokens_details"
                | b"output_tokens_details"
                | b"cache_creation"
                | b"cache_creation_token_details",
            ) => self,
            (Self::Usage | Self::InitialUsage, name) => match Counter::of(name) {
                Some(counter) if counter.is_of_output() && matches!(self, Self::InitialUsage) => {
                    Self::Other
                }
                Some(counter) => Self::Count(counter),
                None => Self::Other,
            },
            (Self::Document, b"response") => Self::Response,
            (Self::Document, b"message") => Self::Message,
            (Self::Document, b"choices") => Self::Choices,
            (Self::Document, b"error") => Self::Error,
            // The stream of every API has `delta`; complete responses have the other names.
            (Self::Document, b"delta" | b"output" | b"content")
            | (Self::Choices, b"delta" | b"message" | b"text") => Self::Text,
            (
                Self::Text,
                b"role" | b"type" | b"id" | b"call_id" | b"status" | b"object" | b"index"
                | b"stop_reason" | b"stop_sequence" | b"signature" | b"data" | b"logprobs"
                | b"annotations" | b"citation" | b"citations" | b"encrypted_content",
            ) => Self::Other,
            (Self::Text, _) => Self::Text,
            // `metadata` is the client's, which must not state its own usage.
            (Self::Document, b"metadata") => Self::Other,
            (Self::Document, _) => Self::Wrapper,
            _ => Self::Other,
        }
    }
}

impl Scanner {
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) {
        while !self.is_lost {
            if self.position == Position::String {
                let end = end_of_run(bytes);
                self.string(&bytes[..end]);
                bytes = &bytes[end..];
            }
            let Some((first, rest)) = bytes.split_first() else { return };
            self.byte(*first);
            bytes = rest;
        }
    }

    /// Starts another document, and keeps what was found so far.
    pub(crate) fn restart(&mut self) {
        let found = std::mem::take(&mut self.found);
        let mut frames = std::mem::take(&mut self.frames);
        frames.clear();
        *self = Self { frames, found, ..Self::default() };
    }

    /// Handles bytes inside a string, without quotes and escapes.
    fn string(&mut self, bytes: &[u8]) {
        if self.expects_name {
            let room = MAX_NAME - self.name.len();
            self.name.extend_from_slice(&bytes[..bytes.len().min(room)]);
        } else {
            self.count(bytes.len());
        }
    }

    fn byte(&mut self, byte: u8) {
        self.position = match (self.position, byte) {
            (Position::String, b'\\') => Position::Escape,
            (Position::String, _) => {
                if self.expects_name
                    && let Some(frame) = self.frames.last()
                {
                    self.next = frame.role.of_member(&self.name);
                    self.found.reported.has_input_details |=
                        self.next == Role::Usage && self.name == b"input_tokens_details";
                }
                Position::BetweenStrings
            }
            (Position::Escape, b'u') => {
                // Most characters that are escaped like this have three bytes in UTF-8.
                self.escaped(3);
                Position::Unicode(4)
            }
            (Position::Escape, _) => {
                self.escaped(1);
                Position::String
            }
            (Position::Unicode(1), _) => Position::String,
            (Position::Unicode(left), _) => Position::Unicode(left - 1),
            (Position::BetweenStrings, b'"') => {
                self.name.clear();
                Position::String
            }
            (Position::BetweenStrings, _) => {
                self.structure(byte);
                Position::BetweenStrings
            }
        };
    }

    fn structure(&mut self, byte: u8) {
        match byte {
            b'{' | b'[' => self.open(byte == b'{'),
            b'}' | b']' => self.close(byte == b'}'),
            b':' => self.expects_name = false,
            b',' => {
                self.end_number();
                if let Some(frame) = self.frames.last().copied() {
                    self.enter(frame);
                }
            }
            _ if byte.is_ascii_whitespace() => {}
            _ => {
                if matches!(self.next, Role::Count(_)) && self.number.len() < MAX_NUMBER {
                    self.number.push(byte);
                }
            }
        }
    }

    fn open(&mut self, is_object: bool) {
        if self.frames.len() == MAX_DEPTH {
            self.is_lost = true;
            return;
        }
        self.found.has_error |= is_object && self.next == Role::Error;
        let has_role = is_object || matches!(self.next, Role::Choices | Role::Text);
        let frame = Frame { role: if has_role { self.next } else { Role::Other }, is_object };
        self.frames.push(frame);
        self.enter(frame);
        self.found.any |= is_object;
    }

    /// Expects the next member or element.
    const fn enter(&mut self, frame: Frame) {
        self.expects_name = frame.is_object;
        self.next = if frame.is_object { Role::Other } else { frame.role };
    }

    fn close(&mut self, is_object: bool) {
        self.end_number();
        if self.frames.pop().is_none_or(|frame| frame.is_object != is_object) {
            self.is_lost = true;
            return;
        }
        self.expects_name = false;
        if self.frames.is_empty() {
            // Another document may follow on the next line.
            self.next = Role::Document;
        }
    }

    /// Adds a number of tokens. Other values are as if the number was not reported.
    fn end_number(&mut self) {
        if let Role::Count(counter) = self.next
            && let Some(count) = tokens(&self.number)
        {
            self.found.reported.add(counter, count);
        }
        self.number.clear();
    }

    /// Handles an escaped character. No relevant name contains one, so this is another name.
    fn escaped(&mut self, bytes: usize) {
        if self.expects_name {
            self.name = vec![0; MAX_NAME];
        } else {
            self.count(bytes);
        }
    }

    const fn count(&mut self, bytes: usize) {
        if matches!(self.next, Role::Text) {
            self.found.text_bytes = self.found.text_bytes.saturating_add(bytes as u64);
        }
    }
}

/// Parses an integer. Some servers write `120.0`.
fn tokens(number: &[u8]) -> Option<u64> {
    let number = str::from_utf8(number).ok()?;
    let whole = || number.trim_end_matches('0').strip_suffix('.')?.parse().ok();
    number.parse().ok().or_else(whole)
}

/// The bytes before the next quote or escape. Most strings are too short for `memchr`.
fn end_of_run(bytes: &[u8]) -> usize {
    let (short, long) = bytes.split_at(bytes.len().min(16));
    let is_end = |byte: &u8| matches!(byte, b'"' | b'\\');
    short
        .iter()
        .position(is_end)
        .unwrap_or_else(|| short.len() + memchr2(b'"', b'\\', long).unwrap_or(long.len()))
}
