//! The plan: a checked configuration as plain data.

mod connections;
pub mod files;
mod identity;
mod levels;
mod limits;
mod matching;
mod meeting;
mod rate_limits;
mod redis;
mod secret;
mod server;
mod settling;
mod store;
mod tenants;

use std::cell::LazyCell;
use std::path::PathBuf;
use std::sync::Arc;

use http::StatusCode;
use http::uri::Authority;
use tollgate::denial::Members;
use tollgate::headers::HeaderOptions;
use tollgate::key::TrustedProxies;
use tollgate::limit::{OnMissingKey, Paths};
use tollgate_proxy::path::{PathFault, PathRules, RequestPath, in_all_readings};

pub use self::connections::{Connections, TooFewFiles};
pub use self::identity::{
    ApiKeyEntry, ApiKeyHeader, ApiKeysPlan, ForwardingHeader, IdentitySource, JwksPlan, JwtPlan,
    KeyOrigin, Parameter, SubjectsPlan, ValuePlan,
};
pub use self::levels::{GroupSource, KeyPart, LevelPlan};
pub use self::limits::{
    ApiPlan, ChargePlan, CostRule, CostTable, LimitPlan, LlmPlan, PenaltyPlan, Preflights,
    QuotaPlan, RouteLimits, TenantShare, Whose,
};
pub use self::matching::{PathMatch, PathMatchError};
pub use self::meeting::{Meeting, NoClient, TenantNumbers, Unlimited};
pub use self::rate_limits::{
    Allowed, Descriptor, RateLimitDomain, RateLimitDomains, RateLimitsPlan, Rule, Unit,
    descriptor_key,
};
pub use self::redis::{RedisPlan, Topology};
pub use self::secret::Secret;
pub use self::server::{ApiWaits, DecisionApiPlan, Front, Route, Target};
pub use self::settling::{ReservePlan, SettleBy, Statuses};
pub use self::store::StorePlan;
pub use self::tenants::{
    TenantBase, TenantQuota, TenantRules, TenantSource, TenantTable, TenantTerms, TenantsPlan,
};

pub use crate::file::tables::{
    AccessLogFormat, AccessLogPlan, Admin, CertificateFiles, Expect, FaultAt, ForgiveOn, Listen,
    LogFormat, LogPlan, Memory, Requests, ResponseHeaders, TargetTlsFiles, Test, TestFile,
    Timeouts, TlsFiles, TracingPlan, Waiting, WindowBound, WorstBound,
};

#[derive(Clone, Debug)]
pub struct Plan {
    /// Where clients and other proxies connect; at least one.
    pub listen: Vec<(Front, Listen)>,
    /// The proxies that may request decisions over HTTP.
    pub forward_auth: TrustedProxies,
    /// The address for health, state and metrics, which a public listener never serves.
    pub admin: Admin,
    pub rate_limits: Option<RateLimitsPlan>,
    pub decision_api: Option<DecisionApiPlan>,
    pub timeouts: Timeouts,
    pub max_tunnels: usize,
    /// The proxies that may set `X-Forwarded-*` and `Forwarded`. From other peers, these headers
    /// are replaced.
    pub trusted_proxies: TrustedProxies,
    pub paths: PathRules,
    /// The routes; the first match counts.
    pub routes: Vec<Route>,
    /// Paths that are allowed without calling the store.
    pub exempt: Vec<PathMatch>,
    pub preflights: Preflights,
    /// The normalized path at which clients read their limits.
    pub status_path: Option<Box<str>>,
    /// The paths of gRPC services.
    pub grpc: Arc<[PathMatch]>,
    /// The sources that may identify a client; the first that finds a client counts.
    pub identity: Vec<IdentitySource>,
    /// The action for requests without a client.
    pub on_missing_key: OnMissingKey,
    pub missing_key_status: StatusCode,
    /// The levels above clients. Elsewhere a level is an index into this list.
    pub levels: Vec<LevelPlan>,
    /// The names of the tiers. Elsewhere a tier is an index into this list.
    pub tiers: Vec<String>,
    /// Tenants with their own numbers, of clients or of a level. Elsewhere an index into this list.
    pub tenants: Vec<TenantsPlan>,
    /// The blocklist, which precedes the allowlist.
    pub deny: SubjectsPlan,
    pub allow: SubjectsPlan,
    pub waiting: Waiting,
    pub store: StorePlan,
    pub headers: HeaderOptions,
    pub members: Members,
    pub log: LogPlan,
    pub access_log: Option<AccessLogPlan>,
    pub tracing: Option<TracingPlan>,
    /// All files that the configuration names. A change to their contents causes a reload.
    pub files: Vec<PathBuf>,
}

/// Whether a normalized path belongs to a declared gRPC service. Ambiguous paths never do.
pub fn is_grpc(services: &[PathMatch], path: &str) -> bool {
    services.iter().any(|service| service.matches(path)) && !Paths::is_ambiguous(path)
}

impl Plan {
    /// The first route that matches a request to a normalized path, in any of the path's readings.
    ///
    /// # Errors
    /// Two readings match different routes.
    pub fn route(&self, host: Option<&Authority>, path: &str) -> Result<Option<usize>, PathFault> {
        // Computed only if a route names a host, because most configurations have no such route.
        let host = LazyCell::new(|| host.map(|host| host.host().trim_end_matches('.')));
        in_all_readings(path, |path| {
            self.routes.iter().position(|route| {
                let is_host =
                    |wanted: &String| host.is_some_and(|host| host.eq_ignore_ascii_case(wanted));
                route.host.as_ref().is_none_or(is_host) && route.path.matches(path)
            })
        })
    }

    /// Whether requests to a path are not limited. As in the layer, a path that servers may read in
    /// different ways is never exempt. A server that does not decode the forwarded spelling could
    /// call another handler, so this spelling must match, too.
    pub fn is_exempt(&self, path: &RequestPath<'_>) -> bool {
        let is_exempt = |path: &str| {
            self.exempt.iter().any(|exempt| exempt.matches(path)) && !Paths::is_ambiguous(path)
        };
        is_exempt(&path.normal) && path.original.as_deref().is_none_or(is_exempt)
    }

    /// Whether clients read their limits at a normalized path.
    pub fn is_status(&self, path: &str) -> bool {
        self.status_path.as_deref() == Some(path)
    }

    /// Whether a limit counts by a field of the body, which a log does not contain.
    pub fn reads_body(&self, limit: &LimitPlan) -> bool {
        match limit.whose {
            Whose::Group(level) => {
                self.levels.get(level).is_some_and(|level| level.reads_body(&self.levels))
            }
            Whose::Everybody | Whose::Client => false,
        }
    }

    pub fn reserves(&self) -> bool {
        self.routes.iter().any(|route| route.limits.all().any(|limit| limit.reserve.is_some()))
    }
}
