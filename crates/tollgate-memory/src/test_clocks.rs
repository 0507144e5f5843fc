//! Clocks for tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;
use tollgate_core::{Micros, Timestamp};

use crate::clock::{Clock, saturating};

/// A clock for tests that changes only when the test moves it. Clones move together.
///
/// ```
/// use std::time::Duration;
///
/// use tollgate_core::Timestamp;
/// use tollgate_memory::{Clock, ManualClock};
///
/// let clock = ManualClock::at(Timestamp::from_micros(1_000));
/// clock.advance(Duration::from_micros(500));
/// assert_eq!(clock.now(), Timestamp::from_micros(1_500));
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// Creates a clock that returns `now`.
    pub fn at(now: Timestamp) -> Self {
        Self(Arc::new(AtomicU64::new(now.as_micros())))
    }

    /// Moves the clock forward by a `Duration` or `Micros`.
    pub fn advance(&self, span: impl Into<Micros>) {
        self.0.fetch_add(span.into().get(), Ordering::SeqCst);
    }

    /// Sets the clock to `now`, forward or back.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.as_micros(), Ordering::SeqCst);
    }
}

/// A clock that is set to 2024-01-01 00:00:00 UTC.
impl Default for ManualClock {
    fn default() -> Self {
        Self::at(NEW_YEAR)
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }
}

/// A clock for tests that follows tokio's clock, even while tokio's time is paused. The store and
/// the requests that wait for a limit therefore agree about the time.
///
/// ```
/// use std::time::Duration;
///
/// use tollgate_memory::{MemoryStore, TokioClock};
///
/// // In a test: `#[tokio::test(start_paused = true)]`.
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let store = MemoryStore::builder().clock(TokioClock::default()).build();
/// // An hour of quota is refilled within microseconds.
/// tokio::time::sleep(Duration::from_secs(3_600)).await;
/// # let _ = store;
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    made: Instant,
    made_at: Timestamp,
}

impl TokioClock {
    /// Creates a clock that starts at `now` and advances with tokio's time.
    pub fn at(now: Timestamp) -> Self {
        Self { made: Instant::now(), made_at: now }
    }
}

/// A clock that starts at 2024-01-01 00:00:00 UTC.
impl Default for TokioClock {
    fn default() -> Self {
        Self::at(NEW_YEAR)
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        let elapsed = saturating(self.made.elapsed().as_micros());
        self.made_at + Micros::new(elapsed)
    }
}

const NEW_YEAR: Timestamp = Timestamp::from_micros(1_704_067_200_000_000);

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tokio_clock_follows_paused_time() {
        let clock = TokioClock::default();
        assert_eq!(clock.now(), ManualClock::default().now());
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(clock.now().since(NEW_YEAR).get(), 60_000_000);
        tokio::time::advance(Duration::from_micros(7)).await;
        assert_eq!(clock.now().since(NEW_YEAR).get(), 60_000_007);
    }
}
