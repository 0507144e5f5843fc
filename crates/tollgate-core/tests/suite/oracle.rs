//! The definitions of the five algorithms, as slow and as plain as they can be said.
//!
//! The oracle keeps every charge since the first and works everything out anew each
//! time. It knows only what counts at an instant; when a denied cost fits, when a key
//! is fresh again, how much is left and how long a queue takes, it finds by search,
//! so that no formula of the code under test comes in.

use std::iter::once;

use tollgate_core::{
    Algorithm, Calendar, Decision, LeakyMode, Micros, Outcome, Policy, Refill, Resolution,
    Timestamp,
};

/// Every charge of one key under one policy.
#[derive(Clone, Debug)]
pub(crate) struct Oracle {
    algorithm: Algorithm,
    limit: u64,
    window: u64,
    capacity: u64,
    calendar: Option<Calendar>,
    /// Oldest first. An instant is never before that of the charge before it: while
    /// the clock stands behind, time stands still.
    charges: Vec<Taken>,
}

#[derive(Clone, Copy, Debug)]
struct Taken {
    at: u64,
    units: u64,
}

impl Oracle {
    pub(crate) fn new(policy: &Policy) -> Self {
        Self {
            algorithm: policy.algorithm().expect("a limit"),
            limit: policy.quota().limit(),
            window: policy.window().get(),
            capacity: policy.capacity(),
            calendar: policy.quota().calendar(),
            charges: Vec::new(),
        }
    }

    /// The whole decision, every field of it.
    pub(crate) fn request(&mut self, now: u64, cost: u64) -> Decision {
        let outcome = if cost > self.capacity {
            Outcome::ExceedsCapacity
        } else if self.allows(now, cost) {
            let delay = if cost == 0 { 0 } else { self.wait(now) };
            let charged_at = Timestamp::from_micros(self.written_at(now));
            self.take(now, cost);
            Outcome::Allow { delay: Micros::new(delay), charged_at }
        } else {
            let retry_after = least(|span| span > 0 && self.allows(now + span, cost));
            Outcome::Deny { retry_after: Micros::new(retry_after) }
        };
        Decision {
            outcome,
            limit: self.capacity,
            remaining: most(self.capacity, |cost| self.allows(now, cost)),
            reset_after: Micros::new(least(|span| self.counted(now + span) == 0)),
        }
    }

    /// Charges beyond the limit, up to a debt of one capacity.
    pub(crate) fn owe(&mut self, now: u64, units: u64) -> u64 {
        let bound = 2 * self.weight(self.capacity);
        let counted = self.counted(now);
        let units = most(units, |units| units == 0 || counted + self.weight(units) <= bound);
        // Even where nothing can be added, the key has seen this instant; and one that
        // is fresh by then is not kept.
        self.forget(now);
        if units > 0 || !self.charges.is_empty() {
            let at = self.seen(now);
            self.charges.push(Taken { at, units });
        }
        units
    }

    /// The units that count, rounded up.
    pub(crate) fn consumed(&self, now: u64) -> u64 {
        let units = self.counted(now).div_ceil(u128::from(self.window));
        u64::try_from(units).expect("no more than twice the capacity counts")
    }

    /// Whether a request of `cost` passes at `now`.
    pub(crate) fn allows(&self, now: u64, cost: u64) -> bool {
        cost == 0
            || (self.counted(now) + self.weight(cost) <= self.weight(self.capacity)
                && self.wait(now) <= self.max_wait())
    }

    /// Takes units that [`allows`](Oracle::allows) has granted.
    pub(crate) fn take(&mut self, now: u64, units: u64) {
        if units > 0 {
            let at = self.seen(now);
            self.charges.push(Taken { at, units });
        }
    }

    /// Lets go of charges that count neither now nor later. If the clock steps back
    /// after that, they do not count again.
    pub(crate) fn forget(&mut self, now: u64) {
        if self.counted(now) == 0 {
            self.charges.clear();
        }
    }

    /// The units that count at `then` if this log is read under `to` from `changed` on.
    /// Only charges that still counted at `changed` are included. Their instants are rounded
    /// up to the old grid and then to the new grid.
    pub(crate) fn counts_in_log_of(&self, to: &Policy, changed: u64, then: u64) -> u64 {
        let to = Self::new(to);
        let counts = |charge: &&Taken| {
            let at = self.on_grid(charge.at);
            at + self.window > self.seen(changed)
                && to.on_grid(at) + to.window > self.seen(changed).max(then)
        };
        self.charges.iter().filter(counts).map(|c| c.units).sum()
    }

    /// Units weigh a window each, so that shares of one are whole numbers.
    fn weight(&self, units: u64) -> u128 {
        u128::from(units) * u128::from(self.window)
    }

    /// The later of the clock and the last instant seen.
    fn seen(&self, now: u64) -> u64 {
        match self.charges.last() {
            Some(last) => last.at.max(now),
            None => now,
        }
    }

    /// The weight of the charges that count at `now`.
    fn counted(&self, now: u64) -> u128 {
        self.counted_at(self.seen(now), now)
    }

    fn counted_at(&self, seen: u64, now: u64) -> u128 {
        match self.algorithm {
            Algorithm::FixedWindowCounter => {
                let window = self.window_at(seen);
                let within = |charge: &&Taken| self.window_at(charge.at) == window;
                self.weight(self.charges.iter().filter(within).map(|c| c.units).sum())
            }
            Algorithm::SlidingWindowLog { .. } | Algorithm::ConcurrentRequests => {
                let counts = |charge: &&Taken| self.on_grid(charge.at) + self.window > seen;
                self.weight(self.charges.iter().filter(counts).map(|c| c.units).sum())
            }
            Algorithm::SlidingWindowCounter => {
                let index = seen / self.window;
                // The counts remember which window they have seen, not how much of it:
                // a step back within it makes the previous one weigh more.
                let elapsed = now.saturating_sub(index * self.window);
                let previous = index.checked_sub(1).map_or(0, |i| self.in_window(i));
                let share = u128::from(previous) * u128::from(self.window - elapsed);
                self.weight(self.in_window(index)) + share.next_multiple_of(u128::from(self.window))
            }
            Algorithm::TokenBucket { refill: Refill::Interval } => {
                self.weight(self.interval(seen).0)
            }
            Algorithm::TokenBucket { refill: Refill::Greedy } | Algorithm::LeakyBucket { .. } => {
                self.level(seen)
            }
        }
    }

    /// When the window began that `at` lies in.
    fn window_at(&self, at: u64) -> u64 {
        match self.calendar {
            Some(calendar) => calendar.period(Timestamp::from_micros(at)).start().as_micros(),
            None => at - at % self.window,
        }
    }

    fn in_window(&self, index: u64) -> u64 {
        let within = |charge: &&Taken| charge.at / self.window == index;
        self.charges.iter().filter(within).map(|c| c.units).sum()
    }

    /// An instant as a log keeps it.
    fn on_grid(&self, at: u64) -> u64 {
        let exact = match self.algorithm {
            Algorithm::SlidingWindowLog { resolution } => match resolution {
                Resolution::Auto => self.limit <= 1_000,
                Resolution::Exact => true,
                Resolution::Thousandth => false,
            },
            _ => true,
        };
        let grid = if exact { 1 } else { self.window.div_ceil(1_000) };
        at.next_multiple_of(grid)
    }

    /// The level of a vessel: every charge is added, and `limit` units drain per window.
    /// This is the level of a leaky bucket, or the tokens missing from a greedy token bucket.
    fn level(&self, until: u64) -> u128 {
        let mut level = 0_u128;
        let mut at = 0;
        for charge in self.charges.iter().chain(once(&Taken { at: until, units: 0 })) {
            let drained = u128::from(charge.at - at) * u128::from(self.limit);
            level = level.saturating_sub(drained) + self.weight(charge.units);
            at = charge.at;
        }
        level
    }

    /// The tokens missing from a bucket that refills at the end of each interval, and
    /// when the running interval began. The timer starts with the first charge to a
    /// full bucket.
    fn interval(&self, until: u64) -> (u64, u64) {
        let (mut missing, mut began) = (0_u64, 0);
        for charge in self.charges.iter().chain(once(&Taken { at: until, units: 0 })) {
            while missing > 0 && began + self.window <= charge.at {
                missing = missing.saturating_sub(self.limit);
                began += self.window;
            }
            if missing == 0 {
                began = charge.at;
            }
            missing += charge.units;
        }
        (missing, began)
    }

    /// How long a queue holds back a request: until the work before it has drained.
    fn wait(&self, now: u64) -> u64 {
        match self.algorithm {
            Algorithm::LeakyBucket { mode: LeakyMode::Queue { .. } } => {
                least(|span| self.counted(now + span) == 0)
            }
            _ => 0,
        }
    }

    fn max_wait(&self) -> u64 {
        match self.algorithm {
            Algorithm::LeakyBucket { mode: LeakyMode::Queue { max_wait } } => {
                max_wait.map_or(u64::MAX, Micros::get)
            }
            _ => u64::MAX,
        }
    }

    /// The instant under which a charge is written: the last one seen, as far as the
    /// algorithm remembers it. Windows and intervals remember when they began.
    fn written_at(&self, now: u64) -> u64 {
        let seen = self.seen(now);
        match self.algorithm {
            Algorithm::FixedWindowCounter | Algorithm::SlidingWindowCounter => {
                now.max(self.window_at(seen))
            }
            Algorithm::TokenBucket { refill: Refill::Interval } => now.max(self.interval(seen).1),
            _ => seen,
        }
    }
}

/// The least number that is `good`, where all greater ones are.
fn least(good: impl Fn(u64) -> bool) -> u64 {
    let mut above = 1;
    while !good(above) {
        assert!(above < 1 << 60, "waiting has to help in the end");
        above *= 2;
    }
    let mut below = 0;
    while below < above {
        let middle = below + (above - below) / 2;
        if good(middle) {
            above = middle;
        } else {
            below = middle + 1;
        }
    }
    below
}

/// The greatest number up to `max` that is `good`, where zero and all smaller ones are.
fn most(max: u64, good: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, max);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if good(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}
