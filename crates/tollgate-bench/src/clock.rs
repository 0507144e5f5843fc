//! A clock for limits that are to have the same load at any speed.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::{Clock, Micros, SystemClock, Timestamp};

/// A clock that moves on by one step at each look: by a microsecond, so that a log has an
/// entry for each decision, or by so much that what was taken is back. It looks at the real
/// clock as well, so that it costs no less than that. All requests are of one key, under whose
/// lock it is looked at: so it stores what it has loaded, and an atomic addition that no limiter
/// makes is not in the time.
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
