//! The store over a Redis Cluster, and behind Sentinels, that the tests start and break
//! themselves.

mod conformance;
mod failing;
mod joining;
pub(crate) mod load;
mod moving;
mod sentinel;
mod several;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fred::util::redis_keyslot;
use tollgate_core::{Key, Policy, Quota, StoreExt};
use tollgate_redis::{RedisStore, RedisStoreBuilder};
use tollgate_test_servers::{Cluster, RedisBuilder, until};

/// Many servers share this machine with each other.
const PATIENCE: Duration = Duration::from_secs(10);

/// A test that waits this long for an event fails. Many servers share this machine, so no event has
/// to come fast.
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// Three masters without replicas. No master takes another one for dead because the machine is busy.
fn masters() -> Cluster {
    let patient = |node: RedisBuilder| node.set("cluster-node-timeout", 60_000);
    Cluster::builder().replicas(0).each_node(patient).start()
}

/// Settings of a store that asks Redis each time, in keys of its own.
fn builder(cluster: &Cluster) -> RedisStoreBuilder {
    builder_at(&cluster.url())
}

fn builder_at(url: &str) -> RedisStoreBuilder {
    static STORES: AtomicU32 = AtomicU32::new(0);
    let namespace = format!("tollgate:store-{}", STORES.fetch_add(1, Ordering::Relaxed));
    RedisStore::builder(url)
        .expect("a URL")
        .namespace(namespace)
        .deny_cache(Duration::ZERO)
        .timeout(PATIENCE)
}

async fn connect(builder: RedisStoreBuilder) -> RedisStore {
    let store = builder.connect().expect("settings");
    store.connected().await;
    // The look at each server is over, so that its calls are not counted among ours.
    let looked = || store.reports().iter().all(|report| report.version.is_some());
    tokio::task::block_in_place(|| {
        until("the servers are looked at", PATIENCE, || looked().then_some(()))
    });
    store
}

/// `limit` units in the longest window that there is. A fixed window begins at a multiple of
/// itself since 1970: none of these begins while a test runs.
fn quota(limit: u64) -> Quota {
    Quota::new(limit, Policy::MAX_WINDOW)
}

fn policy(name: &str, limit: u64) -> Policy {
    Policy::fixed_window_counter(name, quota(limit)).expect("a quota")
}

/// Keys whose states are in a slot that is wanted.
fn keys(store: &RedisStore, is_wanted: impl Fn(u16) -> bool) -> impl Iterator<Item = Key> {
    let any = policy("any", 1);
    let numbers = (0..).map(|n: u32| Key::from(format!("key {n}").as_str()));
    numbers.filter(move |key| is_wanted(slot(store, &any, key)))
}

fn slot(store: &RedisStore, policy: &Policy, key: &Key) -> u16 {
    redis_keyslot(&store.name_of(policy, key))
}

/// Whether one of three masters that nothing has happened to has a slot.
fn is_on(node: usize) -> impl Fn(u16) -> bool {
    move |slot| usize::from(slot) * 3 / 16_384 == node
}

async fn remaining(store: &RedisStore, policy: &Policy, key: &Key) -> u64 {
    store.peek(policy, key).await.expect("an answer").decisions()[0].remaining
}
