//! Where quotas are kept.

use std::time::Duration;

use super::super::format;
use super::super::problem::Problems;
use super::super::view::View;
use tollgate::RedisStore;

use crate::plan::{RedisPlan, Secret, StorePlan, Topology};

/// The store that a file names; in memory without one.
pub(super) fn store(limiter: &View<'_>, problems: &mut Problems) -> Option<StorePlan> {
    let Some(item) = limiter.item("store") else {
        return Some(StorePlan::MEMORY);
    };
    if item.text() == Some("memory") {
        return Some(StorePlan::MEMORY);
    }
    let view = item.view()?;
    match (view.item("memory"), view.item("redis")) {
        (_, Some(redis)) => self::redis(&redis.view()?, problems),
        (Some(memory), _) => {
            let memory = memory.view()?;
            let bytes = memory.whole("maxMegabytes")?.checked_mul(1 << 20)?;
            Some(StorePlan::Memory {
                max_keys: memory.whole("maxKeys")?.try_into().ok()?,
                max_bytes: bytes.try_into().ok()?,
            })
        }
        (None, None) => {
            problems.error(
                view.place(),
                "the store is neither `memory` nor `redis`",
                "write `store: memory`, or a section `redis` with a `url`",
            );
            None
        }
    }
}

fn redis(view: &View<'_>, problems: &mut Problems) -> Option<StorePlan> {
    let master = view.text("sentinelMaster");
    let topology = match (view.text("topology")?, master) {
        ("sentinel", Some(master)) => Topology::Sentinel { master: master.to_owned() },
        ("sentinel", None) => {
            problems.error(
                view.place_of("topology"),
                "a Sentinel watches servers by name, and `sentinelMaster` is missing",
                "add `sentinelMaster: …`, the name in the Sentinel's own configuration",
            );
            return None;
        }
        ("cluster", _) => Topology::Cluster,
        _ => Topology::Single,
    };
    if master.is_some() && !matches!(topology, Topology::Sentinel { .. }) {
        problems.warn(
            view.place_of_key("sentinelMaster"),
            "`sentinelMaster` has no effect without a Sentinel",
            "write `topology: sentinel`, or remove it",
        );
    }
    let timeout = match view.item("timeoutMs") {
        Some(_) => Duration::from_millis(view.whole("timeoutMs")?),
        None => view.span("timeout")?,
    };
    if !(SHORTEST..=LONGEST).contains(&timeout) {
        problems.error(
            view.place_of("timeout"),
            format!("a timeout of {timeout:?} is outside 1 ms to 60 s"),
            "every request waits so long while Redis is away: 50ms is plenty in one data centre",
        );
        return None;
    }
    let plan = RedisPlan {
        url: Secret::new(view.text("url")?),
        timeout,
        topology,
        key_secret: view.text("keySecret").map(Secret::new),
        local_share: format::share(view.text("localShare")?)?,
    };
    // The URL by itself makes sense, or that was said already; with the topology it may not.
    if RedisStore::builder(plan.url.reveal()).is_ok()
        && let Err(error) = RedisStore::builder(&plan.full_url())
    {
        let error = error.to_string();
        let (what, cure) = error.split_once("; ").unwrap_or((&error, "write redis://host:6379"));
        problems.error(view.place_of("url"), what.to_owned(), cure.to_owned());
        return None;
    }
    Some(StorePlan::Redis(plan))
}

const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(60);
