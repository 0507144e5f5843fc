//! Plain data about where and how requests are forwarded.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::header::{HeaderValue, InvalidHeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme};
use rustls::ClientConfig;

use crate::edits::Edits;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    pub servers: Servers,
    pub host: Host,
    /// A prefix that is removed from paths: with `/v1`, the path `/v1/a` becomes `/a`. Starts with
    /// `/` and does not end with `/`.
    pub strip_prefix: Option<String>,
    pub request_headers: Edits,
    pub response_headers: Edits,
    pub max_body: Option<u64>,
    pub timeouts: Timeouts,
}

impl Upstream {
    pub fn to(servers: Servers, timeouts: Timeouts) -> Self {
        Self {
            servers,
            host: Host::Client,
            strip_prefix: None,
            request_headers: Edits::default(),
            response_headers: Edits::default(),
            max_body: None,
            timeouts,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Servers {
    /// At least one and at most [`Servers::MOST`].
    pub addresses: Vec<Address>,
    pub protocol: Protocol,
    pub connections: Connections,
    pub balance: Balance,
    pub passive: Passive,
    pub active: Option<HealthCheck>,
}

impl Servers {
    pub const MOST: usize = 64;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passive {
    pub failures: u32,
    pub retry_after: Duration,
}

impl Default for Passive {
    fn default() -> Self {
        Self { failures: 3, retry_after: Duration::from_secs(10) }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Host {
    /// The target's host, for an upstream that serves several hosts by name.
    #[default]
    Target,
    /// The host from the client's request, so the upstream's links lead to the gateway. Over
    /// HTTP/2, the upstream always gets the target's host.
    Client,
}

/// How connections to a server are opened and closed. Upstreams with the same settings share
/// connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Connections {
    /// The time to open a connection, including TLS.
    pub timeout: Duration,
    /// The idle time after which a connection is closed.
    pub idle: Duration,
    /// The age after which a connection gets no more requests. Each connection's own age is up to a
    /// fifth shorter, so the connections to a server do not all close at the same time.
    pub max_age: Duration,
    /// How often the server's name is looked up.
    pub lookup_interval: Duration,
}

impl Connections {
    /// The same time for everything.
    pub const fn of(time: Duration) -> Self {
        Self { timeout: time, idle: time, max_age: time, lookup_interval: time }
    }
}

/// A request's time limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// From the last byte of the request, once there is a connection, until the head of the
    /// upstream's response.
    pub response: Duration,
    /// Between two body pieces, in either direction.
    pub body: Duration,
    /// Without a byte in either direction on an upgraded connection.
    pub tunnel: Duration,
}

/// Requests that check whether a server is up. A healthy server responds with 2xx or 3xx.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    pub path: PathAndQuery,
    pub interval: Duration,
    pub timeout: Duration,
    /// After how many consecutive successes a server gets requests again.
    pub healthy: u32,
    /// After how many consecutive failures a server gets no more requests.
    pub unhealthy: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    pub endpoint: Endpoint,
    /// Prepended to each path. Empty, or starts with `/` and does not end with `/`.
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

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    pub scheme: Scheme,
    pub authority: Authority,
    pub socket: Option<Arc<Path>>,
}

impl Endpoint {
    pub fn unix(socket: &Path) -> Self {
        let authority = Authority::from_static("localhost");
        Self { scheme: Scheme::HTTP, authority, socket: Some(socket.into()) }
    }

    /// The `Host` header, without the scheme's default port.
    pub fn host_header(&self) -> Result<HeaderValue, InvalidHeaderValue> {
        let usual = if self.scheme == Scheme::HTTPS { 443 } else { 80 };
        match self.authority.port_u16() {
            Some(port) if port != usual => format!("{}:{port}", self.authority.host()).try_into(),
            _ => self.authority.host().try_into(),
        }
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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    #[default]
    RoundRobin,
    LeastBusy,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    #[default]
    Http1,
    /// HTTP/2; without TLS with prior knowledge (`h2c`). For gRPC.
    Http2,
}

/// A target's TLS settings. Settings from files with the same contents are equal.
#[derive(Clone)]
pub struct TargetTls {
    pub config: ClientConfig,
    pub contents: Arc<[Vec<u8>]>,
}

impl PartialEq for TargetTls {
    fn eq(&self, other: &Self) -> bool {
        self.contents == other.contents
    }
}

impl Eq for TargetTls {}

impl Hash for TargetTls {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.contents.hash(state);
    }
}

/// Hides the private key.
impl fmt::Debug for TargetTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TargetTls").finish_non_exhaustive()
    }
}
