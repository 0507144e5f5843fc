//! A clock for limits that are to have the same load at any speed.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::store::{Clock, Micros, SystemClock, Timestamp};

/// A clock that advances by one step at each read. A step of 1 µs gives a log one entry per
/// decision; a longer step refills the charged units. Each read also reads the real clock, so that
/// the measured time includes that cost. All requests have the same key, and the clock is read
/// under the lock of that key. So a load and a store suffice, and the time does not include an
/// atomic addition.
#[derive(Clone, Debug)]
pub(crate) struct Ticking {
    real: SystemClock,
    now: Arc<AtomicU64>,
    step: Micros,
}

impl Ticking {
    pub(crate) fn by(step: Micros) -> Self {
        let real = SystemClock::new();
        Self { now: Arc::new(AtomicU64::new(real.now().as_micros())), real, step }
    }
}

impl Clock for Ticking {
    #[inline]
    fn now(&self) -> Timestamp {
        black_box(self.real.now());
        let now = self.now.load(Ordering::Relaxed);
        self.now.store(now + self.step.get(), Ordering::Relaxed);
        Timestamp::from_micros(now)
    }
}
