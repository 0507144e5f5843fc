//! Reads headers that contain credentials.

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};

/// Longer values are ignored, because hashing and decoding them takes time before any limit
/// applies.
const MAX_BYTES: usize = 8 * 1024;

/// Returns a header's value if it was sent exactly once and is not empty. If there are several
/// values, the service behind the layer might read a different value.
pub(super) fn only_value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    let mut values = headers.get_all(name).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return None;
    };
    let value = value.as_bytes().trim_ascii();
    (!value.is_empty() && value.len() <= MAX_BYTES).then_some(value)
}

pub(super) fn only_text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    str::from_utf8(only_value(headers, name)?).ok()
}

/// Returns the credentials from `Authorization: <scheme> <credentials>`. The scheme is
/// case-insensitive (RFC 9110 §11.1).
pub(super) fn authorization<'a>(headers: &'a HeaderMap, scheme: &str) -> Option<&'a str> {
    let (found, credentials) = only_text(headers, &AUTHORIZATION)?.split_once(' ')?;
    let credentials = credentials.trim_ascii();
    let named = found.eq_ignore_ascii_case(scheme) && !credentials.is_empty();
    named.then_some(credentials)
}
