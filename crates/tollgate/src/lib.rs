//! Rate limiting for Tower services.

pub mod body;

pub use body::Body;
