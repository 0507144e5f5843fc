//! One line of a log, and the lines of one block of a file.

use std::net::IpAddr;

use smallvec::SmallVec;
use tollgate_core::{Micros, Timestamp};

/// The request that a log line describes. Clients wrote its texts, so print them with
/// [`Visible`](super::Visible).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The name of the file with the line.
    pub file: &'a str,
    /// The number of the line in its file, from 1.
    pub line: u64,
    /// When the request arrived.
    pub at: Timestamp,
    /// How long its response took, if the log has it.
    pub duration: Option<Micros>,
    /// The address of the client.
    pub address: Option<IpAddr>,
    /// The method; empty where the line has no request that HTTP knows.
    pub method: &'a str,
    /// The target as the client sent it, query included.
    pub target: &'a str,
    /// The host that was asked for, if the log has it.
    pub host: Option<&'a str>,
    /// The status of the response.
    pub status: u16,
    /// The bytes of the body of the response.
    pub bytes: u64,
    /// The authenticated user, if the log has one.
    pub user: Option<&'a str>,
    /// The tier of that user, if the log has it.
    pub tier: Option<&'a str>,
    /// The header fields of the request that are in the log.
    pub headers: Vec<(&'a str, &'a str)>,
}

/// A piece of the text of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    start: u32,
    end: u32,
}

impl Span {
    /// There is no such field.
    pub(super) const NONE: Self = Self { start: 1, end: 0 };
    pub(super) const EMPTY: Self = Self { start: 0, end: 0 };

    /// # Panics
    /// Never: a batch is smaller than 4 GiB.
    #[expect(clippy::cast_possible_truncation, reason = "a batch is smaller than 4 GiB")]
    pub(super) const fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    pub(super) fn bytes(self, text: &[u8]) -> Option<&[u8]> {
        text.get(self.start as usize..self.end as usize)
    }

    /// The same piece of a text that begins at `base`.
    #[expect(clippy::cast_possible_truncation, reason = "a batch is smaller than 4 GiB")]
    pub(super) const fn from(self, base: usize) -> Self {
        let base = base as u32;
        Self { start: self.start.saturating_sub(base), end: self.end.saturating_sub(base) }
    }

    fn of(self, text: &[u8]) -> Option<&str> {
        std::str::from_utf8(self.bytes(text)?).ok()
    }
}

/// A record whose texts are in its batch.
#[derive(Clone, Debug)]
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
    pub(super) headers: SmallVec<[(u8, Span); 1]>,
}

impl Fields {
    pub(super) const fn new(line: u64) -> Self {
        Self {
            line,
            at: Timestamp::EPOCH,
            duration: None,
            address: None,
            status: 0,
            bytes: 0,
            method: Span::EMPTY,
            target: Span::EMPTY,
            host: Span::NONE,
            user: Span::NONE,
            tier: Span::NONE,
            headers: SmallVec::new_const(),
        }
    }

    /// `names` are those of the header fields.
    pub(super) fn record<'a>(
        &self,
        file: &'a str,
        text: &'a [u8],
        names: &'a [Box<str>],
    ) -> Record<'a> {
        let header = |(number, span): &(u8, Span)| {
            Some((&**names.get(usize::from(*number))?, span.of(text)?))
        };
        let target = self.target.of(text);
        // A target that is not UTF-8 is not a target of HTTP.
        let method = target.and_then(|_| self.method.of(text)).filter(is_token);
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
            headers: self.headers.iter().filter_map(header).collect(),
        }
    }
}

/// Whether HTTP allows this method (RFC 9110 §5.6.2).
fn is_token(method: &&str) -> bool {
    method.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

/// Records of one file that follow one another, and their texts.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) text: Vec<u8>,
    pub(super) records: Vec<Fields>,
    pub(super) unreadable: Vec<(u64, Reason)>,
    pub(super) lines: u64,
    /// A bit for each named field that occurs in these lines: see `Mapping::names`.
    pub(super) seen: u64,
}

/// The reason why a line of a log cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// The line ends before a field.
    #[error("it ends before {0}")]
    Short(Box<str>),
    /// Another text was expected between two fields.
    #[error("after {after} it has no {expected}")]
    Literal {
        /// The field before.
        after: Box<str>,
        /// The text or value that should be there.
        expected: Box<str>,
    },
    /// A field is there, and cannot be read.
    #[error("its {field} is `{found}`, which is not {expected}")]
    Field {
        /// The name of the field.
        field: Box<str>,
        /// The value, cut short.
        found: Box<str>,
        /// The text or value that should be there.
        expected: &'static str,
    },
    /// It should be a JSON object.
    #[error("it is not a JSON object: {0}")]
    Json(Box<str>),
    /// A JSON object lacks a field.
    #[error("it has no field `{0}`")]
    Missing(Box<str>),
    /// The time is far ahead of the rest of the log.
    #[error("its time is {0} s ahead of the lines after it")]
    Ahead(u64),
    /// The time is far behind the rest of the log.
    #[error("its time is {0} s behind the lines before it")]
    Behind(u64),
    /// The time is later than [`Options::not_after`](super::Options::not_after).
    #[error("its time is in the future")]
    Future,
}

impl Reason {
    /// The same reason without any text of the line.
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

/// As much of a field as a message shows.
pub(super) fn shown(bytes: &[u8]) -> Box<str> {
    let cut = &bytes[..bytes.len().min(40)];
    let text = String::from_utf8_lossy(cut).escape_debug().to_string();
    if cut.len() < bytes.len() { format!("{text}…").into() } else { text.into() }
}
