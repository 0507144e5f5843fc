//! Runs the conformance suite against the memory store.

use tollgate_core::Micros;
use tollgate_memory::{ManualClock, MemoryStore};
use tollgate_store_tests::{Harness, checks, store_tests};

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

mod manual_clock {
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

#[tokio::test]
#[should_panic(expected = "this check moves the store's clock")]
async fn check_fails_if_clock_cannot_move() {
    let (harness, store) = RealTime::start().await;
    checks::settle::expired_receipt_cannot_be_settled(&harness, &store).await;
}

mod real_time {
    use super::*;
    store_tests!(RealTime, real time);
}
