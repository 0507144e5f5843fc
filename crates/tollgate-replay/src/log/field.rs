//! The facts in a log line, and the names by which formats and users call them.

use super::FormatError;

/// A fact about a request. Each format assigns its variables, columns or members to fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    /// When the request arrived.
    Time,
    /// When the response was complete.
    End,
    Date,
    /// When the response was complete, on the day of [`Date`](Self::Date).
    TimeOfDay,
    Address,
    /// An address with a port, which may follow an IPv6 address without brackets.
    Peer,
    /// `X-Forwarded-For` in a log without addresses. A proxy appends its peer, so the last entry
    /// counts as the address.
    Forwarded(u8),
    User,
    Tier,
    /// `GET /path HTTP/1.1`
    Request,
    Method,
    Target,
    /// The part of the target after the question mark.
    Query,
    Host,
    Status,
    Bytes,
    /// A duration with its unit in nanoseconds. Several durations are added.
    Duration(u32),
    Model,
    /// Tokens by kind: input, cached input, output.
    Tokens(u8),
    Header(u8),
    Skip,
}

impl Field {
    /// Finds the field for a variable in an nginx `log_format`. Names that start with `:` do not exist
    /// in nginx, and name the fields of other servers' formats.
    pub(super) fn of_variable(
        name: &str,
        headers: &mut Vec<Box<str>>,
    ) -> Result<Self, FormatError> {
        let name = match name {
            "remote_addr" => "address",
            "remote_user" => "user",
            // nginx logs the time at which the response was complete.
            "time_local" | "time_iso8601" | "msec" => "end",
            "request_method" => "method",
            "request_uri" => "target",
            "body_bytes_sent" => "bytes",
            "request_time" => "seconds",
            "http_host" => "host",
            "request" | "status" | "host" | "tier" => name,
            ":address:port" => return Ok(Self::Peer),
            ":forwarded" => return Ok(Self::Forwarded(header("x-forwarded-for", headers)?)),
            _ => match (name.strip_prefix(':'), name.strip_prefix("http_")) {
                (Some(name), _) => name,
                (_, Some(name)) => {
                    return Ok(Self::Header(header(&name.replace('_', "-"), headers)?));
                }
                (None, None) => return Ok(Self::Skip),
            },
        };
        Self::of_name(name, headers)
    }

    /// Finds the field for a name in `--log json:`.
    pub(super) fn of_name(name: &str, headers: &mut Vec<Box<str>>) -> Result<Self, FormatError> {
        Ok(match name {
            "time" => Self::Time,
            "end" => Self::End,
            "address" => Self::Address,
            "user" => Self::User,
            "tier" => Self::Tier,
            "request" => Self::Request,
            "method" => Self::Method,
            "target" => Self::Target,
            "host" => Self::Host,
            "status" => Self::Status,
            "bytes" => Self::Bytes,
            "seconds" => Self::Duration(1_000_000_000),
            "milliseconds" => Self::Duration(1_000_000),
            "microseconds" => Self::Duration(1_000),
            "nanoseconds" => Self::Duration(1),
            "model" => Self::Model,
            "input_tokens" => Self::Tokens(0),
            "cached_tokens" => Self::Tokens(1),
            "output_tokens" => Self::Tokens(2),
            _ => match name.strip_prefix("header.") {
                Some(name) => Self::Header(header(name, headers)?),
                None => return Err(FormatError::UnknownField(name.into())),
            },
        })
    }

    /// Finds the field for a W3C log's column.
    pub(super) fn of_column(name: &str, all: &[&str], headers: &mut Vec<Box<str>>) -> Self {
        let has = |other| all.contains(&other);
        let of_header = name.strip_prefix("cs(").and_then(|name| name.strip_suffix(')'));
        match (name, of_header) {
            ("date", _) => Self::Date,
            ("time", _) => Self::TimeOfDay,
            ("c-ip", _) => Self::Address,
            ("cs-method", _) => Self::Method,
            ("cs-uri-stem", _) => Self::Target,
            ("cs-uri", _) if !has("cs-uri-stem") => Self::Target,
            ("cs-uri-query", _) if has("cs-uri-stem") => Self::Query,
            ("sc-status", _) => Self::Status,
            ("sc-bytes", _) => Self::Bytes,
            ("cs-username", _) => Self::User,
            // CloudFront writes seconds, and IIS milliseconds.
            ("time-taken", _) if has("x-edge-location") => Self::Duration(1_000_000_000),
            ("time-taken", _) => Self::Duration(1_000_000),
            ("x-host-header" | "cs-host", _) => Self::Host,
            // In CloudFront, `cs(Host)` is the name of the distribution.
            (_, Some("Host")) if has("x-host-header") => Self::Skip,
            (_, Some("Host")) => Self::Host,
            (_, Some(name)) => header(name, headers).map_or(Self::Skip, Self::Header),
            // In IIS, the user names columns for further headers.
            _ if name.eq_ignore_ascii_case("x-forwarded-for") => {
                header(name, headers).map_or(Self::Skip, Self::Header)
            }
            _ => Self::Skip,
        }
    }

    /// Checks that a format has the fields without which no request can be replayed.
    pub(super) fn check(all: &[Self]) -> Result<(), FormatError> {
        let has = |field, other| all.contains(&field) || all.contains(&other);
        if !has(Self::Time, Self::End) {
            Err(FormatError::NoTime)
        } else if !has(Self::Request, Self::Target) {
            Err(FormatError::NoRequest)
        } else if !has(Self::Request, Self::Method) {
            Err(FormatError::NoMethod)
        } else {
            Ok(())
        }
    }

    /// Whether a readable value shows that the format is right.
    pub(super) const fn is_checked(self) -> bool {
        matches!(
            self,
            Self::Time
                | Self::End
                | Self::TimeOfDay
                | Self::Address
                | Self::Peer
                | Self::Forwarded(_)
                | Self::Request
                | Self::Status
                | Self::Bytes
                | Self::Duration(_)
        )
    }
}

/// Finds a header's number, and adds its name if necessary.
fn header(name: &str, headers: &mut Vec<Box<str>>) -> Result<u8, FormatError> {
    let known = headers.iter().position(|other| other.eq_ignore_ascii_case(name));
    let number = u8::try_from(known.unwrap_or(headers.len())).map_err(|_| FormatError::Headers)?;
    if known.is_none() {
        headers.push(name.into());
    }
    Ok(number)
}
