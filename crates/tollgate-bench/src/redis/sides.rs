//! The limiters: Tollgate, the same script without its store, and a bare counter.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use fred::interfaces::{KeysInterface, LuaInterface};
use fred::prelude::{Client, Value};
use tollgate::key::Key;
use tollgate::policy::Cost;
use tollgate::store::Charge;
use tollgate::store::RedisStoreBuilder;
use tollgate::{Policy, Quota, RedisStore, Store};
use tollgate_redis::protocol::{Batch, KeyedCharge, Reply, SHA1, ScriptAnswer, TEXT};

use crate::Failure;
use crate::redis::load::Ask;

/// A request's policies, each with its number of keys.
#[derive(Clone)]
pub(crate) struct Limits(pub(crate) Vec<(Policy, u64)>);

impl Limits {
    fn keys(&self, number: u64) -> Vec<Key> {
        self.0.iter().map(|(_, keys)| Key::new(address(number % keys))).collect()
    }
}

/// The capacity of buckets: far more than the load, so every request is allowed.
pub(crate) const CAPACITY: u64 = 1_000_000_000;

/// A bucket that is refilled at `rate` units per second. With one unit, its keys remain after a
/// request, like the keys of real quotas. With `CAPACITY` units, they expire immediately.
pub(crate) fn bucket(name: &str, rate: u64) -> Result<Policy, Failure> {
    Ok(Policy::token_bucket(name, Quota::per_second(rate).burst(CAPACITY))?)
}

/// A store that waits long enough for a busy machine.
pub(crate) fn patient(url: &str) -> Result<RedisStoreBuilder, Failure> {
    Ok(RedisStore::builder(url)?.timeout(Duration::from_secs(5)))
}

pub(crate) async fn connected(store: RedisStoreBuilder) -> Result<RedisStore, Failure> {
    let store = store.connect()?;
    store.connected().await;
    Ok(store)
}

/// The key for a number, the same for all limiters.
pub(crate) fn address(number: u64) -> String {
    format!("10.0.{number:09}")
}

/// Tollgate's store.
pub(crate) struct Tollgate {
    pub(crate) store: RedisStore,
    pub(crate) limits: Limits,
}

impl Ask for Tollgate {
    async fn ask(&self, number: u64) -> Result<bool, Failure> {
        let keys = self.limits.keys(number);
        let charges: Vec<_> = self
            .limits
            .0
            .iter()
            .zip(&keys)
            .map(|((policy, _), key)| Charge::new(policy, key, Cost::ONE))
            .collect();
        Ok(self.store.decide(&charges).await?.is_admitted())
    }
}

/// The same script with a call per request, through a plain client.
pub(crate) struct OneEach {
    pub(crate) client: Client,
    pub(crate) limits: Limits,
    /// Whether each policy has its own call.
    pub(crate) apart: bool,
    nonce: AtomicU64,
}

impl OneEach {
    pub(crate) async fn new(client: Client, limits: Limits, apart: bool) -> Result<Self, Failure> {
        let _: Value = client.script_load(TEXT).await?;
        Ok(Self { client, limits, apart, nonce: AtomicU64::new(0) })
    }

    async fn call(&self, lines: &[KeyedCharge<'_>]) -> Result<bool, Failure> {
        let mut batch = Batch::new(self.nonce.fetch_add(1, Ordering::Relaxed));
        batch.decide(lines)?;
        let keys: Vec<fred::types::Key> = batch.keys().map(fred::types::Key::from).collect();
        let args = batch.args(None).into_iter().map(|arg| Value::Bytes(Bytes::from(arg)));
        let args: Vec<Value> = args.collect();
        let reply: Bytes = self.client.evalsha(SHA1, keys, args).await?;
        let Reply { rows, .. } = batch.parse(&reply)?;
        match rows.first() {
            Some(ScriptAnswer::Verdict(verdict, _)) => Ok(verdict.is_admitted()),
            other => Err(format!("the script returned {other:?}").into()),
        }
    }
}

impl Ask for OneEach {
    async fn ask(&self, number: u64) -> Result<bool, Failure> {
        let keys = self.limits.keys(number);
        let keys = self.limits.0.iter().zip(keys).map(|((policy, _), key)| {
            (format!("{{{}}}:{}", String::from_utf8_lossy(&key.as_bytes()), policy.name()), policy)
        });
        let keys: Vec<_> = keys.collect();
        let lines: Vec<_> = keys
            .iter()
            .map(|(key, policy)| KeyedCharge::new(key.as_bytes(), policy, Cost::ONE))
            .collect();
        if !self.apart {
            return self.call(&lines).await;
        }
        let mut admitted = true;
        for line in lines.chunks(1) {
            admitted &= self.call(line).await?;
        }
        Ok(admitted)
    }
}

/// The fastest possible counter in Redis: INCR through a plain client.
pub(crate) struct Incr {
    pub(crate) client: Client,
    pub(crate) keys: u64,
}

impl Ask for Incr {
    async fn ask(&self, number: u64) -> Result<bool, Failure> {
        let _: i64 = self.client.incr(format!("incr:{}", number % self.keys)).await?;
        Ok(true)
    }
}
