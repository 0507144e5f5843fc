use super::upstream::Upstream;
use super::{PathMatch, RouteLimits};

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
