//! A clock that gives limits the same load at any speed.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tollgate::store::{Clock, Micros, SystemClock, Timestamp};

/// A clock that advances by a step after a fixed number of reads. Each read also reads the real
/// clock, because the measured time must include that cost. All requests have the same key, and
/// its lock is held while the clock is read, so plain loads and stores suffice.
#[derive(Clone, Debug)]
pub(crate) struct Ticking {
    real: SystemClock,
    inner: Arc<Inner>,
    reads: u32,
    step: Micros,
}

#[derive(Debug)]
struct Inner {
    now: AtomicU64,
    /// The reads until the next step.
    left: AtomicU32,
}

impl Ticking {
    /// Advances by `step` at every `reads`-th read.
    pub(crate) fn each(reads: u32, step: Micros) -> Self {
        let real = SystemClock::new();
        let now = AtomicU64::new(real.now().as_micros());
        Self { real, inner: Arc::new(Inner { now, left: AtomicU32::new(reads) }), reads, step }
    }
}

impl Clock for Ticking {
    // Like the system clock.
    #[inline(always)]
    fn now(&self) -> Timestamp {
        black_box(self.real.now());
        let Inner { now, left } = &*self.inner;
        let time = now.load(Ordering::Relaxed);
        let more = left.load(Ordering::Relaxed).saturating_sub(1);
        if more == 0 {
            now.store(time + self.step.get(), Ordering::Relaxed);
        }
        left.store(if more == 0 { self.reads } else { more }, Ordering::Relaxed);
        Timestamp::from_micros(time)
    }
}
