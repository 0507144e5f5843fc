//! Clocks for the store.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use tollgate_core::Timestamp;

/// A source of the current time. Clones return the same time.
pub trait Clock: Clone + fmt::Debug + Send + Sync + 'static {
    /// Returns the current time.
    fn now(&self) -> Timestamp;
}

/// The real time. This clock reads the system clock when it is created, and then advances with the
/// processor's cycle counter if that counter is steady.
///
/// It therefore never steps when the system clock is changed, and reading it takes half the time of
/// reading the system clock. Over weeks, it drifts from the system clock by a few parts per
/// million, and it stops while the machine is suspended. Calendar windows and `X-RateLimit-Reset`
/// are then off by the difference.
#[derive(Clone)]
pub struct SystemClock {
    counter: quanta::Clock,
    /// The counter's value at `made_at`.
    made: u64,
    made_at: Timestamp,
    rate: Rate,
}

/// A counter's microseconds per tick, times 2^[`SHIFT`](Self::SHIFT) and rounded up. The division
/// is done only once, and each read needs only a multiplication.
#[derive(Clone, Copy)]
struct Rate(u64);

impl SystemClock {
    /// Creates a clock that returns the system's time.
    pub fn new() -> Self {
        Self::counted_by(quanta::Clock::new())
    }

    fn counted_by(counter: quanta::Clock) -> Self {
        let made = counter.raw();
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let made_at = Timestamp::from_micros(saturating(since_epoch.as_micros()));
        let rate = Rate::new(counter.delta_as_nanos(0, Rate::TICKS));
        Self { counter, made, made_at, rate }
    }
}

impl Rate {
    /// The product has room for 16 µs per tick, while real counters tick tens of times per
    /// microsecond. At ten ticks per nanosecond, the rounding error is one part in 10^12.
    const SHIFT: u32 = 60;
    /// How many ticks are timed to determine the rate, with an error of one part in 10^11.
    const TICKS: u64 = 1 << 40;

    /// Creates the rate from the time in which a counter ticks [`TICKS`](Self::TICKS) times.
    fn new(nanos: u64) -> Self {
        let ticks = u128::from(Self::TICKS) * 1_000;
        Self(saturating((u128::from(nanos) << Self::SHIFT).div_ceil(ticks)))
    }

    /// Returns the number of whole microseconds in `ticks`.
    #[inline]
    fn micros(self, ticks: u64) -> u64 {
        saturating((u128::from(ticks) * u128::from(self.0)) >> Self::SHIFT)
    }
}

#[inline]
pub(crate) fn saturating(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

impl Clock for SystemClock {
    #[inline(always)]
    fn now(&self) -> Timestamp {
        // Another processor's counter may be slightly behind the value read for `made_at`.
        let ticks = self.counter.raw().saturating_sub(self.made);
        let micros = self.made_at.as_micros().saturating_add(self.rate.micros(ticks));
        Timestamp::from_micros(micros)
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

tollgate_core::debug_fields!(SystemClock, made_at);

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The system clock advances while the counter stands still, as if it had stepped.
    #[test]
    fn system_clock_steps_change_nothing() {
        let (counter, ticks) = quanta::Clock::mock();
        ticks.increment(1_000);
        let clock = SystemClock::counted_by(counter);
        let (made, stepped) = (clock.now(), SystemTime::now());
        while SystemTime::now() < stepped + Duration::from_micros(10) {}
        assert_eq!(clock.now(), made);
        ticks.increment(7_000);
        assert_eq!(clock.now().since(made).get(), 7);
        // Another processor's counter may be behind.
        ticks.decrement(7_500);
        assert_eq!(clock.now(), made);
    }

    #[test]
    fn tick_conversion_is_exact_to_the_microsecond() {
        // In ticks per second: the slowest rate that fits, then ARM, nanoseconds, and x86.
        for hertz in [70_000, 1_000_000, 24_000_000, 1_000_000_000, 3_187_201_000, 10_000_000_000] {
            let nanos = u128::from(Rate::TICKS) * 1_000_000_000 / hertz;
            let rate = Rate::new(u64::try_from(nanos).unwrap());
            for exponent in 0..=17 {
                let ticks = 10_u64.pow(exponent);
                let exact = u128::from(ticks) * nanos / u128::from(Rate::TICKS) / 1_000;
                let micros = u128::from(rate.micros(ticks));
                let slack = u128::from(ticks / 10_u64.pow(16));
                assert!(
                    micros >= exact && micros <= exact + 1 + slack,
                    "{ticks} at {hertz}: {micros}"
                );
            }
        }
    }
}
