//! Reads access logs into [`Record`]s in chronological order.
//!
//! | file | holds |
//! |---|---|
//! | `record.rs` | a line, and a batch of lines |
//! | `text.rs` | lines that follow a template: common, combined, `log_format` |
//! | `json.rs` | lines that are JSON objects |
//! | `mapping.rs` | the names of JSON fields |
//! | `time.rs` | times |
//! | `input.rs` | files, compressed or not, in blocks of complete lines |
//! | `pending.rs` | lines that wait for earlier lines |
//! | `visible.rs` | safe output of client-supplied text |
//! | `order.rs` | lines from several files in chronological order |
//!
//! # Times
//!
//! * A record has the time at which its request arrived. nginx and Caddy log the time at which the
//!   response was complete, so the duration is subtracted if the log contains it.
//! * If the log only has whole seconds, all requests in a second arrive at its start, in line
//!   order.
//! * A leap second counts as the previous second.

mod input;
mod json;
mod mapping;
mod order;
mod pending;
mod record;
mod text;
mod time;
mod visible;

use std::fmt;
use std::str::FromStr;

pub use self::input::{Input, ReadError};
use self::mapping::Mapping;
pub use self::order::{Late, Options, Progress, Records, Unreadable};
use self::record::{Batch, Fields};
pub use self::record::{Reason, Record, Tokens};
use self::text::{COMMON, Template, WITH_HOST};
pub use self::visible::Visible;

/// An access log's line format.
#[derive(Clone, Debug)]
pub struct Format(FormatKind);

#[derive(Clone, Debug)]
enum FormatKind {
    /// Per file, the format that reads the most of the first lines.
    Auto,
    Text(Template),
    Json(Box<Mapping>),
}

/// How many lines are tried to find a file's format.
const FIRST_LINES: usize = 64;

/// Which request time a log contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clock {
    AtStart,
    AtEnd,
}

impl Format {
    /// Detects the format from each file's first lines: common, combined, vhost_combined, or a
    /// known server's JSON.
    pub const AUTO: Self = Self(FormatKind::Auto);

    /// Parses an nginx `log_format` such as `$remote_addr [$time_local] "$request" $status`.
    ///
    /// # Errors
    /// The template lacks a time, method or target, or has two adjacent variables.
    pub fn nginx(template: &str) -> Result<Self, FormatError> {
        Template::new(template, None).map(FormatKind::Text).map(Self)
    }

    /// JSON with these field names: `time=ts,address=client.ip,method=verb,target=url`. The fields
    /// are `time` (when the request arrived) or `end` (when it was complete), `address`, `method`,
    /// `target` or `request`, `host`, `status`, `bytes`, `user`, `tier`, `header.<name>`, and the
    /// duration in `seconds`, `milliseconds`, `microseconds` or `nanoseconds`. For requests to
    /// language models also `model`, `input_tokens`, `cached_tokens` (a part of these) and
    /// `output_tokens`.
    ///
    /// # Errors
    /// A field is unknown, or the time, method or target is missing.
    pub fn json(names: &str) -> Result<Self, FormatError> {
        Mapping::new(names).map(Box::new).map(FormatKind::Json).map(Self)
    }

    /// Returns this format, or for `auto` the format that reads the most of the first lines.
    fn for_lines(&self, text: &[u8]) -> Self {
        if !matches!(self.0, FormatKind::Auto) {
            return self.clone();
        }
        let end = memchr::memchr_iter(b'\n', text).nth(FIRST_LINES).unwrap_or(text.len());
        let text = &text[..end];
        let json = |mapping| Self(FormatKind::Json(Box::new(mapping)));
        let all = [
            Self::common(),
            Self::with_host(),
            json(Mapping::caddy()),
            json(Mapping::traefik()),
            json(Mapping::envoy()),
            json(Mapping::tollgate()),
            json(Mapping::nginx()),
        ];
        let count = |format: Self| {
            let mut batch = Batch { text: text.to_vec(), ..Batch::default() };
            LineReader::new(format.clone()).read(&mut batch, 1);
            (batch.records.len(), format)
        };
        let best = all.into_iter().map(count).filter(|(lines, _)| *lines > 0);
        // If several formats can read equally many lines, choose the first.
        best.rev().max_by_key(|(lines, _)| *lines).map_or_else(
            // Use the format with the most helpful error.
            || match text.trim_ascii_start() {
                object @ [b'{', ..] => json(Mapping::detect(object)),
                _ => Self::common(),
            },
            |(_, format)| format,
        )
    }

    fn common() -> Self {
        Self::usual(COMMON, "common or combined")
    }

    fn with_host() -> Self {
        Self::usual(WITH_HOST, "vhost_combined")
    }

    fn usual(template: &str, name: &'static str) -> Self {
        Template::new(template, Some(name))
            .map_or(Self::AUTO, |usual| Self(FormatKind::Text(usual)))
    }

    /// The path of a user-defined field that no line has.
    fn never_seen(&self, seen: u64) -> Option<&str> {
        let FormatKind::Json(mapping) = &self.0 else { return None };
        let mut names = (0..64_u32).zip(&mapping.names);
        let never = names.find(|(place, _)| seen & (1 << place) == 0);
        never.filter(|_| mapping.server.is_none()).map(|(_, (_, path))| &**path)
    }

    /// The names of the logged headers.
    fn headers(&self) -> &[Box<str>] {
        match &self.0 {
            FormatKind::Auto => &[],
            FormatKind::Text(template) => &template.headers,
            FormatKind::Json(mapping) => &mapping.headers,
        }
    }
}

/// Parses `auto`, `common`, `combined`, `vhost_combined`, `caddy`, `traefik`, `envoy`,
/// `nginx-json`, `json:` with field names, or an nginx `log_format`.
impl FromStr for Format {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        let json = |mapping| Ok(Self(FormatKind::Json(Box::new(mapping))));
        match text {
            "auto" => Ok(Self::AUTO),
            "common" | "combined" => Ok(Self::common()),
            "vhost_combined" => Ok(Self::with_host()),
            "caddy" => json(Mapping::caddy()),
            "traefik" => json(Mapping::traefik()),
            "envoy" => json(Mapping::envoy()),
            "nginx-json" => json(Mapping::nginx()),
            _ => match text.strip_prefix("json:") {
                Some(names) => Self::json(names),
                None if text.contains('$') => Self::nginx(text),
                None => Err(FormatError::Unknown(text.into())),
            },
        }
    }
}

/// The error for an invalid format description.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The description is neither a name nor a template.
    #[error(
        "`{0}` is not a log format; use auto, common, combined, vhost_combined, caddy, traefik, envoy, \
         nginx-json, json:time=…,method=…,target=… or a log_format of nginx such as '$remote_addr [$time_local] …'"
    )]
    Unknown(Box<str>),
    /// A `$` has no name.
    #[error("a `$` without a name in `{0}`; write a variable of nginx, such as $remote_addr")]
    NoName(Box<str>),
    /// Two adjacent variables cannot be distinguished.
    #[error("nothing separates `${0}` from the variable before it; put text between them")]
    Adjacent(Box<str>),
    /// There is no time, so requests cannot be replayed.
    #[error("no time in the format; add $time_local, $time_iso8601 or $msec (in JSON: time=…)")]
    NoTime,
    /// There is no target to find routes by.
    #[error("no request in the format; add \"$request\" or $request_uri (in JSON: target=…)")]
    NoRequest,
    /// There is no method to distinguish requests from lines that are not HTTP.
    #[error(
        "no method in the format; add \"$request\" or $request_method (in JSON: method=… or request=…)"
    )]
    NoMethod,
    /// There are more than 255 headers.
    #[error("more than 255 header fields in the format; leave out some")]
    Headers,
    /// An entry is not a pair of names.
    #[error("`{0}` is not a pair; write field=name, such as time=ts")]
    NoPair(Box<str>),
    /// A name is not a record field.
    #[error(
        "`{0}` is not a field; use time, end, address, method, target, request, host, status, \
         bytes, user, tier, seconds, milliseconds, microseconds, nanoseconds, model, input_tokens, \
         cached_tokens, output_tokens or header.<name>"
    )]
    UnknownField(Box<str>),
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            FormatKind::Auto => f.write_str("a common, combined or JSON log"),
            FormatKind::Text(template) => match template.usual {
                Some(name) => write!(f, "a {name} log"),
                None => f.write_str("a log of the stated log_format"),
            },
            FormatKind::Json(mapping) => match mapping.server {
                Some(server) => write!(f, "a JSON log of {server}"),
                None => f.write_str("JSON lines with the stated names"),
            },
        }
    }
}

/// Reads a batch's lines.
struct LineReader {
    format: Format,
    last: time::Last,
    strings: Vec<u8>,
}

impl LineReader {
    fn new(format: Format) -> Self {
        Self { format, last: time::Last::default(), strings: Vec::new() }
    }

    /// Reads all lines in a batch's text. `first` is the number of the first line.
    fn read(&mut self, batch: &mut Batch, first: u64) {
        let end = batch.text.len();
        let (mut start, mut number) = (0, first);
        while start < end {
            let length = memchr::memchr(b'\n', &batch.text[start..end]).unwrap_or(end - start);
            let line = (start, start + length);
            self.read_line(batch, line, number);
            (start, number) = (start + length + 1, number + 1);
        }
        batch.lines = number - first;
    }

    fn read_line(&mut self, batch: &mut Batch, (start, mut end): (usize, usize), number: u64) {
        if batch.text[start..end].ends_with(b"\r") {
            end -= 1;
        }
        let read = match &self.format.0 {
            FormatKind::Text(template) => {
                template.read(batch, (start, end), number, &mut self.last)
            }
            FormatKind::Json(mapping) => {
                mapping.read(batch, (start, end), number, &mut self.strings)
            }
            FormatKind::Auto => Err(Reason::Short("its format".into())),
        };
        match read {
            Ok(fields) => batch.records.push(self.counted_from_its_start(fields)),
            Err(reason) => batch.unreadable.push((number, reason)),
        }
    }

    fn counted_from_its_start(&self, mut fields: Fields) -> Fields {
        let clock = match &self.format.0 {
            FormatKind::Auto => Clock::AtStart,
            FormatKind::Text(template) => template.clock,
            FormatKind::Json(mapping) => mapping.clock,
        };
        if let (Clock::AtEnd, Some(duration)) = (clock, fields.duration) {
            fields.at = fields.at - duration;
        }
        fields
    }
}

#[cfg(test)]
mod tests;
