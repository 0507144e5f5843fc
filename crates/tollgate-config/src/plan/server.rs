use std::net::SocketAddr;
use std::time::Duration;

use tollgate::key::TrustedProxies;

use super::tls::TlsFiles;
use super::upstream::{self, Upstream};
use super::{PathMatch, RouteLimits};

#[derive(Clone, Debug)]
pub struct Listen {
    pub addr: SocketAddr,
    pub front: Front,
    /// The certificates, if the listener uses TLS.
    pub tls: Option<TlsFiles>,
    /// The balancers that must send a PROXY protocol header. Other peers are rejected.
    pub proxy_protocol: Option<TrustedProxies>,
    /// The maximum number of connections; further clients wait. `None` means as many as fit.
    pub max_connections: Option<usize>,
    /// The maximum number of connections from one address or IPv6 network; further connections are
    /// closed. `None` means a fraction of all connections.
    pub max_connections_per_address: Option<usize>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Front {
    #[default]
    Proxy,
    ForwardAuth,
    RateLimitService,
}

impl Front {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Proxy => "listen",
            Self::ForwardAuth => "forwardAuth",
            Self::RateLimitService => "rateLimitService",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    pub upstream: upstream::Timeouts,
    /// From a request's first byte to the end of its head.
    pub request_header: Duration,
    /// Between two requests on a client's connection.
    pub keep_alive: Duration,
    /// From SIGTERM, after which the gateway is not ready, until the listeners close.
    pub drain_delay: Duration,
    /// From then until open connections are aborted.
    pub drain: Duration,
}

#[derive(Clone, Debug)]
pub struct Route {
    pub name: String,
    /// Only requests to this host, without a port and in lowercase; `None` means any host.
    pub host: Option<String>,
    /// Only requests to these paths.
    pub path: PathMatch,
    /// Where requests are forwarded. Without a target, other proxies request decisions.
    pub target: Option<Upstream>,
    pub limits: RouteLimits,
}
