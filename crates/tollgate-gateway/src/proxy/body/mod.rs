//! Bodies on their way from the client to an upstream, and the pauses that both sides may make.

pub(super) mod discard;
pub(super) mod error;
pub(super) mod request_body;
pub(super) mod sent;
pub(super) mod source;
pub(super) mod timed;
pub(super) mod upload;
pub(super) mod whole;
