//! Bodies on their way from the client to an upstream, and the pauses that both sides may make.

pub(crate) mod discard;
pub(crate) mod error;
pub(crate) mod request_body;
pub(crate) mod sent;
pub(crate) mod source;
pub(crate) mod timed;
pub(crate) mod upload;
pub(crate) mod whole;
