//! Access logs: from files to [`Record`]s in the order of their times.
//!
//! | file | holds |
//! |---|---|
//! | `record.rs` | one line, and a batch of them |
//! | `text.rs` | lines that follow a template: common, combined, `log_format` |
//! | `json.rs` | lines that are JSON objects |
//! | `mapping.rs` | which of their fields hold which field of a record |
//! | `time.rs` | times |
//! | `input.rs` | files, compressed or not, in blocks of whole lines |
//! | `held.rs` | the lines of a file that are held until it is their turn |
//! | `order.rs` | the lines of several files in the order of their times |
//!
//! # Times
//!
//! * A line has the time at which its request arrived. nginx and Caddy log the time at which the
//!   response was over; the duration is subtracted, if the log has it.
//! * In a log with whole seconds, all requests of a second arrive at its start, in the order of the
//!   lines.
//! * A leap second is the second before it.

mod held;
mod input;
mod json;
mod mapping;
mod order;
mod record;
mod text;
mod time;

use std::fmt;
use std::str::FromStr;

pub use self::input::{Input, ReadError};
use self::mapping::Mapping;
pub use self::order::{Late, Options, Progress, Records, Unreadable};
use self::record::{Batch, Fields};
pub use self::record::{Reason, Record};
use self::text::{COMMON, Template};

/// The format of the lines of an access log.
#[derive(Clone, Debug)]
pub struct Format(Kind);

#[derive(Clone, Debug)]
enum Kind {
    /// By the first line: JSON by its names, or else common.
    Auto,
    Text(Template),
    Json(Box<Mapping>),
}

/// Which time a log has of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clock {
    AtStart,
    AtEnd,
}

impl Format {
    /// Finds the format by the first line of each file: common, combined, or JSON of a known
    /// server.
    pub const AUTO: Self = Self(Kind::Auto);

    /// Reads a `log_format` of nginx, such as `$remote_addr [$time_local] "$request" $status`.
    ///
    /// # Errors
    /// The template has no time or no request, or two variables with nothing between them.
    pub fn nginx(template: &str) -> Result<Self, FormatError> {
        Template::new(template, false).map(Kind::Text).map(Self)
    }

    /// JSON whose fields have these names: `time=ts,address=client.ip,target=url`. The fields are
    /// `time` (at which the request arrived) or `end` (at which it was over), `address`, `method`,
    /// `target` or `request`, `host`, `status`, `bytes`, `user`, `tier`, `header.<name>`, and the
    /// duration in `seconds`, `milliseconds`, `microseconds` or `nanoseconds`.
    ///
    /// # Errors
    /// A field is not known, or there is no time or no target.
    pub fn json(names: &str) -> Result<Self, FormatError> {
        Mapping::new(names).map(Box::new).map(Kind::Json).map(Self)
    }

    /// The format itself, or the one that the first line of a file shows.
    fn for_line(&self, line: &[u8]) -> Self {
        match self.0 {
            Kind::Auto if line.trim_ascii_start().starts_with(b"{") => {
                Self(Kind::Json(Box::new(Mapping::detect(line))))
            }
            Kind::Auto => Self::common(),
            _ => self.clone(),
        }
    }

    fn common() -> Self {
        Template::new(COMMON, true).map_or(Self::AUTO, |common| Self(Kind::Text(common)))
    }

    /// The names of the header fields that lines have.
    fn headers(&self) -> &[Box<str>] {
        match &self.0 {
            Kind::Auto => &[],
            Kind::Text(template) => &template.headers,
            Kind::Json(mapping) => &mapping.headers,
        }
    }
}

/// `auto`, `common`, `combined`, `caddy`, `traefik`, `envoy`, `nginx-json`, `json:` with the names
/// of the fields, or else a `log_format` of nginx.
impl FromStr for Format {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        let json = |mapping| Ok(Self(Kind::Json(Box::new(mapping))));
        match text {
            "auto" => Ok(Self::AUTO),
            "common" | "combined" => Ok(Self::common()),
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

/// The error of a format whose description is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Neither a name nor a template.
    #[error(
        "`{0}` is not a log format; use auto, common, combined, caddy, traefik, envoy, nginx-json, \
         json:time=…,target=… or a log_format of nginx such as '$remote_addr [$time_local] …'"
    )]
    Unknown(Box<str>),
    /// A `$` without a name.
    #[error("a `$` without a name in `{0}`; write a variable of nginx, such as $remote_addr")]
    NoName(Box<str>),
    /// Two variables cannot be told apart.
    #[error("nothing separates `${0}` from the variable before it; put a text between them")]
    Adjacent(Box<str>),
    /// Without a time there is nothing to replay.
    #[error("no time in the format; add $time_local, $time_iso8601 or $msec (in JSON: time=…)")]
    NoTime,
    /// Without a target no route is found.
    #[error("no request in the format; add \"$request\" or $request_uri (in JSON: target=…)")]
    NoRequest,
    /// More than 255 header fields.
    #[error("more than 255 header fields in the format; leave out some")]
    Headers,
    /// Not a pair of names.
    #[error("`{0}` is not a pair; write field=name, such as time=ts")]
    NoPair(Box<str>),
    /// Not a field of a record.
    #[error(
        "`{0}` is not a field; use time, end, address, method, target, request, host, status, \
         bytes, user, tier, seconds, milliseconds, microseconds, nanoseconds or header.<name>"
    )]
    UnknownField(Box<str>),
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Kind::Auto => "a common, combined or JSON log",
            Kind::Text(template) if template.open => "a common or combined log",
            Kind::Text(_) => "a log of the stated log_format",
            Kind::Json(_) => "JSON lines with these names",
        })
    }
}

/// Reads the lines of a batch.
struct LineReader {
    format: Format,
    last: time::Last,
    strings: Vec<u8>,
}

impl LineReader {
    fn new(format: Format) -> Self {
        Self { format, last: time::Last::default(), strings: Vec::new() }
    }

    /// Reads all lines of the text of a batch, the first of which has the number `first`.
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
            Kind::Text(template) => template.read(batch, (start, end), number, &mut self.last),
            Kind::Json(mapping) => mapping.read(batch, (start, end), number, &mut self.strings),
            Kind::Auto => Err(Reason::Short("its format".into())),
        };
        match read {
            Ok(fields) => batch.records.push(self.counted_from_its_start(fields)),
            Err(reason) => batch.unreadable.push((number, reason)),
        }
    }

    fn counted_from_its_start(&self, mut fields: Fields) -> Fields {
        let clock = match &self.format.0 {
            Kind::Auto => Clock::AtStart,
            Kind::Text(template) => template.clock,
            Kind::Json(mapping) => mapping.clock,
        };
        if let (Clock::AtEnd, Some(duration)) = (clock, fields.duration) {
            fields.at = fields.at - duration;
        }
        fields
    }
}

#[cfg(test)]
mod tests;
