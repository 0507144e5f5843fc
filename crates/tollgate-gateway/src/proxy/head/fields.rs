//! The number of header fields.

/// The maximum number of headers in a request, and of trailers. hyper has the same limit for
/// HTTP/1, but none for HTTP/2.
pub(crate) const MOST_FIELDS: usize = 100;
