//! This process's clock, which expires leases and remembered denials. Decisions use Redis' clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Microseconds since a fixed instant, which a store's leases and remembered denials share.
pub(crate) type Moment = u64;

/// A clock that cannot be set and that counts the time while the machine is suspended.
///
/// [`Instant`] and tokio's timers stop during suspension but Redis does not: after an hour of
/// sleep, a one-second lease has expired and a denied request may be allowed. A virtual machine
/// that its host pauses may not notice. Then only the block size bounds the error.
///
/// Deadlines and pauses between attempts may stop as well: a request that was suspended is decided
/// within its timeout after resuming, or rejected by Redis as late and sent once more. Only Redis
/// decides how long a receipt or a permit is valid.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock {
    /// Set in tests only.
    by_hand: Option<Arc<AtomicU64>>,
    /// Whether Redis uses this clock too, so the two clocks cannot drift apart.
    is_redis: bool,
    /// In simulations, the time since this instant is added to the manual clock.
    runs_since: Option<Instant>,
}

impl Clock {
    /// A clock that a test moves.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn by_hand(time: Arc<AtomicU64>, is_redis: bool) -> Self {
        Self { by_hand: Some(time), is_redis, runs_since: None }
    }

    /// A clock that runs with tokio's, and adds the time for which the machine was `asleep`.
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

    /// Returns by this clock the time of a block that `lasts` this many microseconds in Redis. It
    /// starts when the call was `sent`, so earlier than in Redis.
    pub(crate) fn span(&self, sent: Moment, lasts: u64) -> Span {
        let margin = if self.is_redis { 0 } else { lasts.div_ceil(MARGIN) };
        Span {
            start: sent,
            last: sent.saturating_add(lasts - margin),
            lapses: sent.saturating_add(lasts),
        }
    }

    /// Converts a moment for timers. Returns `None` for a clock that a test moves. A timer fires
    /// late after the machine was suspended, so read the clock again when it fires.
    pub(crate) fn instant(&self, moment: Moment) -> Option<Instant> {
        if self.by_hand.is_some() && self.runs_since.is_none() {
            return None;
        }
        Instant::now().checked_add(Duration::from_micros(moment.saturating_sub(self.now())))
    }
}

/// A block's lifetime.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(test, derive(Hash))]
pub(crate) struct Span {
    pub(crate) start: Moment,
    /// The last moment at which units may be spent.
    pub(crate) last: Moment,
    /// When Redis charges the block in full, if both clocks run at the same rate.
    pub(crate) lapses: Moment,
}

/// A replica spends no units in a block's last sixth.
///
/// NTP slews a clock by up to a twelfth (83 333 ppm, chrony's default bound). If Redis' clock runs
/// faster and this clock slower, a block expires in Redis after 11/13 of its time here.
const MARGIN: u64 = 6;

#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
mod machine {
    use rustix::time::{ClockId, clock_gettime};

    #[cfg(not(target_vendor = "apple"))]
    pub(super) const CLOCK: ClockId = ClockId::Boottime;
    /// On Apple systems the monotonic clock counts sleep as well.
    #[cfg(target_vendor = "apple")]
    pub(super) const CLOCK: ClockId = ClockId::Monotonic;

    pub(super) fn now() -> super::Moment {
        let time = clock_gettime(CLOCK);
        // Never negative, because both clocks count from boot.
        let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
        let nanos = u64::try_from(time.tv_nsec).unwrap_or_default();
        seconds.saturating_mul(1_000_000).saturating_add(nanos / 1_000)
    }
}

/// We know of no clock on this platform that counts sleep, so leases and denials survive it.
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
    fn clock_counts_suspension() {
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
