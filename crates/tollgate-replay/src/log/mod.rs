//! Reads access logs into [`Record`]s in chronological order.
//!
//! | file | holds |
//! |---|---|
//! | `record.rs` | a line, and a batch of lines |
//! | `known.rs` | the formats that servers write by default |
//! | `field.rs` | the facts in a line, and their names |
//! | `text.rs` | lines that follow a template: common, combined, `log_format` |
//! | `columns.rs` | lines with the columns that `#Fields` names: IIS, CloudFront |
//! | `json.rs` | lines that are JSON objects |
//! | `reading.rs` | values, the same for each format |
//! | `syslog.rs` | the text that syslog writes before a line |
//! | `time.rs` | times |
//! | `lines.rs` | a batch's lines, and a file's format |
//! | `input.rs` | files, compressed or not, in blocks of complete lines |
//! | `pending.rs` | lines that wait for earlier lines |
//! | `visible.rs` | safe output of client-supplied text |
//! | `order.rs` | lines from several files in chronological order |
//! | `options.rs` | the settings, and the results beside the records |
//!
//! # Times
//!
//! * A record has the time at which its request arrived. nginx, Caddy and IIS, for example, log the
//!   time at which the response was complete, so the duration is subtracted if the log contains it.
//! * If the log only has whole seconds, all requests in a second arrive at its start, in line
//!   order.
//! * A time without a zone is in [`Options::zone`].
//! * A leap second counts as the previous second.

mod columns;
mod field;
mod input;
mod json;
mod known;
mod lines;
mod options;
mod order;
mod pending;
mod reading;
mod record;
mod syslog;
mod text;
mod time;
mod visible;

use std::str::FromStr;
use std::sync::Arc;

use self::columns::{Columns, FIELDS};
pub use self::input::{Input, ReadError};
use self::json::Mapping;
use self::known::{KNOWN, SHAPES};
pub use self::options::{FileFormat, Options, Progress, Unreadable};
pub use self::order::Records;
use self::reading::Escapes;
pub use self::record::{Reason, Record, Tokens};
use self::text::Template;
pub use self::time::{UnknownZone, Zone};
pub use self::visible::Visible;

/// An access log's line format.
#[derive(Clone, Debug)]
pub struct Format(
    /// `None` detects each file's format.
    Option<Arc<Shape>>,
);

/// How a file's lines are read.
#[derive(Clone, Debug)]
struct Shape {
    /// The name in messages.
    title: &'static str,
    /// Whether the user has described the lines.
    is_own: bool,
    syntax: Syntax,
    escapes: Escapes,
    /// The names of the logged headers.
    headers: Vec<Box<str>>,
}

#[derive(Clone, Debug)]
enum Syntax {
    Text(Template),
    Columns(Columns),
    Json(Mapping),
}

impl Format {
    /// Detects a known server's default format from each file's first lines.
    pub const AUTO: Self = Self(None);
}

impl Shape {
    /// Parses `json:` with field names, a `#Fields:` line, or an nginx `log_format`.
    fn new(
        lines: &str,
        title: &'static str,
        escapes: Escapes,
        is_own: bool,
    ) -> Result<Self, FormatError> {
        let mut headers = Vec::new();
        let syntax = if let Some(names) = lines.strip_prefix(JSON) {
            Syntax::Json(Mapping::new(names, &mut headers)?)
        } else if lines.starts_with(FIELDS) {
            let mut columns = Columns::default();
            columns.directive(lines.as_bytes(), &mut headers);
            Syntax::Columns(columns)
        } else {
            Syntax::Text(Template::new(lines, !is_own, &mut headers)?)
        };
        Ok(Self { title, is_own, syntax, escapes, headers })
    }
}

/// Starts a description of JSON lines.
const JSON: &str = "json:";

/// Parses `auto`, a known format's name, or a description of the lines:
///
/// * an nginx `log_format` such as `$remote_addr [$time_local] "$request" $status`
/// * a `#Fields:` line for a W3C log without column names
/// * JSON with these field names: `json:time=ts,address=client.ip,method=verb,target=url`. The fields
///   are `time` (when the request arrived) or `end` (when it was complete), `address`, `method`,
///   `target` or `request`, `host`, `status`, `bytes`, `user`, `tier`, `header.<name>`, and the
///   duration in `seconds`, `milliseconds`, `microseconds` or `nanoseconds`. For requests to
///   language models also `model`, `input_tokens`, `cached_tokens` (a part of these) and
///   `output_tokens`.
impl FromStr for Format {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self, FormatError> {
        if text == "auto" {
            return Ok(Self::AUTO);
        }
        if let Some(known) = KNOWN.iter().position(|known| known.names.contains(&text)) {
            return Ok(Self(SHAPES.get(known).cloned()));
        }
        let (title, escapes) = if text.starts_with(JSON) {
            ("JSON lines with the stated names", Escapes::None)
        } else if text.starts_with(FIELDS) {
            ("a W3C log", Escapes::None)
        } else if text.contains('$') {
            ("a log of the stated log_format", Escapes::Backslash)
        } else {
            return Err(FormatError::Unknown(text.into()));
        };
        Ok(Self(Some(Arc::new(Shape::new(text, title, escapes, true)?))))
    }
}

/// The error for an invalid format description.
#[doc(alias = "TG0703")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The description is neither a name nor a template.
    #[error(
        "`{0}` is not a log format; use auto, {names}, json:time=…,method=…,target=…, '#Fields: …' \
         of a W3C log, or a log_format of nginx such as '$remote_addr [$time_local] …' [TG0703]",
        names = KNOWN.iter().flat_map(|known| known.names).copied().collect::<Vec<_>>().join(", ")
    )]
    Unknown(Box<str>),
    /// A `$` has no name.
    #[error(
        "a `$` without a name in `{0}`; write a variable of nginx, such as $remote_addr [TG0703]"
    )]
    NoName(Box<str>),
    /// Two adjacent variables cannot be distinguished.
    #[error("nothing separates `${0}` from the variable before it; put text between them [TG0703]")]
    Adjacent(Box<str>),
    /// There is no time, so requests cannot be replayed.
    #[error(
        "no time in the format; add $time_local, $time_iso8601 or $msec (in JSON: time=…) [TG0703]"
    )]
    NoTime,
    /// There is no target to find routes by.
    #[error(
        "no request in the format; add \"$request\" or $request_uri (in JSON: target=…) [TG0703]"
    )]
    NoRequest,
    /// There is no method to distinguish requests from lines that are not HTTP.
    #[error(
        "no method in the format; add \"$request\" or $request_method (in JSON: method=… or request=…) [TG0703]"
    )]
    NoMethod,
    /// There are more than 255 headers.
    #[error("more than 255 header fields in the format; leave out some [TG0703]")]
    Headers,
    /// An entry is not a pair of names.
    #[error("`{0}` is not a pair; write field=name, such as time=ts [TG0703]")]
    NoPair(Box<str>),
    /// A name is not a record field.
    #[error(
        "`{0}` is not a field; use time, end, address, method, target, request, host, status, \
         bytes, user, tier, seconds, milliseconds, microseconds, nanoseconds, model, input_tokens, \
         cached_tokens, output_tokens or header.<name> [TG0703]"
    )]
    UnknownField(Box<str>),
}

#[cfg(test)]
mod tests;
