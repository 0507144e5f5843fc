//! The settings of the proxy: plain data, checked by the reader of the configuration.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::uri::{Authority, PathAndQuery, Scheme};

use super::rewrite::Edits;

/// The target of requests, and the changes to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// The servers that share the requests; at least one.
    pub servers: Servers,
    /// The `Host` that the servers get.
    pub host: Host,
    /// Removed from the beginning of paths: `/v1` makes `/a` of `/v1/a`. It begins with `/` and
    /// does not end with `/`.
    pub strip_prefix: Option<String>,
    /// Changes to the header of requests.
    pub request_headers: Edits,
    /// Changes to the header of responses.
    pub response_headers: Edits,
    /// The most bytes in the body of a request.
    pub max_body: Option<u64>,
}

impl Upstream {
    /// Forwards requests to `servers` without changes.
    pub fn to(servers: Servers) -> Self {
        Self {
            servers,
            host: Host::Client,
            strip_prefix: None,
            request_headers: Edits::default(),
            response_headers: Edits::default(),
            max_body: None,
        }
    }
}

/// Interchangeable servers of one upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Servers {
    /// At least one and at most [`Servers::MOST`].
    pub addresses: Vec<Address>,
    /// The protocol of the servers.
    pub protocol: Protocol,
    /// The choice of the server for a request.
    pub balance: Balance,
    /// Detects from failed requests that a server is down.
    pub passive: Passive,
    /// Health checks in addition to the requests.
    pub active: Option<Active>,
}

impl Servers {
    /// The most servers of one upstream.
    pub const MOST: usize = 64;
}

/// A server, and the paths on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// The server.
    pub endpoint: Endpoint,
    /// Put in front of each path. Empty, or begins with `/` and does not end with `/`.
    pub base_path: String,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoint, base_path } = self;
        match endpoint.socket {
            Some(_) => endpoint.fmt(f),
            None => write!(f, "{}://{endpoint}{base_path}", endpoint.scheme),
        }
    }
}

/// Where connections lead.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// `http` or `https`.
    pub scheme: Scheme,
    /// Host and port.
    pub authority: Authority,
    /// The Unix socket, instead of host and port.
    pub socket: Option<Arc<Path>>,
}

impl Endpoint {
    /// HTTP over a Unix socket.
    pub fn unix(socket: &Path) -> Self {
        let authority = Authority::from_static("localhost");
        Self { scheme: Scheme::HTTP, authority, socket: Some(socket.into()) }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.socket {
            Some(socket) => write!(f, "unix:{}", socket.display()),
            None => self.authority.fmt(f),
        }
    }
}

/// Which server gets a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// Each in turn.
    #[default]
    RoundRobin,
    /// The server with the fewest requests under way.
    LeastBusy,
}

/// When failed requests take a server out of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passive {
    /// After this number of failures in a row, the server gets no requests.
    pub failures: u32,
    /// After this time, the server gets one request as a test.
    pub retry_after: Duration,
}

impl Default for Passive {
    fn default() -> Self {
        Self { failures: 3, retry_after: Duration::from_secs(10) }
    }
}

/// Health checks in addition to the requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Active {
    /// The path and the query of a check. A healthy server answers with 2xx or 3xx.
    pub path: PathAndQuery,
    /// The time between two checks.
    pub interval: Duration,
    /// How long a check may take.
    pub timeout: Duration,
    /// After this number of checks in a row that succeed, the server gets requests again.
    pub healthy: u32,
    /// After this number of checks in a row that fail, the server gets no requests.
    pub unhealthy: u32,
}

/// The protocol of an upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/2; without TLS with prior knowledge (`h2c`). For gRPC.
    Http2,
}

/// The `Host` that an upstream gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Host {
    /// The host of the target, for an upstream that serves several hosts by name.
    #[default]
    Target,
    /// The host of the client's request, so that links of the upstream lead to the gateway. Over
    /// HTTP/2, the upstream gets the host of the target anyway.
    Client,
}

/// Time limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timeouts {
    /// For a connection to the upstream, including TLS.
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
