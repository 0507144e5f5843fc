//! The store passes the suite of all stores, over three masters.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use tollgate_core::Micros;
use tollgate_redis::RedisStore;
use tollgate_store_tests::{Harness, store_tests};
use tollgate_test_servers::Cluster;

use super::{builder, builder_at, connect, masters};
use crate::rights;

/// One for all checks, in keys of their own.
static CLUSTER: LazyLock<Cluster> = LazyLock::new(masters);

/// Its URL for a user with the rights of docs/deployment.md.
static URL: LazyLock<String> = LazyLock::new(|| rights::cluster_url(&CLUSTER));

/// Decades ahead: keys expire by the servers' own time, which must not get there.
const START: u64 = 4_000_000_000_000_000;

/// A time that is moved by hand: the script is told it.
struct MovedByHand(Arc<AtomicU64>);

impl Harness for MovedByHand {
    type Store = RedisStore;

    async fn start() -> (Self, RedisStore) {
        let time = Arc::new(AtomicU64::new(START));
        let store = connect(builder(&CLUSTER).time(Arc::clone(&time))).await;
        (Self(time), store)
    }

    fn advance(&self, span: Micros) -> bool {
        self.0.fetch_add(span.get(), Ordering::Relaxed);
        true
    }
}

mod with_a_time_moved_by_hand {
    use super::*;
    store_tests!(MovedByHand, several machines);
}

/// The time of each server.
struct RealTime;

impl Harness for RealTime {
    type Store = RedisStore;

    async fn start() -> (Self, RedisStore) {
        (Self, connect(builder_at(&URL)).await)
    }
}

mod in_real_time {
    use super::*;
    store_tests!(RealTime, several machines, real time);
}
