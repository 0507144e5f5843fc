//! Runs the conformance suite of all stores against the store, on a separate server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate_core::Micros;
use tollgate_redis::RedisStore;
use tollgate_store_tests::{Harness, store_tests};
use tollgate_test_servers::Redis;

use crate::rights;
use crate::support::Server;

/// Decades ahead, because keys expire by the server's own clock, which must not reach this time.
const START: u64 = 4_000_000_000_000_000;

/// Many servers share this machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// A store with a manual clock, which also sets the script's time.
struct ManualClock {
    _server: Server,
    time: Arc<AtomicU64>,
}

impl Harness for ManualClock {
    type Store = RedisStore;

    async fn start() -> (Self, RedisStore) {
        let server = Server::start();
        let time = Arc::new(AtomicU64::new(START));
        let store = RedisStore::builder(&server.url())
            .expect("a URL")
            .time(Arc::clone(&time))
            .timeout(PATIENCE);
        let store = store.connect().expect("settings");
        store.connected().await;
        (Self { _server: server, time }, store)
    }

    fn advance(&self, span: Micros) -> bool {
        self.time.fetch_add(span.get(), Ordering::Relaxed);
        true
    }
}

mod manual_clock {
    use super::*;
    store_tests!(ManualClock);
}

/// A store that uses Redis' own clock and the permissions documented in docs/deployment.md.
struct RealTime {
    _server: Redis,
}

impl Harness for RealTime {
    type Store = RedisStore;

    async fn start() -> (Self, RedisStore) {
        let server = Redis::start();
        // A remembered denial is less exact than the suite requires.
        let store = RedisStore::builder(&rights::url(&server))
            .expect("a URL")
            .deny_cache(Duration::ZERO)
            .timeout(PATIENCE);
        let store = store.connect().expect("settings");
        store.connected().await;
        (Self { _server: server }, store)
    }
}

mod real_time {
    use super::*;
    store_tests!(RealTime, real time);
}
