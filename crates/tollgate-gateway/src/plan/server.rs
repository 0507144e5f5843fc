use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tollgate::key::TrustedProxies;

use super::{PathMatch, RouteLimits};
use crate::proxy::{self, Upstream};

#[derive(Clone, Debug)]
pub struct Listen {
    pub addr: SocketAddr,
    pub front: Front,
    /// The certificate, if it speaks TLS.
    pub tls: Option<TlsFiles>,
    /// The balancers that must send a PROXY protocol header. Other connections are refused.
    pub proxy_protocol: Option<TrustedProxies>,
    /// The most connections at a time; others wait until one ends. `None`: as many as fit.
    pub max_connections: Option<usize>,
    /// The most connections of one address, or of one IPv6 network; further ones are closed. Without
    /// a number, a part of all.
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The chain, the server's own certificate first.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Certificate authorities, if clients must have a certificate.
    pub client_ca: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    pub upstream: proxy::Timeouts,
    /// From the first byte of a request to the end of its head.
    pub request_header: Duration,
    /// Between two requests of a client's connection.
    pub keep_alive: Duration,
    /// From SIGTERM, after which the gateway is not ready, until listeners close.
    pub drain_delay: Duration,
    /// From then until connections are cut.
    pub drain: Duration,
}

#[derive(Clone, Debug)]
pub struct Route {
    pub name: String,
    /// Only requests to this host, without port, in lower case; `None` is any.
    pub host: Option<String>,
    /// Only requests to these paths.
    pub path: PathMatch,
    /// Where they go. Without a target, other proxies ask for decisions about them.
    pub target: Option<Upstream>,
    pub limits: RouteLimits,
}
