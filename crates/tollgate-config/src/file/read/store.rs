use std::time::Duration;

use crate::code;
use crate::file::tables::{Memory, RateLimiter, Redis};
use crate::yaml::problem::Checked;
use crate::yaml::typed::{Either, Setting, defaults};
use tollgate::RedisStore;

use crate::plan::{RedisPlan, StorePlan, Topology};

pub(super) fn store(limiter: &RateLimiter) -> Checked<StorePlan> {
    let Either::Other(store) = limiter.store.get()? else {
        return defaults::<Memory>().map(StorePlan::Memory);
    };
    if let Some(redis) = store.redis.get()? {
        return self::redis(redis);
    }
    let memory = store.memory.value()?.ok_or_else(|| {
        store.info.location.error(
            code::NO_STORE,
            "the store is neither `memory` nor `redis`",
            "write `store: memory`, or a section `redis` with a `url`",
        )
    });
    memory.map(StorePlan::Memory)
}

fn redis(redis: &Redis) -> Checked<StorePlan> {
    let topology = match (redis.topology.value()?, redis.sentinel_master.value()?) {
        (Topology::Sentinel { .. }, Some(master)) => Topology::Sentinel { master },
        (Topology::Sentinel { .. }, None) => {
            return Err(redis.topology.error(
                code::SENTINEL,
                "a Sentinel watches servers by name, but `sentinelMaster` is missing",
                "add `sentinelMaster: …`, the name in the Sentinel's own configuration",
            ));
        }
        (topology, _) => topology,
    };
    let milliseconds = redis.timeout_ms.value()?.map(Duration::from_millis);
    let timeout = milliseconds.map_or_else(|| redis.timeout.value(), Ok)?;
    let plan = RedisPlan {
        url: redis.url.value()?,
        timeout,
        topology,
        key_secret: redis.key_secret.value()?,
        local_share: redis.local_share.value()?,
    };
    check_url(&redis.url, plan).map(StorePlan::Redis)
}

/// A valid URL may still not fit the topology.
pub(super) fn check_url(key: &Setting, plan: RedisPlan) -> Checked<RedisPlan> {
    if let Err(error) = RedisStore::builder(&plan.full_url()) {
        let error = error.to_string();
        let (error, _) = code::split(&error);
        let (what, cure) = error.split_once("; ").unwrap_or((error, "write redis://host:6379"));
        return Err(key.error(code::REDIS_URL, what, cure));
    }
    Ok(plan)
}
