//! Reads headers that contain credentials.

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};

use super::KeyError;

/// Longer values are ignored, because hashing and decoding them takes time before any limit
/// applies.
const MAX_BYTES: usize = 8 * 1024;

type Found<'a, T> = Result<Option<&'a T>, KeyError>;

/// Returns a header's value if it is neither empty nor too long.
///
/// # Errors
/// The header was sent more than once. The service behind the layer reads one of the values, so
/// without an error a client could use up its key's quota, and then send the key twice.
pub(super) fn only_value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Found<'a, [u8]> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(KeyError::Ambiguous);
    }
    let value = value.as_bytes().trim_ascii();
    Ok((!value.is_empty() && value.len() <= MAX_BYTES).then_some(value))
}

pub(super) fn only_text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Found<'a, str> {
    Ok(only_value(headers, name)?.and_then(|value| str::from_utf8(value).ok()))
}

/// Returns the credentials from `Authorization: <scheme> <credentials>`. The scheme is
/// case-insensitive (RFC 9110 §11.1).
pub(super) fn authorization<'a>(headers: &'a HeaderMap, scheme: &str) -> Found<'a, str> {
    let Some((found, credentials)) =
        only_text(headers, &AUTHORIZATION)?.and_then(|text| text.split_once(' '))
    else {
        return Ok(None);
    };
    let credentials = credentials.trim_ascii();
    let named = found.eq_ignore_ascii_case(scheme) && !credentials.is_empty();
    Ok(named.then_some(credentials))
}
