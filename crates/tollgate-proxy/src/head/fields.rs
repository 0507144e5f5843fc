//! The number and size of header fields, and fields that are lists.

use bytes::Bytes;
use http::header::{Entry, HeaderMap, HeaderName, HeaderValue};

/// The maximum number of headers in a request, and of trailers. hyper has the same limit for
/// HTTP/1, but none for HTTP/2.
pub const MOST_FIELDS: usize = 100;

/// The maximum size of a request's head. hyper stops reading at this size, but accepts a larger head
/// that arrives in a single piece.
pub const MOST_HEAD_BYTES: usize = 64 << 10;

/// Appends to a list. All elements end up in one line, because some servers read only the first
/// line.
pub(super) fn append(headers: &mut HeaderMap, name: &HeaderName, element: HeaderValue) {
    match headers.entry(name) {
        Entry::Vacant(vacant) => drop(vacant.insert(element)),
        Entry::Occupied(mut lines) => {
            let lines_and_element = lines.iter().chain([&element]).map(HeaderValue::as_bytes);
            let list = lines_and_element.collect::<Vec<_>>().join(&b", "[..]);
            if let Ok(list) = HeaderValue::from_maybe_shared(Bytes::from(list)) {
                lines.insert(list);
            }
        }
    }
}
