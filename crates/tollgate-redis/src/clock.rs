//! The clock of this process: ends leases and remembered denials. Decisions use the clock of Redis.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::ticket::Leased;

/// Microseconds since some instant, the same for all that a store holds and remembers.
pub(crate) type Moment = u64;

/// A clock that no one can set, and that goes on while the machine is suspended.
///
/// [`Instant`] and the timers of tokio stand still meanwhile, and Redis does not: what was leased
/// for a second before an hour of sleep has ended, and what was denied may pass. A virtual machine
/// that its host stops may not notice. Then only the size of what it holds bounds the error.
///
/// Deadlines and pauses between attempts may stand still too: a request that slept is decided
/// within its timeout after the sleep, or refused by Redis as late and sent once more. How long a
/// receipt or a permit counts is for Redis alone to decide.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock {
    /// Only tests have a time of their own.
    by_hand: Option<Arc<AtomicU64>>,
    /// Whether Redis goes by that one too, so that nothing lies between the two clocks.
    is_redis: bool,
    /// In simulations, the clock above is added to the time since this instant.
    runs_since: Option<Instant>,
}

impl Clock {
    /// A clock that a test moves.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn by_hand(time: Arc<AtomicU64>, is_redis: bool) -> Self {
        Self { by_hand: Some(time), is_redis, runs_since: None }
    }

    /// A clock that runs with tokio's, and also counts the time in which the machine was `asleep`.
    #[cfg(feature = "test-util")]
    pub(crate) fn of_timers(asleep: Arc<AtomicU64>) -> Self {
        Self { by_hand: Some(asleep), is_redis: false, runs_since: Some(Instant::now()) }
    }

    pub(crate) fn now(&self) -> Moment {
        match &self.by_hand {
            None => machine::now(),
            Some(time) => {
                let runs_for = self.runs_since.map(|since| since.elapsed().as_micros());
                let runs_for = u64::try_from(runs_for.unwrap_or_default()).unwrap_or(u64::MAX);
                time.load(Ordering::SeqCst).saturating_add(runs_for)
            }
        }
    }

    /// The time of a block by this clock. It counts from before the call was sent, and in Redis from
    /// a later instant.
    pub(crate) fn span(&self, leased: &Leased) -> Span {
        let (start, lasts) = (leased.sent, leased.granted.lasts.get());
        let margin = if self.is_redis { 0 } else { lasts.div_ceil(MARGIN) };
        Span {
            start,
            last: start.saturating_add(lasts - margin),
            lapses: start.saturating_add(lasts),
        }
    }

    /// The instant of a moment, for timers. `None` for a clock that a test moves. A timer is late
    /// after the machine was suspended, so read the clock again after it.
    pub(crate) fn instant(&self, moment: Moment) -> Option<Instant> {
        if self.by_hand.is_some() && self.runs_since.is_none() {
            return None;
        }
        Instant::now().checked_add(Duration::from_micros(moment.saturating_sub(self.now())))
    }
}

/// The time of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) start: Moment,
    /// The last moment at which units may be spent.
    pub(crate) last: Moment,
    /// When Redis charges the block in full, if both clocks run at one rate.
    pub(crate) lapses: Moment,
}

/// A replica spends no units in the last sixth of a block.
///
/// NTP slews a clock by up to a twelfth (83 333 ppm, chrony's default bound). If Redis' clock runs
/// faster and this clock slower, a block ends in Redis after 11/13 of its time here.
const MARGIN: u64 = 6;

#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
mod machine {
    use rustix::time::{ClockId, clock_gettime};

    #[cfg(not(target_vendor = "apple"))]
    pub(super) const CLOCK: ClockId = ClockId::Boottime;
    /// There it counts sleep as well.
    #[cfg(target_vendor = "apple")]
    pub(super) const CLOCK: ClockId = ClockId::Monotonic;

    pub(super) fn now() -> super::Moment {
        let time = clock_gettime(CLOCK);
        // Neither is negative: it counts from the start of the machine.
        let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
        let nanos = u64::try_from(time.tv_nsec).unwrap_or_default();
        seconds.saturating_mul(1_000_000).saturating_add(nanos / 1_000)
    }
}

/// There is no clock that we know to count sleep, so what is held outlives it.
#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
mod machine {
    use std::sync::LazyLock;
    use std::time::Instant;

    static START: LazyLock<Instant> = LazyLock::new(Instant::now);

    pub(super) fn now() -> super::Moment {
        u64::try_from(START.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::time::{ClockId, clock_gettime};

    use super::*;

    #[test]
    fn it_is_the_clock_that_counts_the_time_of_a_suspended_machine() {
        let boot = || {
            let time = clock_gettime(ClockId::Boottime);
            Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32).as_micros()
        };
        let (before, now, after) = (boot(), u128::from(Clock::default().now()), boot());
        assert!((before..=after).contains(&now), "{before} {now} {after}");
        // On a machine that was never suspended, the other clocks show the same time.
        assert_eq!(machine::CLOCK, ClockId::Boottime);
    }
}
