//! Where to listen and where to forward to.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tollgate::key::TrustedProxies;

use super::{PathMatch, RouteLimits};
use crate::proxy::Upstream;

/// An address that clients or other proxies connect to.
#[derive(Clone, Debug)]
pub struct Listen {
    /// The address.
    pub addr: SocketAddr,
    /// The answers that it gives.
    pub front: Front,
    /// The certificate, if it speaks TLS.
    pub tls: Option<TlsFiles>,
    /// The balancers that must send a PROXY protocol header. Other connections are refused.
    pub proxy_protocol: Option<TrustedProxies>,
    /// The most connections at a time; others wait until one ends. Without a number there are as
    /// many as fit.
    pub max_connections: Option<usize>,
    /// The most connections of one address, or of one IPv6 network; further ones are closed. Without
    /// a number, a part of all.
    pub max_connections_per_address: Option<usize>,
}

/// The answers that a listener gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Front {
    /// Those of the services behind the gateway.
    #[default]
    Proxy,
    /// Decisions, for proxies that ask over HTTP.
    ForwardAuth,
    /// Decisions, for Envoy's filter of rate limits.
    RateLimitService,
}

impl Front {
    /// Its name in the file and in the output of the program.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Proxy => "listen",
            Self::ForwardAuth => "forwardAuth",
            Self::RateLimitService => "rateLimitService",
        }
    }
}

/// A certificate chain and its private key, both PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The chain, the server's own certificate first.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Connecting to the target.
    pub connect: Duration,
    /// From the end of a request to the head of the target's response.
    pub response: Duration,
    /// Between two pieces of a body, in either direction.
    pub idle: Duration,
    /// Without a byte in either direction of an upgraded connection.
    pub tunnel: Duration,
    /// How long an unused connection to a target is kept.
    pub pool: Duration,
    /// From the first byte of a request to the end of its head.
    pub request_header: Duration,
    /// Between two requests of a client's connection.
    pub keep_alive: Duration,
    /// From the signal to stop until connections are cut.
    pub drain: Duration,
}

/// How to treat paths with more than one reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathRules {
    /// Whether `%2F`, `%5C` and broken escapes are answered with 400. Otherwise they stay as they
    /// are.
    pub reject_ambiguous: bool,
}

/// Which requests go to which target, under which limits.
#[derive(Clone, Debug)]
pub struct Route {
    /// The name, unique.
    pub name: String,
    /// Only requests to this host, without port, in lower case; `None` is any.
    pub host: Option<String>,
    /// Only requests to these paths.
    pub path: PathMatch,
    /// Where they go. Without a target, other proxies ask for decisions about them.
    pub target: Option<Upstream>,
    /// Their limits.
    pub limits: RouteLimits,
}
