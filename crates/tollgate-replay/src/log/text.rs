//! Logs with a line template: `common`, `combined`, and nginx `log_format`.

use std::net::{IpAddr, SocketAddr};

use memchr::{memchr, memchr2, memmem};
use tollgate_core::Micros;

use super::record::{Batch, Fields, Reason, Span, shown};
use super::time::{self, Last};
use super::{Clock, FormatError};

/// A compiled template: fields and the text between them.
#[derive(Clone, Debug)]
pub(super) struct Template {
    /// The start of every line.
    start: Box<[u8]>,
    parts: Box<[Part]>,
    /// The name of a standard format, to which servers append more fields. A user's `log_format`
    /// describes the entire line.
    pub(super) usual: Option<&'static str>,
    pub(super) headers: Vec<Box<str>>,
    pub(super) clock: Clock,
}

#[derive(Clone, Debug)]
struct Part {
    name: Box<str>,
    field: Field,
    /// The text after the field, or empty at the end of the line.
    behind: Box<[u8]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Address,
    User,
    TimeLocal,
    TimeIso,
    Epoch,
    /// `GET /path HTTP/1.1`
    Request,
    Method,
    Target,
    Status,
    Bytes,
    Seconds,
    Host,
    Header(u8),
    Tier,
    Skip,
}

/// The start of `common` and `combined`. The rest of `combined` is not needed, and servers append
/// various fields.
pub(super) const COMMON: &str =
    "$remote_addr $ident $remote_user [$time_local] \"$request\" $status $body_bytes_sent";
/// Apache's `vhost_combined`, which Debian uses for other virtual hosts. It starts with the host
/// and port.
pub(super) const WITH_HOST: &str =
    "$host $remote_addr $ident $remote_user [$time_local] \"$request\" $status $body_bytes_sent";

impl Template {
    /// Compiles an nginx `log_format`.
    pub(super) fn new(template: &str, usual: Option<&'static str>) -> Result<Self, FormatError> {
        let mut pieces = template.split('$');
        let start: Box<[u8]> = pieces.next().unwrap_or_default().as_bytes().into();
        let (mut parts, mut headers) = (Vec::<Part>::new(), Vec::new());
        for piece in pieces {
            let (name, behind) = match piece.strip_prefix('{').and_then(|it| it.split_once('}')) {
                Some(braced) => braced,
                None => {
                    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
                    piece.split_at(piece.find(|c| !is_name(c)).unwrap_or(piece.len()))
                }
            };
            if name.is_empty() {
                return Err(FormatError::NoName(template.into()));
            }
            if parts.last().is_some_and(|last| last.behind.is_empty()) {
                return Err(FormatError::Adjacent(name.into()));
            }
            let field = field(name, &mut headers)?;
            parts.push(Part { name: name.into(), field, behind: behind.as_bytes().into() });
        }
        let has = |wanted: &[Field]| parts.iter().any(|part| wanted.contains(&part.field));
        if !has(&[Field::TimeLocal, Field::TimeIso, Field::Epoch]) {
            return Err(FormatError::NoTime);
        }
        if !has(&[Field::Request, Field::Target]) {
            return Err(FormatError::NoRequest);
        }
        if !has(&[Field::Request, Field::Method]) {
            return Err(FormatError::NoMethod);
        }
        // nginx logs the time at which the response was complete.
        let parts = parts.into();
        Ok(Self { start, parts, usual, headers, clock: Clock::AtEnd })
    }

    /// Reads a line in the batch.
    pub(super) fn read(
        &self,
        batch: &mut Batch,
        (start, end): (usize, usize),
        number: u64,
        last: &mut Last,
    ) -> Result<Fields, Reason> {
        let mut fields = Fields::new(number);
        if !batch.text[start..end].starts_with(&self.start) {
            let expected = String::from_utf8_lossy(&self.start);
            return Err(Reason::Literal {
                after: "its start".into(),
                expected: format!("`{expected}`").into(),
            });
        }
        let mut at = start + self.start.len();
        for (index, part) in self.parts.iter().enumerate() {
            let rest = &batch.text[at..end];
            let is_last = index + 1 == self.parts.len();
            let length = part.length(rest, is_last && self.usual.is_some())?;
            let next = at + length + part.behind.len();
            self.note(part, (at, at + length), batch, &mut fields, last)?;
            at = next.min(end);
        }
        if at < end && self.usual.is_none() {
            return Err(Reason::Field {
                field: "end".into(),
                found: shown(&batch.text[at..end]),
                expected: "where the format ends",
            });
        }
        Ok(fields)
    }

    fn note(
        &self,
        part: &Part,
        (start, end): (usize, usize),
        batch: &mut Batch,
        fields: &mut Fields,
        last: &mut Last,
    ) -> Result<(), Reason> {
        let text = &batch.text[start..end];
        let wrong =
            |expected| Reason::Field { field: part.name.clone(), found: shown(text), expected };
        match part.field {
            Field::Skip => {}
            Field::Address => {
                fields.address = peer(text).ok_or_else(|| wrong(AN_ADDRESS))?;
            }
            Field::TimeLocal => {
                let time = last.of(text, time::clf);
                fields.at = time.ok_or_else(|| wrong("a time like 10/Oct/2000:13:55:36 -0700"))?;
            }
            Field::TimeIso => {
                let time = last.of(text, time::rfc3339);
                fields.at = time.ok_or_else(|| wrong("a time like 2000-10-10T13:55:36-07:00"))?;
            }
            Field::Epoch => {
                fields.at = time::epoch(text).ok_or_else(|| wrong("seconds since 1970"))?;
            }
            Field::Status => {
                let status = match text {
                    // Apache logs this if the client disconnected before the response.
                    b"-" => Some(0),
                    _ => time::number(text).and_then(|status| u16::try_from(status).ok()),
                };
                fields.status = status.ok_or_else(|| wrong("a status"))?;
            }
            Field::Bytes => {
                let bytes = if text == b"-" { Some(0) } else { time::number(text) };
                fields.bytes = bytes.ok_or_else(|| wrong("a number of bytes"))?;
            }
            Field::Seconds => {
                if text != b"-" {
                    let span = time::seconds(text).ok_or_else(|| wrong("a number of seconds"))?;
                    fields.duration = Some(Micros::new(span));
                }
            }
            Field::Request => {
                let (start, end) = unescaped(batch, (start, end));
                let text = &batch.text[start..end];
                (fields.method, fields.target) = request(text, start);
            }
            Field::Method if matches!(text, b"" | b"-") => fields.method = Span::EMPTY,
            Field::Method => fields.method = Span::new(start, end),
            Field::Target => {
                let (start, end) = unescaped(batch, (start, end));
                fields.target = Span::new(start, end);
            }
            Field::User => fields.user = self.some(batch, (start, end)),
            Field::Host => fields.host = self.some(batch, (start, end)),
            Field::Tier => fields.tier = self.some(batch, (start, end)),
            Field::Header(number) => {
                let span = self.some(batch, (start, end));
                if span != Span::NONE {
                    fields.headers.push((number, span));
                }
            }
        }
        Ok(())
    }

    /// The field, or [`Span::NONE`] if it is empty or `-`.
    #[expect(clippy::unused_self, reason = "reads as a verb of the template")]
    fn some(&self, batch: &mut Batch, (start, end): (usize, usize)) -> Span {
        if matches!(&batch.text[start..end], b"" | b"-") {
            return Span::NONE;
        }
        let (start, end) = unescaped(batch, (start, end));
        Span::new(start, end)
    }
}

impl Part {
    /// The length of the field, which extends to the text after it.
    fn length(&self, rest: &[u8], is_open: bool) -> Result<usize, Reason> {
        let found = match &*self.behind {
            [] if is_open => Some(memchr2(b' ', b'\t', rest).unwrap_or(rest.len())),
            [] => Some(rest.len()),
            // Requests may contain quotes, which servers escape.
            [b'"', more @ ..] => quote(rest, more),
            [one] => memchr(*one, rest),
            [one, more @ ..] => {
                // Usually the first match is right.
                let first = memchr(*one, rest);
                match first.filter(|at| rest[at + 1..].starts_with(more)) {
                    None if first.is_some() => memmem::find(rest, &self.behind),
                    found => found,
                }
            }
        };
        if rest.is_empty() && found.is_none() {
            return Err(Reason::Short(self.name.clone()));
        }
        found.ok_or_else(|| Reason::Literal {
            after: self.name.clone(),
            expected: format!("`{}`", String::from_utf8_lossy(&self.behind)).into(),
        })
    }
}

/// Finds the first unescaped quote that is followed by `more`.
fn quote(rest: &[u8], more: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        let at = from + memchr2(b'"', b'\\', &rest[from..])?;
        if rest[at] == b'\\' {
            from = (at + 2).min(rest.len());
        } else if rest[at + 1..].starts_with(more) {
            return Some(at);
        } else {
            from = at + 1;
        }
    }
}

fn field(name: &str, headers: &mut Vec<Box<str>>) -> Result<Field, FormatError> {
    Ok(match name {
        "remote_addr" => Field::Address,
        "remote_user" => Field::User,
        "time_local" => Field::TimeLocal,
        "time_iso8601" => Field::TimeIso,
        "msec" => Field::Epoch,
        "request" => Field::Request,
        "request_method" => Field::Method,
        "request_uri" => Field::Target,
        "status" => Field::Status,
        "body_bytes_sent" => Field::Bytes,
        "request_time" => Field::Seconds,
        "host" | "http_host" => Field::Host,
        "tier" => Field::Tier,
        _ => match name.strip_prefix("http_") {
            Some(header) => {
                let number = u8::try_from(headers.len());
                let number = number.map_err(|_| FormatError::Headers)?;
                headers.push(header.replace('_', "-").into());
                Field::Header(number)
            }
            None => Field::Skip,
        },
    })
}

pub(super) const AN_ADDRESS: &str = "the address of a client";

/// Parses the client's address. The inner `None` is a client on a Unix socket.
pub(super) fn peer(text: &[u8]) -> Option<Option<IpAddr>> {
    let text = std::str::from_utf8(text).ok()?;
    if let Ok(address) = text.parse() {
        return Some(Some(address));
    }
    // nginx and Go servers write these texts for a Unix socket.
    if text == "@" || text.starts_with("unix:") {
        return Some(None);
    }
    // Envoy and some proxies append the port.
    text.parse::<SocketAddr>().ok().map(|address| Some(address.ip()))
}

/// The method and target in a request line. The method is empty if the line is not valid HTTP.
pub(super) fn request(line: &[u8], start: usize) -> (Span, Span) {
    let end = start + line.len();
    let Some(first) = memchr(b' ', line) else { return (Span::EMPTY, Span::new(start, end)) };
    let target = &line[first + 1..];
    // HTTP/0.9 has no version.
    let last = memchr::memrchr(b' ', target).unwrap_or(target.len());
    let is_method = first > 0 && line[..first].iter().all(u8::is_ascii_graphic);
    if !is_method || memchr(b' ', &target[..last]).is_some() || last == 0 {
        return (Span::EMPTY, Span::new(start, end));
    }
    let behind = start + first + 1;
    (Span::new(start, start + first), Span::new(behind, behind + last))
}

/// Undoes the escapes `\x22` and `\"`, and returns the new range. A range without escapes is
/// returned unchanged.
fn unescaped(batch: &mut Batch, (start, end): (usize, usize)) -> (usize, usize) {
    if memchr(b'\\', &batch.text[start..end]).is_none() {
        return (start, end);
    }
    let begin = batch.text.len();
    let mut at = start;
    while at < end {
        let (byte, length) = match batch.text[at..end] {
            [b'\\', b'x', high, low, ..] => match (hex(high), hex(low)) {
                (Some(high), Some(low)) => (high << 4 | low, 4),
                _ => (b'\\', 1),
            },
            [b'\\', b'n', ..] => (b'\n', 2),
            [b'\\', b't', ..] => (b'\t', 2),
            [b'\\', b'r', ..] => (b'\r', 2),
            [b'\\', byte @ (b'"' | b'\\'), ..] => (byte, 2),
            [byte, ..] => (byte, 1),
            [] => break,
        };
        batch.text.push(byte);
        at += length;
    }
    (begin, batch.text.len())
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}
