//! What the engine is told: plain data, checked by whoever reads the configuration.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::uri::{Authority, PathAndQuery, Scheme};

use super::rewrite::Edits;

/// Where requests are sent, and how they change on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// The servers that share the requests; at least one.
    pub servers: Servers,
    /// Which `Host` they are told.
    pub host: Host,
    /// Removed from the beginning of paths: `/v1` makes `/a` of `/v1/a`. It begins with
    /// `/` and does not end with one.
    pub strip_prefix: Option<String>,
    /// Changes to the header of requests.
    pub request_headers: Edits,
    /// Changes to the header of responses.
    pub response_headers: Edits,
    /// The most bytes in the body of a request.
    pub max_body: Option<u64>,
}

impl Upstream {
    /// Forwards requests to `servers` as they are.
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

/// Servers that do the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Servers {
    /// At least one and at most [`Servers::MOST`].
    pub addresses: Vec<Address>,
    /// How they are spoken to.
    pub protocol: Protocol,
    /// Which of them gets a request.
    pub balance: Balance,
    /// When requests show that a server is down.
    pub passive: Passive,
    /// Checks beside the requests.
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
    /// Put in front of each path: empty, or begins with `/` and does not end with one.
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
    /// The socket of the system, in place of host and port.
    pub socket: Option<Arc<Path>>,
}

impl Endpoint {
    /// HTTP over a socket of the system.
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

/// When failures of requests take a server out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passive {
    /// After this number of failures in a row, the server gets no requests.
    pub failures: u32,
    /// After this time, one request is sent there to see whether the server answers again.
    pub retry_after: Duration,
}

impl Default for Passive {
    fn default() -> Self {
        Self { failures: 3, retry_after: Duration::from_secs(10) }
    }
}

/// Checks beside the requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Active {
    /// The path that is asked for, and its query. The status of a server in order is 2xx or 3xx.
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
