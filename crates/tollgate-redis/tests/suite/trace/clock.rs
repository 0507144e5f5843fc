//! A trace's time: it advances to where something changes, and sometimes steps back.

use fastrand::Rng;
use tollgate_core::{Calendar, Decision, Outcome, Policy, Timestamp};

use super::Family;

pub(super) struct Clock {
    pub(super) now: u64,
    calendar: Option<Calendar>,
    pub(super) window: u64,
    pub(super) retry_at: u64,
    reset_at: u64,
    has_calendars: bool,
}

/// The year 2100: far ahead of Redis' own clock, and traces do not depend on today's date.
pub(super) const EARLIEST: u64 = 4_102_444_800_000_000;

impl Clock {
    pub(super) fn new(rng: &mut Rng, family: Family, window: u64, has_calendars: bool) -> Self {
        let now = match family {
            Family::EndOfTime => Timestamp::MAX.as_micros() - rng.u64(0..50) * window - 50,
            _ => EARLIEST + 4 * window + rng.u64(..window),
        };
        Self { now, calendar: None, window, retry_at: now, reset_at: now, has_calendars }
    }

    /// Moves forward or back, usually to an instant where something changes, or a microsecond
    /// beside it. Returns `false` at the end of time.
    pub(super) fn pass(&mut self, rng: &mut Rng, family: Family) -> bool {
        let (now, window) = (self.now, self.window);
        let beside = |to: u64, rng: &mut Rng| (to + rng.u64(0..3)).saturating_sub(1).max(now);
        let to = match (family, rng.u8(..24)) {
            (Family::Heavy, _) => now + rng.u64(45..60),
            // The remaining steps rarely jump or step back far.
            (Family::LongLogs, 0..23) => now + rng.u64(0..=window / 800),
            (Family::LongLogs, _) if rng.u8(..10) > 0 => {
                now.saturating_sub(rng.u64(0..=window / 100))
            }
            (Family::LongLogs, _) if rng.u8(..4) > 0 => {
                beside(now + window * rng.u64(1..=9) / 10, rng)
            }
            (_, 0..6) => now,
            (_, 6..8) => now + 1,
            (_, 8..10) => now + rng.u64(2..60),
            (_, 10..14) => beside(now + window * rng.u64(1..=12) / 10, rng),
            (_, 14) => now + rng.u64(1..=3) * window,
            (_, 15..17) => beside(self.boundary(), rng),
            (_, 17..20) => beside(self.retry_at, rng),
            (_, 20) => beside(self.reset_at, rng),
            // The script does not know the periods after the current period.
            _ if self.has_calendars => now,
            _ => now.saturating_sub(window * rng.u64(0..=12) / 10 + rng.u64(0..3)),
        };
        self.now = to.max(EARLIEST);
        self.now < Timestamp::MAX.as_micros()
    }

    fn boundary(&self) -> u64 {
        match self.calendar {
            Some(calendar) => calendar.period(Timestamp::from_micros(self.now)).end().as_micros(),
            None => (self.now / self.window + 1) * self.window,
        }
    }

    pub(super) fn note(&mut self, policy: &Policy, decision: &Decision) {
        self.window = policy.window().get();
        self.calendar = policy.quota().calendar();
        if let Outcome::Deny { retry_after } = decision.outcome {
            self.retry_at = self.now.saturating_add(retry_after.get());
        }
        self.reset_at = self.now.saturating_add(decision.reset_after.get());
    }
}
