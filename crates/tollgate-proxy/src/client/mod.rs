//! Connections of clients: their requests, time limits and last bytes.
//!
//! | file | content |
//! |---|---|
//! | `serve.rs` | serves a connection's requests |
//! | `activity.rs` | what a connection does, and when it should close |
//! | `lifetime.rs` | closes a connection in time |
//! | `watched.rs` | the connection's bytes |
//! | `half_close.rs`, `linger.rs` | clients that stop sending, or do not stop |
//! | `invalid_head.rs` | the answer to a head that hyper cannot parse |
//! | `streams.rs` | the streams of an HTTP/2 connection |

pub(crate) mod activity;
mod half_close;
pub(crate) mod invalid_head;
pub(crate) mod lifetime;
mod linger;
pub(crate) mod serve;
mod streams;
mod watched;
