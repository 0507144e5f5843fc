//! The number and size of header fields.

/// The maximum number of headers in a request, and of trailers. hyper has the same limit for
/// HTTP/1, but none for HTTP/2.
pub const MOST_FIELDS: usize = 100;

/// The maximum size of a request's head. hyper stops reading at this size, but accepts a larger head
/// that arrives in a single piece.
pub const MOST_HEAD_BYTES: usize = 64 << 10;
