//! The store with a Redis Cluster, which the tests start and break themselves.
#![expect(clippy::unwrap_used, reason = "a test that finds something else has failed")]

/// Runs scenes one after another with the same three masters, because a Cluster starts slowly. Each
/// store has its own namespace.
macro_rules! with_one_cluster {
    ($test:ident: $($scene:ident)*) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
        async fn $test() {
            let cluster = masters();
            $(
                println!(stringify!($scene));
                $scene(&cluster).await;
            )*
        }
    };
}

mod conformance;
mod failing;
mod joining;
pub(crate) mod load;
mod moving;
mod queries;
mod several;

use std::time::Duration;

use fred::util::redis_keyslot;
use tollgate_core::{Key, Policy, Quota, StoreExt};
use tollgate_redis::{RedisStore, RedisStoreBuilder};
use tollgate_test_servers::{Cluster, RedisBuilder, until};

use crate::support::{PATIENCE, connected, separate};

/// A test fails if it waits this long for an event. Many servers share this machine, so no event
/// has to be fast.
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// Three masters without replicas, with a node timeout that a busy machine does not exceed.
fn masters() -> Cluster {
    let patient = |node: RedisBuilder| node.set("cluster-node-timeout", 60_000);
    Cluster::builder().replicas(0).each_node(patient).start()
}

/// Settings for a store that calls Redis for each request, in a separate namespace.
fn builder(cluster: &Cluster) -> RedisStoreBuilder {
    builder_at(&cluster.url())
}

fn builder_at(url: &str) -> RedisStoreBuilder {
    separate(url).deny_cache(Duration::ZERO)
}

/// Connects, and waits until each server has been checked, so the check's calls are not counted.
pub(crate) async fn connect(builder: RedisStoreBuilder) -> RedisStore {
    let store = connected(builder).await;
    let looked = || store.reports().iter().all(|report| report.version.is_some());
    tokio::task::block_in_place(|| {
        until("the servers are looked at", PATIENCE, || looked().then_some(()))
    });
    store
}

/// `limit` units in the longest window. A fixed window starts at multiples of the length since
/// 1970, so none of these starts while a test runs.
fn quota(limit: u64) -> Quota {
    Quota::new(limit, Policy::MAX_WINDOW)
}

fn policy(name: &str, limit: u64) -> Policy {
    Policy::fixed_window_counter(name, quota(limit)).expect("a quota")
}

/// Returns keys with states in a wanted slot.
fn keys(store: &RedisStore, is_wanted: impl Fn(u16) -> bool) -> impl Iterator<Item = Key> {
    let any = policy("any", 1);
    let numbers = (0..).map(|n: u32| Key::from(format!("key {n}").as_str()));
    numbers.filter(move |key| is_wanted(slot(store, &any, key)))
}

fn slot(store: &RedisStore, policy: &Policy, key: &Key) -> u16 {
    redis_keyslot(&store.name_of(policy, key))
}

/// Returns whether a slot is on a certain node, in a Cluster of three masters whose slots never
/// moved.
fn is_on(node: usize) -> impl Fn(u16) -> bool {
    move |slot| usize::from(slot) * 3 / 16_384 == node
}

async fn remaining(store: &RedisStore, policy: &Policy, key: &Key) -> u64 {
    store.peek(policy, key).await.expect("an answer").decisions()[0].remaining
}
