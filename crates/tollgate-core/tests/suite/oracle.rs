//! The definitions of the five algorithms, as slow and simple as possible.
//!
//! The oracle stores every charge and recomputes everything each time. The only formula in it
//! computes the units that count at an instant. It finds everything else by search: when a denied
//! cost fits, when a key is fresh again, how many units remain and how long a queue takes. It
//! therefore shares no formula with the code under test.

use std::iter::once;

use tollgate_core::{
    Algorithm, Calendar, Decision, LeakyMode, Micros, Outcome, Policy, Refill, Resolution,
    Timestamp,
};

/// Every charge to one key under one policy.
#[derive(Clone, Debug)]
pub(crate) struct Oracle {
    algorithm: Algorithm,
    limit: u64,
    window: u64,
    capacity: u64,
    calendar: Option<Calendar>,
    /// Oldest first. Timestamps never decrease: while the clock is behind, time stops.
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

    /// The complete decision.
    pub(crate) fn request(&mut self, now: u64, cost: u64) -> Decision {
        let outcome = if cost > self.capacity {
            Outcome::ExceedsCapacity
        } else if self.allows(now, cost) {
            let delay = if cost == 0 { 0 } else { self.wait(now) };
            let charged_at = Timestamp::from_micros(self.written_at(now));
            self.take(now, cost);
            Outcome::Allow { delay: Micros::new(delay), charged_at, refunded: 0 }
        } else {
            let retry_after = least(|span| span > 0 && self.allows(now + span, cost));
            Outcome::Deny { retry_after: Micros::new(retry_after) }
        };
        Decision {
            outcome,
            limit: self.capacity,
            remaining: most(self.capacity, |cost| self.allows(now, cost)),
            reset_after: Micros::new(least(|span| self.is_fresh(now + span))),
        }
    }

    /// Charges beyond the limit, up to a debt of one capacity.
    pub(crate) fn owe(&mut self, now: u64, units: u64) -> u64 {
        let bound = 2 * self.weight(self.capacity);
        let counted = self.counted(now);
        let units = most(units, |units| units == 0 || counted + self.weight(units) <= bound);
        // Even if no units can be added, the key has seen this instant. An empty calendar period
        // and an empty queue do not remember it.
        let at = self.seen(now);
        self.forget(now);
        if units > 0 || !self.charges.is_empty() || self.remembers_time() {
            self.charges.push(Taken { at, units });
        }
        units
    }

    fn is_fresh(&self, now: u64) -> bool {
        self.counted(now) == 0 && (now == self.seen(now) || !self.remembers_time())
    }

    /// Whether a key without units remembers its last instant.
    fn remembers_time(&self) -> bool {
        let queue =
            matches!(self.algorithm, Algorithm::LeakyBucket { mode: LeakyMode::Queue { .. } });
        !queue && self.calendar.is_none()
    }

    /// The units that count, rounded up.
    pub(crate) fn consumed(&self, now: u64) -> u64 {
        let units = self.counted(now).div_ceil(u128::from(self.window));
        u64::try_from(units).expect("no more than twice the capacity counts")
    }

    /// Whether a request that costs `cost` is allowed at `now`.
    pub(crate) fn allows(&self, now: u64, cost: u64) -> bool {
        cost == 0
            || (self.counted(now) + self.weight(cost) <= self.weight(self.capacity)
                && self.wait(now) <= self.max_wait())
    }

    /// Takes units that [`allows`](Oracle::allows) has allowed.
    pub(crate) fn take(&mut self, now: u64, units: u64) {
        if units > 0 {
            let at = self.seen(now);
            self.charges.push(Taken { at, units });
        }
    }

    /// Drops charges that count neither now nor later. If the clock steps back afterwards, they do
    /// not count again.
    pub(crate) fn forget(&mut self, now: u64) {
        if self.counted(now) == 0 {
            self.charges.clear();
        }
    }

    /// The units that count at `then` if this log is read under `to`. Only charges that still
    /// counted at the last charge are included. Their timestamps are rounded up to the old grid and
    /// then to the new grid.
    pub(crate) fn counts_in_log_of(&self, to: &Policy, then: u64) -> u64 {
        let to = Self::new(to);
        let seen = self.seen(0);
        let counts = |charge: &&Taken| {
            let at = self.on_grid(charge.at);
            at + self.window > seen && to.on_grid(at) + to.window > seen.max(then)
        };
        self.charges.iter().filter(counts).map(|c| c.units).sum()
    }

    /// The units of permits that count at `then`: each retains its own expiry.
    pub(crate) fn permits(&self, then: u64) -> u64 {
        let counts = |charge: &&Taken| charge.at + self.window > self.seen(then);
        self.charges.iter().filter(counts).map(|c| c.units).sum()
    }

    /// Each unit weighs one window, so shares are integers.
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
        let seen = self.seen(now);
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
                let elapsed = seen % self.window;
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

    /// The start of the window that contains `at`.
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

    /// A timestamp as a log records it.
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

    /// A bucket's level: every charge is added, and `limit` units drain per window. For a leaky
    /// bucket this is its level, for a greedy token bucket its missing tokens.
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

    /// The tokens missing from a bucket that refills at the end of each interval, and when the
    /// current interval started. The timer starts with the first charge to a full bucket.
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

    /// How long a queue delays a request: until the work before it has drained.
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

    /// The timestamp with which a charge is recorded: the last instant seen, as far as the
    /// algorithm remembers it. Intervals only remember when they started.
    fn written_at(&self, now: u64) -> u64 {
        let seen = self.seen(now);
        match self.algorithm {
            Algorithm::FixedWindowCounter if self.calendar.is_some() => {
                now.max(self.window_at(seen))
            }
            Algorithm::TokenBucket { refill: Refill::Interval } => now.max(self.interval(seen).1),
            _ => seen,
        }
    }
}

/// The least number that is `good`, given that all greater numbers are.
fn least(good: impl Fn(u64) -> bool) -> u64 {
    let mut above = 1;
    while !good(above) {
        assert!(above < 1 << 60, "waiting must help in the end");
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

/// The greatest number up to `max` that is `good`, given that zero and all smaller numbers are.
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
