//! Header fields: their number and the spellings of their names.

/// The most headers of a request, and the most trailers. hyper has the same bound for HTTP/1, and
/// none for HTTP/2.
pub(super) const MOST_FIELDS: usize = 100;

/// Whether a name is another, if `_` and `-` are the same character. Some services read both alike.
pub(super) fn is_spelling(name: &str, known: &str) -> bool {
    let dashed = |byte| if byte == b'_' { b'-' } else { byte };
    name.len() == known.len() && name.bytes().map(dashed).eq(known.bytes().map(dashed))
}
