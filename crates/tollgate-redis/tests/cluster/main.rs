//! The store over a Redis Cluster that the tests start and break themselves.
#![cfg(unix)]

mod conformance;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tollgate_redis::{RedisStore, RedisStoreBuilder};
use tollgate_test_servers::Cluster;

/// Many servers share this machine with each other.
const PATIENCE: Duration = Duration::from_secs(10);

/// Three masters and nobody to follow them.
fn masters() -> Cluster {
    Cluster::builder().replicas(0).start()
}

/// Settings of a store that asks Redis each time, in keys of its own.
fn builder(cluster: &Cluster) -> RedisStoreBuilder {
    static STORES: AtomicU32 = AtomicU32::new(0);
    let namespace = format!("store-{}", STORES.fetch_add(1, Ordering::Relaxed));
    RedisStore::builder(&cluster.url())
        .expect("a URL")
        .namespace(namespace)
        .deny_cache(Duration::ZERO)
        .timeout(PATIENCE)
}

async fn connect(builder: RedisStoreBuilder) -> RedisStore {
    let store = builder.connect().expect("settings");
    store.connected().await;
    store
}
