//! Tenants' numbers in Redis.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tollgate::RedisStore;
use tollgate::store::{ReadError, RedisValues};
use tollgate::tier::{Client, ClientQuota, QuotaLookup, QuotaLookupBuilder};
use tollgate_config::plan::{RedisPlan, TenantRules};

use super::numbers::read_one;
use crate::serve::error::BuildError;

struct Values {
    values: RedisValues,
    /// A hash, or with `{tenant}` in it a string for each tenant.
    key: String,
    rules: Arc<ArcSwap<TenantRules>>,
}

/// Must be called within a runtime.
pub(super) fn lookup(
    server: &RedisPlan,
    key: &str,
    timeout: Duration,
    rules: &Arc<ArcSwap<TenantRules>>,
) -> Result<QuotaLookupBuilder, BuildError> {
    let wrong = |error: String| BuildError(format!("tenants: {error}"));
    let redis =
        RedisStore::builder(&server.full_url()).map_err(|error| wrong(error.to_string()))?;
    let values = redis.timeout(timeout).values().map_err(|error| wrong(error.to_string()))?;
    let values = Values { values, key: key.to_owned(), rules: Arc::clone(rules) };
    let values = Arc::new(values);
    Ok(QuotaLookup::builder(move |client| {
        let values = Arc::clone(&values);
        async move { values.look_up(&client).await }
    }))
}

impl Values {
    async fn look_up(&self, client: &Client) -> Result<Option<ClientQuota>, LookUpError> {
        let name = client.name.as_str();
        let found = match self.key.contains(TENANT) {
            true => self.values.get(&self.key.replace(TENANT, name)).await?,
            false => self.values.field(&self.key, name).await?,
        };
        match found {
            Some(json) => read_one(client, &json, &self.rules).map_err(LookUpError::Numbers),
            None => Ok(None),
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum LookUpError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("{0}")]
    Numbers(String),
}

const TENANT: &str = "{tenant}";
