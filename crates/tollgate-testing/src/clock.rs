//! The simulated time.

use std::cell::Cell;
use std::future::pending;
use std::rc::Rc;
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::{Instant, advance, sleep_until};
use tollgate::store::Timestamp;
use tollgate_core::Micros;
use tollgate_replay::scenario::START;

/// How many requests were sent, and how many have reached the service.
#[derive(Clone, Debug)]
pub(crate) struct Started {
    sent: Rc<Cell<u64>>,
    reached: Rc<Cell<u64>>,
    start: Instant,
}

impl Default for Started {
    fn default() -> Self {
        Self { sent: Rc::default(), reached: Rc::default(), start: Instant::now() }
    }
}

impl Started {
    pub(crate) fn sends(&self) {
        self.sent.set(self.sent.get() + 1);
    }

    pub(crate) fn reaches(&self) {
        self.reached.set(self.reached.get() + 1);
    }

    pub(crate) fn now(&self) -> Timestamp {
        START + Micros::from(self.start.elapsed())
    }

    /// Sleeps until a request arrives. Requests that arrived earlier reach the service before.
    ///
    /// The paused clock moves from timer to timer in whole milliseconds, so a remainder of a
    /// millisecond would make all later timers late. Therefore, the clock first moves to the next
    /// full millisecond, even if no further request arrives.
    pub(crate) async fn sleep_until(&self, at: Option<Timestamp>) {
        let now = self.now();
        if at.is_some_and(|at| at <= now) {
            return;
        }
        let remainder = now.since(START).get() % MILLISECOND;
        if remainder > 0 {
            self.settle().await;
            let full = now + Micros::new(MILLISECOND - remainder);
            let to = at.map_or(full, |at| at.min(full));
            advance(to.since(now).into()).await;
        }
        while self.reached.get() < self.sent.get() {
            yield_now().await;
        }
        let Some(at) = at else { return pending().await };
        // A timer also waits until all tasks are idle.
        let after = at.since(START).get() / MILLISECOND;
        sleep_until(self.start + Duration::from_millis(after)).await;
        let now = self.now();
        if at > now {
            self.settle().await;
            advance(at.since(now).into()).await;
        }
    }

    /// Lets the service's tasks act at this instant.
    async fn settle(&self) {
        while self.reached.get() < self.sent.get() {
            yield_now().await;
        }
        for _ in 0..TURNS {
            yield_now().await;
        }
    }
}

/// The precision of tokio's timers, in microseconds.
const MILLISECOND: u64 = 1_000;
/// How often each task may run before the clock advances. Most responses need two or three turns.
const TURNS: usize = 32;
