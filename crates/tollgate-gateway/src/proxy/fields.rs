//! The number of header fields, and the spellings of their names.

/// The maximum number of headers in a request, and of trailers. hyper has the same limit for
/// HTTP/1, but none for HTTP/2.
pub(super) const MOST_FIELDS: usize = 100;

/// Whether two names are equal if `_` and `-` are the same character, because some services read
/// both alike.
pub(super) fn is_spelling(name: &str, known: &str) -> bool {
    let dashed = |byte| if byte == b'_' { b'-' } else { byte };
    name.len() == known.len() && name.bytes().map(dashed).eq(known.bytes().map(dashed))
}
