//! Rate limiting for Tower services.
//!
//! Here is the part that speaks HTTP: the response [`Body`], the rate limit fields
//! ([`headers`]) and what a denied request gets ([`denial`]).

pub mod body;
pub mod denial;
mod grpc;
pub mod headers;

pub use body::Body;
pub use denial::{Denial, DenialResponse, Reason};
pub use headers::HeaderOptions;
