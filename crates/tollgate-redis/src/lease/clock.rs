//! The time of leases: that of this process, which never steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::ticket::Leased;

/// Microseconds since some instant, the same for all leases of a store.
pub(super) type Moment = u64;

/// A clock that no one can set: what is leased ends when so much time has passed here, however
/// Redis' clock is set meanwhile.
#[derive(Debug)]
pub(super) struct Clock {
    epoch: Instant,
    /// Only tests have a time of their own.
    by_hand: Option<Arc<AtomicU64>>,
}

impl Clock {
    pub(super) fn new(by_hand: Option<Arc<AtomicU64>>) -> Self {
        Self { epoch: Instant::now(), by_hand }
    }

    pub(super) fn now(&self) -> Moment {
        match &self.by_hand {
            None => self.at(Instant::now()),
            Some(time) => time.load(Ordering::SeqCst),
        }
    }

    /// When a block begins and when it ends: counted from before the call was sent, and Redis
    /// counts from after that.
    pub(super) fn span(&self, leased: &Leased) -> (Moment, Moment) {
        let lasts = leased.granted.lasts.get();
        if self.by_hand.is_some() {
            let start = leased.decided_at.as_micros();
            return (start, start + lasts);
        }
        let start = self.at(leased.sent);
        // Redis' clock may be made to run faster to catch up, by half a thousandth at most.
        (start, start + (lasts - lasts / 1_000).saturating_sub(1))
    }

    /// The instant of a moment, for timers. By hand, none ever comes by itself.
    pub(super) fn instant(&self, moment: Moment) -> Option<Instant> {
        match self.by_hand {
            None => self.epoch.checked_add(Duration::from_micros(moment)),
            Some(_) => None,
        }
    }

    fn at(&self, instant: Instant) -> Moment {
        let since = instant.saturating_duration_since(self.epoch);
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }
}
