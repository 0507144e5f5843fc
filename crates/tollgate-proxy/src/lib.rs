//! A reverse proxy: forwards a request to an upstream, and returns its response. It knows no limits
//! and no configuration file.
//!
//! | module | content |
//! |---|---|
//! | [`settings`] | plain data about where and how requests are forwarded |
//! | [`edits`], [`header_names`] | configured changes to headers, and headers that no file may change |
//! | [`path`] | normalizes paths, and finds their other readings |
//! | `head` | checks a request's head before routes and limits read it, and changes headers and URLs on the way |
//! | `flow` | bounds the body bytes that wait to be sent |
//! | `body` | passes bodies on piece by piece, with limits on their size and pauses |
//! | `upstream` | selects a server, sends the request over a pooled connection, and returns the response |
//! | `client` | serves a client's connection, and closes it after its time limits |
//!
//! The last five need the feature `server`. Otherwise, the crate has no clock, I/O or runtime, so a
//! configuration can contain its settings.

#![expect(missing_docs, reason = "a part of the gateway, and not a library for other programs")]

pub mod edits;
pub mod header_names;
pub mod path;
pub mod settings;

#[cfg(feature = "server")]
mod body;
#[cfg(feature = "server")]
mod client;
#[cfg(feature = "server")]
mod flow;
#[cfg(feature = "server")]
mod head;
#[cfg(feature = "server")]
mod meter;
#[cfg(feature = "server")]
mod upstream;

#[cfg(feature = "server")]
#[cfg(test)]
mod tests;

#[cfg(feature = "server")]
pub use self::{
    body::error::BodyError,
    body::request_body::{ReadAhead, ReadBody, RequestBody},
    body::upload::Received,
    client::activity::Patience,
    client::invalid_head::{ChooseAnswer, FaultAnswer, invalid_head},
    client::lifetime::LAST_CALL,
    client::serve::{HeadLimits, Serving, serve},
    flow::Guard,
    head::connection::Connection,
    head::entrance::{Meaning, admit},
    head::fault::Fault,
    head::fields::{MOST_FIELDS, MOST_HEAD_BYTES},
    head::via::Via,
    meter::Meter,
    upstream::client::Clients,
    upstream::connector::{RootsError, tls_config},
    upstream::failures::Failures,
    upstream::forward::Forward,
    upstream::outgoing::{Admitted, Common},
    upstream::pool::become_worker,
    upstream::response::ResponseBody,
    upstream::tunnel::{TUNNELS, Tunnels},
};
