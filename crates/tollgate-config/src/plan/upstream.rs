//! Where and how the proxy forwards a route's requests.

use std::time::Duration;

use super::edits::Edits;
pub use super::endpoint::{Address, Balance, Endpoint, Protocol};
use crate::tables::TargetTlsFiles;

pub use crate::tables::HealthCheck;

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
    /// The keys of `target.timeouts` that the file has, for descriptions.
    pub own_timeouts: Vec<(&'static str, Duration)>,
    /// Files for TLS, unless the system's authorities verify the servers.
    pub tls: Option<TargetTlsFiles>,
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
            own_timeouts: Vec::new(),
            tls: None,
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

/// The time limits of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// From the last byte of the request, once there is a connection, until the head of the
    /// upstream's response.
    pub response: Duration,
    /// Between two pieces of a body, in either direction.
    pub body: Duration,
    /// Without a byte in either direction on an upgraded connection.
    pub tunnel: Duration,
}
