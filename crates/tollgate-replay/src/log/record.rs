//! A log line, and the lines in a block.

use std::net::IpAddr;
use std::sync::Arc;

use smallvec::SmallVec;
use tollgate_core::{Micros, Timestamp};

/// The request that a log line describes. Its text was written by clients, so print it with
/// [`Visible`](super::Visible).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The name of the file with the line.
    pub file: &'a str,
    /// The line number in the file, from 1.
    pub line: u64,
    /// When the request arrived.
    pub at: Timestamp,
    /// How long the response took, if logged.
    pub duration: Option<Micros>,
    /// The client's address.
    pub address: Option<IpAddr>,
    /// The method, or an empty string if the request is not valid HTTP.
    pub method: &'a str,
    /// The target as the client sent it, including the query.
    pub target: &'a str,
    /// The requested host, if logged.
    pub host: Option<&'a str>,
    /// The response status.
    pub status: u16,
    /// The size of the response body in bytes.
    pub bytes: u64,
    /// The authenticated user, if logged.
    pub user: Option<&'a str>,
    /// The user's tier, if logged.
    pub tier: Option<&'a str>,
    /// The tokens of a request to a language model, if logged.
    pub tokens: Option<Tokens<'a>>,
    /// The logged request headers.
    pub headers: Vec<(&'a str, &'a str)>,
}

/// The tokens that a language model used for a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tokens<'a> {
    /// The name of the model, or an empty string.
    pub model: &'a str,
    /// All input tokens.
    pub input: u64,
    /// The input tokens that the model's server read from its cache.
    pub cached_input: u64,
    /// The output tokens.
    pub output: u64,
}

/// A range in a batch's text, or a missing field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    start: u32,
    end: u32,
}

impl Default for Span {
    fn default() -> Self {
        Self::NONE
    }
}

impl Span {
    pub(super) const NONE: Self = Self { start: 1, end: 0 };

    /// # Panics
    /// Never: a batch is smaller than 4 GiB.
    #[expect(clippy::cast_possible_truncation, reason = "a batch is smaller than 4 GiB")]
    pub(super) const fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    pub(super) fn bytes(self, text: &[u8]) -> Option<&[u8]> {
        text.get(self.start as usize..self.end as usize)
    }

    pub(super) const fn range(self) -> (usize, usize) {
        (self.start as usize, self.end as usize)
    }

    fn of(self, text: &[u8]) -> Option<&str> {
        std::str::from_utf8(self.bytes(text)?).ok()
    }
}

/// A record that stores its strings as ranges in the batch.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields {
    pub(super) line: u64,
    pub(super) at: Timestamp,
    pub(super) duration: Option<Micros>,
    pub(super) address: Option<IpAddr>,
    pub(super) status: u16,
    pub(super) bytes: u64,
    pub(super) method: Span,
    pub(super) target: Span,
    pub(super) host: Span,
    pub(super) user: Span,
    pub(super) tier: Span,
    pub(super) model: Span,
    /// Input, cached input and output.
    pub(super) tokens: Option<[u64; 3]>,
    pub(super) headers: SmallVec<[(u8, Span); 1]>,
}

impl Fields {
    /// Builds the record.
    fn record<'a>(&self, file: &'a str, batch: &'a Batch) -> Record<'a> {
        let (text, names) = (&*batch.text, &*batch.headers);
        let header = |(number, span): &(u8, Span)| {
            Some((&**names.get(usize::from(*number))?, span.of(text)?))
        };
        let target = self.target.of(text);
        // A target with invalid UTF-8 is not valid HTTP.
        let method = target.and_then(|_| self.method.of(text)).filter(is_token);
        let tokens = self.tokens.map(|[input, cached_input, output]| Tokens {
            model: self.model.of(text).unwrap_or_default(),
            input,
            cached_input,
            output,
        });
        Record {
            file,
            line: self.line,
            at: self.at,
            duration: self.duration,
            address: self.address,
            method: method.unwrap_or_default(),
            target: target.unwrap_or_default(),
            host: self.host.of(text),
            status: self.status,
            bytes: self.bytes,
            user: self.user.of(text),
            tier: self.tier.of(text),
            tokens,
            headers: self.headers.iter().filter_map(header).collect(),
        }
    }
}

/// Whether HTTP allows this method (RFC 9110 §5.6.2).
fn is_token(method: &&str) -> bool {
    method.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

/// Consecutive records from a file, and their text.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) text: Vec<u8>,
    /// The names of the headers.
    pub(super) headers: Arc<[Box<str>]>,
    pub(super) records: Vec<Fields>,
    pub(super) unreadable: Vec<Odd>,
    pub(super) lines: u64,
}

/// A skipped line's number, and the reason.
pub(super) type Odd = (u64, Reason);

/// A record in its batch, which remains in memory as long as a record does.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) at: Timestamp,
    index: usize,
    batch: Arc<Batch>,
}

impl Line {
    pub(super) fn all(batch: Batch) -> impl Iterator<Item = Self> {
        let batch = Arc::new(batch);
        (0..batch.records.len()).map(move |index| Self {
            at: batch.records[index].at,
            index,
            batch: Arc::clone(&batch),
        })
    }

    fn fields(&self) -> &Fields {
        &self.batch.records[self.index]
    }

    pub(super) fn number(&self) -> u64 {
        self.fields().line
    }

    /// When the server wrote the line: when the response was complete, possibly hours after it
    /// started.
    pub(super) fn written(&self) -> Timestamp {
        self.at + self.fields().duration.unwrap_or_default()
    }

    pub(super) fn record<'a>(&'a self, file: &'a str) -> Record<'a> {
        self.fields().record(file, &self.batch)
    }
}

/// Why a log line cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// The line is too short for a field.
    #[error("it ends before {0}")]
    Short(Box<str>),
    /// Different text was expected between two fields.
    #[error("after {after} it has no {expected}")]
    Literal {
        /// The preceding field.
        after: Box<str>,
        /// The text or value that should be there.
        expected: Box<str>,
    },
    /// A field exists but cannot be read.
    #[error("its {field} is `{found}`, which is not {expected}")]
    Field {
        /// The name of the field.
        field: Box<str>,
        /// The truncated value.
        found: Box<str>,
        /// The text or value that should be there.
        expected: &'static str,
    },
    /// The line is not a JSON object.
    #[error("it is not a JSON object: {0}")]
    Json(Box<str>),
    /// A JSON object lacks a field.
    #[error("it has no field `{0}`")]
    Missing(Box<str>),
    /// The time is far ahead of the following lines.
    #[error("its time is {0} s ahead of the lines after it")]
    Ahead(u64),
    /// The time is far behind the preceding lines.
    #[error("its time is {0} s behind the lines before it")]
    Behind(u64),
    /// The time is later than [`Options::not_after`](super::Options::not_after).
    #[error("its time is in the future")]
    Future,
}

impl Reason {
    /// The same reason without text from the line.
    #[must_use]
    pub fn without_excerpt(self) -> Self {
        match self {
            Self::Field { field, expected, .. } => {
                Self::Field { field, found: "…".into(), expected }
            }
            Self::Json(_) => Self::Json("its text is hidden".into()),
            reason => reason,
        }
    }
}

/// Truncates and escapes a field for messages.
pub(super) fn shown(bytes: &[u8]) -> Box<str> {
    let cut = &bytes[..bytes.len().min(40)];
    let text = String::from_utf8_lossy(cut).escape_debug().to_string();
    if cut.len() < bytes.len() { format!("{text}…").into() } else { text.into() }
}
