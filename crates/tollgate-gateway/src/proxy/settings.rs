//! What the engine is told: plain data, checked by whoever reads the configuration.

use std::time::Duration;

use http::uri::{Authority, Scheme};

/// Where requests are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// `http` or `https`.
    pub scheme: Scheme,
    /// Host and port.
    pub authority: Authority,
    /// Put in front of each path: empty, or begins with `/` and does not end with one.
    pub base_path: String,
    /// How it is spoken to.
    pub protocol: Protocol,
    /// Which `Host` it is told.
    pub host: Host,
}

/// How an upstream is spoken to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/2; without TLS with prior knowledge (`h2c`). For gRPC.
    Http2,
}

/// Which `Host` an upstream is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Host {
    /// The target's own, for an upstream that serves several hosts by name.
    #[default]
    Target,
    /// The one the client asked for, so that links the upstream makes lead back here. Over
    /// HTTP/2 it is that of the target nevertheless.
    Client,
}

/// How long each thing may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timeouts {
    /// Until a connection to the upstream stands, TLS included.
    pub connect: Duration,
    /// From the last byte of the request, once there is a connection, until the head of the
    /// upstream's response.
    pub response: Duration,
    /// Between two pieces of a body, in either direction.
    pub body: Duration,
    /// Without a byte in either direction of an upgraded connection.
    pub tunnel: Duration,
    /// How long an unused connection to the upstream is kept.
    pub pool: Duration,
}
