//! Runs the conformance suite of all stores against the store, on a separate server.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tollgate_core::Micros;
use tollgate_redis::RedisStore;
use tollgate_store_tests::{Harness, store_tests};
use tollgate_test_servers::Redis;

use crate::rights;
use crate::support::{connected, separate};

/// Decades ahead, because keys expire by the server's own clock, which must not reach this time.
const START: u64 = 4_000_000_000_000_000;

/// One server for all checks, each with separate keys.
static SERVER: LazyLock<Redis> = LazyLock::new(Redis::start);

/// A store with a manual clock, which also sets the script's time.
struct ManualClock(Arc<AtomicU64>);

impl Harness for ManualClock {
    type Store = RedisStore;

    async fn start() -> (Self, RedisStore) {
        let time = Arc::new(AtomicU64::new(START));
        let store = connected(separate(&SERVER.socket_url()).time(Arc::clone(&time))).await;
        (Self(time), store)
    }

    fn advance(&self, span: Micros) -> bool {
        self.0.fetch_add(span.get(), Ordering::Relaxed);
        true
    }
}

mod manual_clock {
    use super::*;
    store_tests!(ManualClock, one server);
}

/// A store that uses Redis' own clock and the permissions documented in docs/deployment.md.
struct RealTime;

impl Harness for RealTime {
    type Store = RedisStore;

    async fn start() -> (Self, RedisStore) {
        // A remembered denial is less exact than the suite requires.
        let builder = separate(&rights::url(&SERVER)).deny_cache(Duration::ZERO);
        (Self, connected(builder).await)
    }
}

mod real_time {
    use super::*;
    store_tests!(RealTime, one server, real time);
}
