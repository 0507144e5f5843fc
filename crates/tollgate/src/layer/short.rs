//! The short forms of a layer.

use tollgate_core::{Policy, Quota};
use tollgate_memory::MemoryStore;

use super::builder::LayerError;
use super::service::RateLimitLayer;
use crate::Limit;
use crate::key::ApiKeys;

/// Short forms: a token bucket in memory, in which each request costs 1.
///
/// ```
/// use tollgate::{Limit, MemoryStore, Policy, Quota, RateLimitLayer};
///
/// let short = RateLimitLayer::per_ip(Quota::per_second(5).burst(20))?;
/// // The same in the long form:
/// let policy = Policy::token_bucket("client", Quota::per_second(5).burst(20))?;
/// let long = RateLimitLayer::builder(MemoryStore::new()).limit(Limit::per_ip(policy).cost(1)).build()?;
/// # let _ = (short, long);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl RateLimitLayer<MemoryStore> {
    /// Makes a layer with one quota that all clients share.
    ///
    /// # Errors
    /// The quota is not valid for a token bucket.
    pub fn global(quota: Quota) -> Result<Self, LayerError> {
        Self::alone(Limit::global(Policy::token_bucket("global", quota)?))
    }

    /// Makes a layer with a quota for each client address: the peer of the connection, IPv6 by /64.
    /// With axum, enable the feature `axum` and serve with
    /// `into_make_service_with_connect_info::<SocketAddr>()`.
    ///
    /// # Errors
    /// As [`global`](Self::global).
    pub fn per_ip(quota: Quota) -> Result<Self, LayerError> {
        Self::alone(Limit::per_ip(Policy::token_bucket("client", quota)?))
    }

    /// Makes a layer with a quota for each of these API keys in `X-API-Key`. A request without one
    /// of them gets 403.
    ///
    /// # Errors
    /// As [`global`](Self::global).
    pub fn per_api_key(quota: Quota, keys: ApiKeys) -> Result<Self, LayerError> {
        Self::alone(Limit::per_api_key(Policy::token_bucket("api-key", quota)?, keys))
    }

    fn alone(limit: Limit) -> Result<Self, LayerError> {
        Self::builder(MemoryStore::new()).limit(limit.cost(1)).build()
    }
}
