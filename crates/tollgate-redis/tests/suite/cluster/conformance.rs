//! Runs the conformance suite of all stores against three masters.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use tollgate_core::Micros;
use tollgate_redis::RedisStore;
use tollgate_store_tests::{Harness, store_tests};
use tollgate_test_servers::Cluster;

use super::{builder, connect, masters};

/// One Cluster for all checks, each with separate keys.
static CLUSTER: LazyLock<Cluster> = LazyLock::new(masters);

/// Decades ahead, because keys expire by the servers' own time, which must not reach this time.
const START: u64 = 4_000_000_000_000_000;

/// A store with a manual clock, which also sets the script's time.
struct ManualClock(Arc<AtomicU64>);

impl Harness for ManualClock {
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

store_tests!(ManualClock, several machines);
