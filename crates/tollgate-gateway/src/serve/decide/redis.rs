//! Redis, and the local store while Redis is down.

use tollgate::store::Fallback;
use tollgate::{MemoryStore, RedisStore, StoreExt};

use tollgate_config::plan::RedisPlan;

pub(crate) type RedisOrLocal = Fallback<RedisStore, MemoryStore>;

/// Starts to connect without waiting. Must be called in a tokio runtime.
pub(crate) fn shared(plan: &RedisPlan) -> Result<RedisOrLocal, String> {
    let store = connect(plan)?.or_local(MemoryStore::new());
    let Some((numerator, denominator)) = plan.local_share else { return Ok(store) };
    store.with_share(numerator, denominator).map_err(|error| error.to_string())
}

/// Returns unspent leases, so other gateways need not wait until they expire. Each call to Redis
/// has its own deadline.
pub(crate) async fn return_leases(store: &RedisOrLocal) {
    store.get_ref().return_leases().await;
}

/// Starts to connect without waiting, and without a local store for outages. Must be called in a
/// tokio runtime.
pub fn connect(plan: &RedisPlan) -> Result<RedisStore, String> {
    let wrong = |error: &dyn std::fmt::Display| format!("store: {error}");
    let redis = RedisStore::builder(&plan.full_url()).map_err(|error| wrong(&error))?;
    let mut redis = redis.timeout(plan.timeout);
    if let Some(secret) = &plan.key_secret {
        redis = redis.secret(secret.reveal());
    }
    redis.connect().map_err(|error| wrong(&error))
}
