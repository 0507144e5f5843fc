//! What a configuration means: plain data in which nothing is left to check.
//!
//! | file | holds |
//! |---|---|
//! | `limits.rs` | policies, and which requests they are about |
//! | `identity.rs` | whose quota a request uses |
//! | `matching.rs` | which paths and methods |
//! | `server.rs` | where to listen and where to forward to |
//! | `store.rs` | where quotas are kept |

mod identity;
mod limits;
mod matching;
mod secret;
mod server;
mod store;

use std::net::SocketAddr;

use tollgate::denial::Members;
use tollgate::key::TrustedProxies;
use tollgate::{HeaderOptions, OnMissingKey};

pub use self::identity::{
    ApiKeyEntry, ApiKeyPlace, ApiKeysPlan, ForwardingHeader, IdentitySource, JwksPlan, JwtPlan,
    KeyOrigin,
};
pub use self::limits::{ApiPlan, CostRule, CostTable, LimitPlan, RouteLimits, Whose};
pub use self::matching::{Methods, PathMatch, PathMatchError};
pub use self::secret::Secret;
pub use self::server::{Listen, PathRules, Protocol, Route, Target, Timeouts, TlsFiles};
pub use self::store::{RedisPlan, StorePlan, Topology};

/// Everything that the gateway does.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where clients connect; at least one.
    pub listen: Vec<Listen>,
    /// Where health, state and metrics are served, never on a public listener.
    pub admin: SocketAddr,
    /// Admin addresses of other gateways, whose streams the live page shows, and whose pages
    /// may read the stream of this one.
    pub admin_peers: Vec<String>,
    /// How long things may take.
    pub timeouts: Timeouts,
    /// The most upgraded connections at a time; others are refused.
    pub max_tunnels: usize,
    /// Whose `X-Forwarded-*` and `Forwarded` are believed and passed on; the others' are
    /// replaced.
    pub trusted_proxies: TrustedProxies,
    /// What becomes of paths with more than one reading.
    pub paths: PathRules,
    /// Where requests go; the first that matches.
    pub routes: Vec<Route>,
    /// Requests that pass without asking the store.
    pub exempt: Vec<PathMatch>,
    /// Whose quota a request uses: the first that finds somebody.
    pub identity: Vec<IdentitySource>,
    /// What becomes of requests in which no source finds anybody.
    pub on_missing_key: OnMissingKey,
    /// The names of the tiers. Elsewhere a tier is an index into this list.
    pub tiers: Vec<String>,
    /// Where quotas are kept.
    pub store: StorePlan,
    /// Which fields tell clients where they stand.
    pub headers: HeaderOptions,
    /// Members that the problem body of each denial has besides the usual ones.
    pub members: Members,
}
