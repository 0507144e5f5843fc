//! The plan: a checked configuration as plain data.

mod connections;
mod identity;
mod limits;
mod matching;
mod meeting;
mod preflights;
mod rate_limits;
mod secret;
mod server;
mod settling;
mod store;
mod subjects;
mod telemetry;

use std::cell::LazyCell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use http::StatusCode;
use http::uri::Authority;
use tollgate::denial::Members;
use tollgate::headers::HeaderOptions;
use tollgate::key::TrustedProxies;
use tollgate::limit::{OnMissingKey, Paths};

pub use self::connections::{Connections, TooFewFiles};
pub use self::identity::{
    ApiKeyEntry, ApiKeyPlace, ApiKeysPlan, ForwardingHeader, IdentitySource, JwksPlan, JwtPlan,
    KeyOrigin, ValuePlace, ValuePlan,
};
pub use self::limits::{
    ApiPlan, CostRule, CostTable, LimitPlan, PenaltyPlan, QuotaPlan, RouteLimits, Whose,
};
pub use self::matching::{Methods, PathMatch, PathMatchError};
pub use self::meeting::{Meeting, MissingClient, PlannedCharge, Unlimited};
pub use self::preflights::Preflights;
pub use self::rate_limits::{
    Allowed, Descriptor, RateLimitDomain, RateLimitDomains, RateLimitsPlan, Rule, Unit,
    descriptor_key,
};
pub use self::secret::Secret;
pub use self::server::{Front, Listen, Route, Timeouts, TlsFiles};
pub use self::settling::{ReservePlan, SettleBy, Statuses};
pub use self::store::{RedisPlan, StorePlan, Topology};
pub use self::subjects::SubjectsPlan;
pub use self::telemetry::{AccessLogFormat, AccessLogPlan, LogFormat, LogPlan, TracingPlan};

use crate::proxy::path::{Ambiguous, PathFault, in_all_readings};

#[derive(Clone, Debug)]
pub struct Plan {
    /// Where clients and other proxies connect; at least one.
    pub listen: Vec<Listen>,
    /// The proxies that may ask for decisions over HTTP.
    pub forward_auth: TrustedProxies,
    /// Where health, state and metrics are served, never on a public listener.
    pub admin: SocketAddr,
    /// Admin addresses of other gateways. The live page shows their streams, and their pages may read
    /// the stream of this gateway.
    pub admin_peers: Vec<String>,
    pub rate_limits: Option<RateLimitsPlan>,
    pub timeouts: Timeouts,
    pub max_tunnels: usize,
    /// The proxies whose `X-Forwarded-*` and `Forwarded` are trusted and passed on. Other headers
    /// are replaced.
    pub trusted_proxies: TrustedProxies,
    pub ambiguous: Ambiguous,
    /// Where requests go; the first that matches.
    pub routes: Vec<Route>,
    /// Requests that pass without asking the store.
    pub exempt: Vec<PathMatch>,
    pub preflights: Preflights,
    /// The paths of gRPC services.
    pub grpc: Arc<[PathMatch]>,
    /// The sources of a client; the first that finds one counts.
    pub identity: Vec<IdentitySource>,
    /// The action for requests without a client.
    pub on_missing_key: OnMissingKey,
    pub missing_key_status: StatusCode,
    /// The names of the tiers. Elsewhere a tier is an index into this list.
    pub tiers: Vec<String>,
    /// The blocklist. It goes before the allowlist.
    pub deny: SubjectsPlan,
    pub allow: SubjectsPlan,
    /// The most waiting requests, and the most bytes of them.
    pub waiting: (usize, usize),
    pub store: StorePlan,
    pub headers: HeaderOptions,
    pub members: Members,
    pub log: LogPlan,
    pub access_log: Option<AccessLogPlan>,
    pub tracing: Option<TracingPlan>,
    /// All files that the configuration names. A change of their contents causes a reload.
    pub files: Vec<PathBuf>,
}

/// Returns whether a path in normal form belongs to a declared gRPC service. An ambiguous path never
/// does.
pub fn is_grpc(services: &[PathMatch], path: &str) -> bool {
    services.iter().any(|service| service.matches(path)) && !Paths::is_ambiguous(path)
}

impl Plan {
    /// The route that a request to a path in normal form takes: the first that matches it, in any
    /// of its readings.
    ///
    /// # Errors
    /// Two readings take different routes.
    pub fn route(&self, host: Option<&Authority>, path: &str) -> Result<Option<usize>, PathFault> {
        // Computed only if a route names a host. Most configurations have no such route.
        let host = LazyCell::new(|| host.map(|host| host.host().trim_end_matches('.')));
        in_all_readings(path, |path| {
            self.routes.iter().position(|route| {
                let is_host =
                    |wanted: &String| host.is_some_and(|host| host.eq_ignore_ascii_case(wanted));
                route.host.as_ref().is_none_or(is_host) && route.path.matches(path)
            })
        })
    }

    /// Whether requests to a path in normal form are not limited. A path that servers read in
    /// different ways is never exempt, as in the layer.
    pub fn is_exempt(&self, path: &str) -> bool {
        self.exempt.iter().any(|exempt| exempt.matches(path)) && !Paths::is_ambiguous(path)
    }

    pub fn reserves(&self) -> bool {
        self.routes.iter().any(|route| route.limits.all().any(|limit| limit.reserve.is_some()))
    }
}
