use std::path::PathBuf;
use std::time::Duration;

use tollgate::Policy;
use tollgate_proxy::settings::Upstream;

use super::{PathMatch, RouteLimits, Secret};
use crate::file::tables::TargetTlsFiles;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Front {
    #[default]
    Proxy,
    ForwardAuth,
    RateLimitService,
    DecisionApi,
}

impl Front {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Proxy => "listen",
            Self::ForwardAuth => "forwardAuth",
            Self::RateLimitService => "rateLimitService",
            Self::DecisionApi => "decisionApi",
        }
    }
}

/// Decisions for programs in any language.
#[derive(Clone, Debug)]
pub struct DecisionApiPlan {
    /// At least one.
    pub policies: Vec<Policy>,
    pub token: Option<Secret>,
    /// The Unix socket for programs on this machine.
    pub socket: Option<PathBuf>,
    pub waits: Option<ApiWaits>,
    pub longest_block: Option<Duration>,
}

/// Where programs may let a request wait, and for how long.
#[derive(Clone, Copy, Debug)]
pub enum ApiWaits {
    InGateway(Duration),
    InStore(Duration),
}

#[derive(Clone, Debug)]
pub struct Route {
    pub name: String,
    /// Only requests to this host, without a port and in lowercase; `None` means any host.
    pub host: Option<String>,
    /// Only requests to these paths.
    pub path: PathMatch,
    /// Where requests are forwarded. Without a target, other proxies request decisions.
    pub target: Option<Target>,
    pub limits: RouteLimits,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub upstream: Upstream,
    /// The keys of `target.timeouts` that the file has, for descriptions.
    pub own_timeouts: Vec<(&'static str, Duration)>,
    /// Files for TLS, unless the system's authorities verify the servers.
    pub tls: Option<TargetTlsFiles>,
}
