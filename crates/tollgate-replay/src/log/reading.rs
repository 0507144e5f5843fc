//! Reads a line's values. All formats share these rules.
//!
//! A line needs a time, a request and, if the format has addresses, an address. Other values that
//! cannot be read are absent.

use std::net::{IpAddr, SocketAddr};

use memchr::{memchr, memrchr};
use smallvec::SmallVec;
use tollgate_core::Micros;

use super::field::Field;
use super::record::{Fields, Reason, Span, shown};
use super::time::{self, Times};

/// How a server escapes characters that would end a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Escapes {
    None,
    /// nginx and Apache: `\x22` and `\"`.
    Backslash,
    /// HAProxy: `#22`.
    Hash,
    /// IIS: `+` for a space, also in paths, which it logs decoded.
    Plus,
    /// CloudFront: `%20`. Paths and queries remain as clients sent them.
    Percent,
}

/// The kind of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Value,
    /// Empty, `-`, or a negative number.
    Absent,
    /// Another text, which counts as absent.
    Odd,
}

/// A line that is being read.
pub(super) struct Reading<'a> {
    pub(super) fields: Fields,
    /// The text of the batch, to which changed values are appended.
    pub(super) text: &'a mut Vec<u8>,
    times: &'a mut Times,
    escapes: Escapes,
    date: Option<Range>,
    time_of_day: Option<Range>,
    query: Option<Range>,
    /// Whether the time is the end of the response.
    is_end: bool,
    /// How many values show that the format is right.
    pub(super) recognised: u32,
}

/// A range in the batch's text.
pub(super) type Range = (usize, usize);

impl<'a> Reading<'a> {
    pub(super) fn new(
        line: u64,
        text: &'a mut Vec<u8>,
        times: &'a mut Times,
        escapes: Escapes,
    ) -> Self {
        let fields = Fields { line, ..Fields::default() };
        let (date, time_of_day, query) = (None, None, None);
        let (is_end, recognised) = (false, 0);
        Self { fields, text, times, escapes, date, time_of_day, query, is_end, recognised }
    }

    /// Reads the value in this range. `name` is the field's name in messages.
    pub(super) fn set(&mut self, field: Field, name: &str, range: Range) -> Result<Found, Reason> {
        let found = self.value(field, name, range)?;
        self.recognised += u32::from(found == Found::Value && field.is_checked());
        Ok(found)
    }

    fn value(&mut self, field: Field, name: &str, range: Range) -> Result<Found, Reason> {
        let text = &self.text[range.0..range.1];
        let is_absent = matches!(text, b"" | b"-");
        match field {
            Field::Time | Field::End => match self.times.parse(text) {
                Some(at) => (self.fields.at, self.is_end) = (at, field == Field::End),
                None => return Err(wrong(name, text, A_TIME)),
            },
            Field::Address => match address(text) {
                Some(address) => self.fields.address = address,
                None => return Err(wrong(name, text, AN_ADDRESS)),
            },
            Field::Peer => match peer(text) {
                Some(address) => self.fields.address = address,
                None => return Err(wrong(name, text, AN_ADDRESS)),
            },
            Field::Date => self.date = Some(range),
            Field::TimeOfDay => self.time_of_day = Some(range),
            Field::Request => {
                let range = self.unescaped(range, false);
                let (method, target) = request(&self.text[range.0..range.1], range.0);
                (self.fields.method, self.fields.target) = (method, target);
                if method == Span::NONE {
                    return Ok(Found::Odd);
                }
            }
            // The request is not valid HTTP.
            Field::Method | Field::Target if is_absent => return Ok(Found::Absent),
            Field::Method => self.fields.method = Span::new(range.0, range.1),
            Field::Target => self.fields.target = self.span(range, true),
            _ if is_absent => return Ok(Found::Absent),
            Field::Query => self.query = Some(range),
            Field::Forwarded(header) => return Ok(self.forwarded(header, range)),
            Field::User => self.fields.user = self.span(range, false),
            Field::Tier => self.fields.tier = self.span(range, false),
            Field::Host => self.fields.host = self.span(range, false),
            Field::Model => self.fields.model = self.span(range, false),
            Field::Header(header) => {
                let span = self.span(range, false);
                self.fields.headers.push((header, span));
            }
            Field::Status | Field::Bytes | Field::Duration(_) | Field::Tokens(_) => {
                return Ok(self.number(field, range));
            }
            Field::Skip => {}
        }
        Ok(Found::Value)
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "floats saturate, and negative numbers are absent"
    )]
    fn number(&mut self, field: Field, (start, end): Range) -> Found {
        let text = &self.text[start..end];
        let fields = &mut self.fields;
        if let Field::Duration(unit) = field {
            let Some((number, unit)) = time::with_unit(text, unit) else { return Found::Odd };
            if number < 0.0 {
                return Found::Absent;
            }
            let micros = (number * unit / 1e3).round() as u64;
            let others = fields.duration.unwrap_or_default().get();
            fields.duration = Some(Micros::new(others.saturating_add(micros)));
            return Found::Value;
        }
        let number = match time::number(text) {
            Some(number) => number,
            None => match time::float(text) {
                Some(number) if number < 0.0 => return Found::Absent,
                Some(number) => number as u64,
                None => return Found::Odd,
            },
        };
        match (field, u16::try_from(number)) {
            (Field::Status, Ok(status)) if status <= 999 => fields.status = status,
            (Field::Status, _) => return Found::Odd,
            (Field::Tokens(kind), _) => {
                fields.tokens.get_or_insert_default()[usize::from(kind)] = number;
            }
            _ => fields.bytes = number,
        }
        Found::Value
    }

    /// Divides the entries of `X-Forwarded-For` into the address and the entries before.
    fn forwarded(&mut self, header: u8, range: Range) -> Found {
        let (start, end) = self.unescaped(range, false);
        let text = &self.text[start..end];
        let comma = memrchr(b',', text);
        let last = &text[comma.map_or(0, |comma| comma + 1)..];
        let Some(last) = address(last.trim_ascii()) else { return Found::Odd };
        self.fields.address = last;
        if let Some(comma) = comma {
            self.fields.headers.push((header, Span::new(start, start + comma)));
        }
        Found::Value
    }

    /// Joins the values that stand apart. `date` is the date of lines without a date.
    pub(super) fn finish(mut self, date: &[u8]) -> Result<Fields, Reason> {
        if let Some((start, end)) = self.time_of_day {
            let date = self.date.map_or(date, |(start, end)| &self.text[start..end]);
            let parts = [date, b" ", &self.text[start..end]];
            let text: SmallVec<[u8; 32]> = parts.into_iter().flatten().copied().collect();
            let at = self.times.parse(&text);
            self.fields.at = at.ok_or_else(|| wrong("date and time", &text, A_TIME))?;
            self.is_end = true;
        }
        if let (Some((start, end)), true) = (self.query, self.fields.target != Span::NONE) {
            let begin = self.text.len();
            let (path, path_end) = self.fields.target.range();
            self.text.extend_from_within(path..path_end);
            self.text.push(b'?');
            self.text.extend_from_within(start..end);
            self.fields.target = Span::new(begin, self.text.len());
        }
        if let (true, Some(duration)) = (self.is_end, self.fields.duration) {
            self.fields.at = self.fields.at - duration;
        }
        Ok(self.fields)
    }

    fn span(&mut self, range: Range, is_target: bool) -> Span {
        let (start, end) = self.unescaped(range, is_target);
        Span::new(start, end)
    }

    /// Undoes the escapes, and returns the new range. A range without escapes is returned unchanged.
    fn unescaped(&mut self, (start, end): Range, is_target: bool) -> Range {
        let mark = match self.escapes {
            Escapes::None => return (start, end),
            Escapes::Backslash => b'\\',
            Escapes::Hash => b'#',
            Escapes::Plus => b'+',
            Escapes::Percent if is_target => return (start, end),
            Escapes::Percent => b'%',
        };
        if memchr(mark, &self.text[start..end]).is_none() {
            return (start, end);
        }
        let begin = self.text.len();
        let mut at = start;
        while at < end {
            let (byte, length) = match (self.escapes, &self.text[at..end]) {
                (Escapes::Backslash, [b'\\', b'x', high, low, ..]) => {
                    hex(*high, *low).map_or((b'\\', 1), |byte| (byte, 4))
                }
                (Escapes::Backslash, [b'\\', b'n', ..]) => (b'\n', 2),
                (Escapes::Backslash, [b'\\', b't', ..]) => (b'\t', 2),
                (Escapes::Backslash, [b'\\', b'r', ..]) => (b'\r', 2),
                (Escapes::Backslash, [b'\\', byte @ (b'"' | b'\\'), ..]) => (*byte, 2),
                (Escapes::Hash | Escapes::Percent, [first, high, low, ..]) if *first == mark => {
                    hex(*high, *low).map_or((mark, 1), |byte| (byte, 3))
                }
                (Escapes::Plus, [b'+', ..]) if is_target => {
                    self.text.extend_from_slice(b"%2");
                    (b'0', 1)
                }
                (Escapes::Plus, [b'+', ..]) => (b' ', 1),
                (_, [byte, ..]) => (*byte, 1),
                (_, []) => break,
            };
            self.text.push(byte);
            at += length;
        }
        (begin, self.text.len())
    }
}

pub(super) fn wrong(name: &str, text: &[u8], expected: &'static str) -> Reason {
    Reason::Field { field: name.into(), found: shown(text), expected }
}

const A_TIME: &str =
    "a time like 2000-10-10T13:55:36Z, 10/Oct/2000:13:55:36 +0000 or 971186136 (seconds)";
const AN_ADDRESS: &str = "the address of a client";

/// Parses the client's address. The inner `None` is a client on a Unix socket.
fn address(text: &[u8]) -> Option<Option<IpAddr>> {
    let text = std::str::from_utf8(text).ok()?;
    if let Ok(address) = text.parse() {
        return Some(Some(address));
    }
    // nginx and Go servers write these texts for a Unix socket.
    if text == "@" || text.starts_with("unix:") {
        return Some(None);
    }
    // Some proxies append the port.
    text.parse::<SocketAddr>().ok().map(|address| Some(address.ip()))
}

/// Parses an address that is always followed by a port.
fn peer(text: &[u8]) -> Option<Option<IpAddr>> {
    let port = memrchr(b':', text)?;
    let (host, port) = (&text[..port], &text[port + 1..]);
    if host == b"unix" {
        return Some(None);
    }
    time::number(port)?;
    let host = host.strip_prefix(b"[").and_then(|host| host.strip_suffix(b"]")).unwrap_or(host);
    std::str::from_utf8(host).ok()?.parse().ok().map(Some)
}

/// The method and target in a request line. The method is empty if the line is not valid HTTP.
fn request(line: &[u8], start: usize) -> (Span, Span) {
    let end = start + line.len();
    let Some(first) = memchr(b' ', line) else { return (Span::NONE, Span::new(start, end)) };
    let target = &line[first + 1..];
    // HTTP/0.9 has no version.
    let last = memrchr(b' ', target).unwrap_or(target.len());
    let method = &line[..first];
    // Load balancers write `-` for a request that they could not read.
    let is_method = first > 0 && method != b"-" && method.iter().all(u8::is_ascii_graphic);
    if !is_method || memchr(b' ', &target[..last]).is_some() || last == 0 {
        return (Span::NONE, Span::new(start, end));
    }
    let behind = start + first + 1;
    (Span::new(start, start + first), Span::new(behind, behind + last))
}

fn hex(high: u8, low: u8) -> Option<u8> {
    let digit = |digit| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(high)? << 4 | digit(low)?)
}
