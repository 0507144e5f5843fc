//! Connections of clients: their requests, time limits and last bytes.
//!
//! | file | content |
//! |---|---|
//! | `serve.rs` | serves a connection's requests |
//! | `activity.rs` | a connection's activity, and when it should close |
//! | `lifetime.rs` | closes a connection after its time limits |
//! | `watched.rs` | the connection's bytes |
//! | `half_close.rs`, `linger.rs` | clients that stop sending, or do not stop |
//! | `invalid_head.rs` | the answer to a head that hyper cannot parse |
//! | `streams.rs` | an HTTP/2 connection's streams |

pub(crate) mod activity;
mod half_close;
pub(crate) mod invalid_head;
pub(crate) mod lifetime;
mod linger;
pub(crate) mod serve;
mod streams;
mod watched;
