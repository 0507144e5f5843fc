//! The caller's trace context (W3C Trace Context, level 1).

use std::fmt;

use http::header::{HeaderMap, HeaderName};

/// The caller's trace, and the span that sent the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceParent {
    pub(crate) trace: TraceId,
    pub(crate) span: u64,
    pub(crate) is_sampled: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct TraceId(pub(crate) u128);

/// The target for request spans.
pub(crate) const REQUEST: &str = "tollgate::request";

pub(crate) const PARENT: HeaderName = HeaderName::from_static("traceparent");

#[cfg(feature = "otlp")]
pub(crate) const STATE: HeaderName = HeaderName::from_static("tracestate");

impl TraceParent {
    /// The trace in these headers. `None` if there is not exactly one `traceparent`, or if the
    /// specification does not allow its value.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut lines = headers.get_all(PARENT).iter();
        let only = lines.next().filter(|_| lines.next().is_none())?;
        Self::parse(only.as_bytes())
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let (known, more) = text.split_at_checked(LENGTH)?;
        let (version, rest) = number(known, 2)?;
        let (trace, rest) = number(rest, 32)?;
        let (span, rest) = number(rest, 16)?;
        let (flags, _) = number(rest, 2)?;
        // A later version may have additional parts, which start with a dash.
        let fits = match version {
            0 => more.is_empty(),
            0xff => false,
            _ => more.first().is_none_or(|byte| *byte == b'-'),
        };
        let span = u64::try_from(span).ok()?;
        let is_valid = fits && trace != 0 && span != 0;
        is_valid.then_some(Self { trace: TraceId(trace), span, is_sampled: flags & SAMPLED != 0 })
    }
}

/// A number with exactly `digits` lowercase digits, followed by a dash or the end.
fn number(text: &[u8], digits: usize) -> Option<(u128, &[u8])> {
    let (number, rest) = text.split_at_checked(digits)?;
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let add = |sum: u128, byte: &u8| Some(sum << 4 | u128::from(digit(*byte)?));
    let number = number.iter().try_fold(0, add)?;
    match rest {
        [] => Some((number, rest)),
        [b'-', rest @ ..] => Some((number, rest)),
        _ => None,
    }
}

const LENGTH: usize = 2 + 1 + 32 + 1 + 16 + 1 + 2;
const SAMPLED: u128 = 1;

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trace, span, is_sampled } = self;
        write!(f, "00-{trace}-{span:016x}-{:02x}", u8::from(*is_sampled))
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    #[test]
    fn valid_contexts_round_trip() {
        for (text, is_sampled) in [
            (format!("00-{TRACE}-{SPAN}-01"), true),
            (format!("00-{TRACE}-{SPAN}-00"), false),
            (format!("00-{TRACE}-{SPAN}-02"), false),
            (format!("00-{TRACE}-{SPAN}-ff"), true),
            (format!("01-{TRACE}-{SPAN}-01"), true),
            (format!("cc-{TRACE}-{SPAN}-01-what comes later"), true),
        ] {
            let parent = TraceParent::parse(text.as_bytes()).unwrap();
            assert_eq!(parent.trace.to_string(), TRACE);
            assert_eq!(format!("{:016x}", parent.span), SPAN);
            assert_eq!(parent.is_sampled, is_sampled, "{text}");
            let flags = if is_sampled { "01" } else { "00" };
            assert_eq!(parent.to_string(), format!("00-{TRACE}-{SPAN}-{flags}"));
        }
    }

    #[test]
    fn invalid_contexts_are_ignored() {
        for text in [
            String::new(),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{TRACE}-{SPAN}-"),
            format!("00-{TRACE}-{SPAN}-1"),
            format!("00-{TRACE}-{SPAN}-01-"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("01-{TRACE}-{SPAN}-01more"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("0-{TRACE}-{SPAN}-001"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{}-{SPAN}-01", "0".repeat(32)),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00-{TRACE}-{SPAN}-0G"),
            format!("00_{TRACE}_{SPAN}_01"),
            format!(" 00-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-+{}-01", &SPAN[1..]),
            format!("00-{}-{SPAN}0-01", &TRACE[1..]),
            "ü".repeat(28),
        ] {
            assert_eq!(TraceParent::parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn duplicate_headers_are_ignored() {
        let line = HeaderValue::try_from(format!("00-{TRACE}-{SPAN}-01")).unwrap();
        let mut headers = HeaderMap::new();
        assert_eq!(TraceParent::of(&headers), None);
        headers.append(PARENT, line.clone());
        assert!(TraceParent::of(&headers).is_some());
        headers.append(PARENT, line);
        assert_eq!(TraceParent::of(&headers), None);
    }
}
