//! Names of headers that describe the connection or the message length, in all their spellings.

use http::header::{self, CONNECTION, CONTENT_LENGTH, HeaderName, TE, TRANSFER_ENCODING, UPGRADE};

/// Whether two names are equal if `_` and `-` are the same character, because some services read
/// both alike.
pub fn is_spelling(name: &str, known: &str) -> bool {
    let dashed = |byte| if byte == b'_' { b'-' } else { byte };
    name.len() == known.len() && name.bytes().map(dashed).eq(known.bytes().map(dashed))
}

/// Whether a header describes the connection or the message length. Many services read `_` as `-`,
/// so both spellings count.
pub fn is_framing(name: &str) -> bool {
    let is_known = |known: &HeaderName| is_spelling(name, known.as_str());
    is_known(&CONTENT_LENGTH) || HOP_BY_HOP.iter().any(is_known)
}

/// The headers that apply to one connection and are not forwarded (RFC 9110 §7.6.1).
pub static HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    // These are for the client's forward proxy, but the gateway is a reverse proxy.
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("http2-settings"),
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];
