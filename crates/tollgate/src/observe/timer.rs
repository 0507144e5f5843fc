use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};

/// Times each decision, but for an in-memory store only one in [`ONE_IN`]: two clock reads would
/// cost a tenth of such a decision, and recording the result costs more. It chooses at random,
/// because alternating layers would defeat a counter.
pub(crate) struct Timer {
    clock: quanta::Clock,
    is_quick: AtomicBool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Started(NonZeroU64);

const ONE_IN: u32 = 8;

impl Default for Timer {
    fn default() -> Self {
        Self { clock: quanta::Clock::new(), is_quick: AtomicBool::new(false) }
    }
}

impl Timer {
    #[inline]
    pub(crate) fn start(&self) -> Option<Started> {
        let is_timed = !self.is_quick.load(Ordering::Relaxed) || fastrand::u32(..ONE_IN) == 0;
        if is_timed { NonZeroU64::new(self.clock.raw()).map(Started) } else { None }
    }

    #[inline]
    pub(crate) fn stop(&self, started: Started, store: &str) -> f64 {
        self.is_quick.store(store == "memory", Ordering::Relaxed);
        let nanos = self.clock.delta_as_nanos(started.0.get(), self.clock.raw());
        #[expect(clippy::cast_precision_loss, reason = "only very long durations lose precision")]
        let seconds = nanos as f64 * 1e-9;
        seconds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(timer: &Timer, store: &str) -> usize {
        let start = |_: &u32| timer.start().map(|started| timer.stop(started, store)).is_some();
        (0..8_000).filter(start).count()
    }

    #[test]
    fn one_in_eight_memory_decisions_is_timed() {
        let (memory, redis) = (Timer::default(), Timer::default());
        // The standard deviation is 30.
        assert!((820..1_180).contains(&timed(&memory, "memory")));
        assert_eq!(timed(&redis, "redis"), 8_000);
        // The next timed decision notices that the store is no longer in memory.
        assert!(timed(&memory, "redis") > 7_500);
    }

    #[test]
    fn alternating_timers_are_sampled_equally() {
        let timers = [Timer::default(), Timer::default()];
        let mut counts = [0, 0];
        for turn in 0..16_000 {
            let timer = &timers[turn % 2];
            if let Some(started) = timer.start() {
                timer.stop(started, "memory");
                counts[turn % 2] += 1;
            }
        }
        assert!(counts.iter().all(|count| (820..1_180).contains(count)), "{counts:?}");
    }
}
