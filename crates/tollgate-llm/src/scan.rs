//! An incremental scanner of JSON. It accepts bytes in any chunking, in constant memory.
//!
//! It is not a validator: it finds usage and text, and skips the rest.

use memchr::memchr2;

use crate::usage::Reported;

/// Containers deeper than this are not responses. The rest of the document is skipped.
const MAX_DEPTH: usize = 64;

/// Longer than all relevant names.
const MAX_NAME: usize = 24;

/// A longer `usage` is ignored.
const MAX_USAGE: usize = 4096;

#[derive(Default)]
pub(crate) struct Scanner {
    position: Position,
    frames: Vec<Frame>,
    /// The role of the next value.
    next: Role,
    /// Whether the next string is a member's name.
    expects_name: bool,
    name: Vec<u8>,
    /// The bytes of the `usage` that the scanner is in, and its depth.
    usage: Option<(usize, Vec<u8>)>,
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
    Usage,
    /// The usage in a stream's first event, with the final input and a preliminary output.
    InitialUsage,
    Other,
}

impl Role {
    const fn of_member(self, name: &[u8]) -> Self {
        match (self, name) {
            (Self::Document | Self::Response, b"usage") => Self::Usage,
            (Self::Message, b"usage") => Self::InitialUsage,
            (Self::Document, b"response") => Self::Response,
            (Self::Document, b"message") => Self::Message,
            (Self::Document, b"choices") => Self::Choices,
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
        self.copy(bytes);
        if self.expects_name {
            let room = MAX_NAME - self.name.len();
            self.name.extend_from_slice(&bytes[..bytes.len().min(room)]);
        } else {
            self.count(bytes.len());
        }
    }

    fn byte(&mut self, byte: u8) {
        self.copy(&[byte]);
        self.position = match (self.position, byte) {
            (Position::String, b'\\') => Position::Escape,
            (Position::String, _) => {
                if self.expects_name
                    && let Some(frame) = self.frames.last()
                {
                    self.next = frame.role.of_member(&self.name);
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
                if let Some(frame) = self.frames.last().copied() {
                    self.enter(frame);
                }
            }
            _ => {}
        }
    }

    fn open(&mut self, is_object: bool) {
        if self.frames.len() == MAX_DEPTH {
            self.is_lost = true;
            return;
        }
        if matches!(self.next, Role::Usage | Role::InitialUsage) && is_object {
            self.usage = Some((self.frames.len(), vec![b'{']));
        }
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
        let Some(frame) = self.frames.pop().filter(|frame| frame.is_object == is_object) else {
            self.is_lost = true;
            return;
        };
        self.expects_name = false;
        if let Some((_, usage)) = self.usage.take_if(|(depth, _)| *depth == self.frames.len()) {
            self.report(frame.role, &usage);
        }
        if self.frames.is_empty() {
            // Another document may follow on the next line.
            self.next = Role::Document;
        }
    }

    fn report(&mut self, role: Role, usage: &[u8]) {
        if let Ok(reported) = serde_json::from_slice::<Reported>(usage) {
            let is_initial = role == Role::InitialUsage;
            let reported = if is_initial { reported.without_output() } else { reported };
            self.found.reported.update(reported);
        }
    }

    fn copy(&mut self, bytes: &[u8]) {
        if let Some((_, usage)) = &mut self.usage {
            if usage.len() + bytes.len() <= MAX_USAGE {
                usage.extend_from_slice(bytes);
            } else {
                self.usage = None;
            }
        }
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

/// The bytes before the next quote or escape. Most strings are too short for `memchr`.
fn end_of_run(bytes: &[u8]) -> usize {
    let (short, long) = bytes.split_at(bytes.len().min(16));
    let is_end = |byte: &u8| matches!(byte, b'"' | b'\\');
    short
        .iter()
        .position(is_end)
        .unwrap_or_else(|| short.len() + memchr2(b'"', b'\\', long).unwrap_or(long.len()))
}
