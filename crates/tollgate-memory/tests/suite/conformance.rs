//! The memory store passes the suite of all stores.

use tollgate_core::Micros;
use tollgate_memory::{ManualClock, MemoryStore};
use tollgate_store_tests::{Harness, store_tests};

struct Memory(ManualClock);

impl Harness for Memory {
    type Store = MemoryStore<ManualClock>;

    async fn start() -> (Self, Self::Store) {
        let clock = ManualClock::default();
        (Self(clock.clone()), MemoryStore::builder().clock(clock).build())
    }

    fn advance(&self, span: Micros) -> bool {
        self.0.advance(span);
        true
    }
}

mod with_a_clock_moved_by_hand {
    use super::*;
    store_tests!(Memory);
}

struct RealTime;

impl Harness for RealTime {
    type Store = MemoryStore;

    async fn start() -> (Self, Self::Store) {
        (Self, MemoryStore::new())
    }
}

mod in_real_time {
    use super::*;
    store_tests!(RealTime);
}
