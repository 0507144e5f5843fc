//! How fast a policy grants units, for the times in headers.

use tollgate_core::{Algorithm, AnyRule, Cost, Decision, LeakyMode, Micros, Policy, Refill};

/// The rate at which a policy grants units.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    seconds: u64,
    /// ... for this number of units. Reduced to lowest terms, so that products fit into a word.
    units: u64,
    /// The time between two steps in microseconds, if units are refilled in steps.
    step: Option<u64>,
    /// Whether the length of the next step is unknown in advance.
    pub(super) is_calendar: bool,
    algorithm: Algorithm,
    limit: u64,
    capacity: u64,
    window: u64,
    /// How long a charge counts in a sliding window log.
    expires_after: u64,
}

impl Pace {
    pub(super) fn new(policy: &Policy, algorithm: Algorithm) -> Self {
        let (limit, capacity) = (policy.quota().limit(), policy.capacity());
        let (step, per_window) = match algorithm {
            Algorithm::FixedWindowCounter | Algorithm::SlidingWindowCounter => (true, limit),
            // The bucket cannot hold more.
            Algorithm::TokenBucket { refill: Refill::Interval } => (true, limit.min(capacity)),
            _ => (false, limit),
        };
        let window = policy.window().get();
        let micros = u128::from(per_window) * MICROS;
        let divisor = gcd(u128::from(window), micros);
        let grid = match policy.rule() {
            AnyRule::SlidingWindowLog(log) => log.grid().get(),
            _ => 0,
        };
        Self {
            seconds: narrow(u128::from(window) / divisor),
            units: narrow(micros / divisor),
            step: step.then_some(window),
            is_calendar: policy.quota().calendar().is_some(),
            algorithm,
            limit,
            capacity,
            window,
            expires_after: window.saturating_add(grid),
        }
    }

    /// The seconds in which to use the remaining units. If they do not suffice for another request
    /// with this `cost`, it is at least the time until such a request is certainly allowed.
    pub(super) fn window_of(&self, decision: &Decision, cost: Cost) -> u64 {
        if self.is_calendar && decision.reset_after > Micros::ZERO {
            return decision.reset_after.as_secs_ceil();
        }
        let paced = self.seconds_for(decision.remaining.max(1));
        let paced = match self.step {
            Some(step) => paced.max(until_step(decision.reset_after, step)),
            None => paced,
        };
        if decision.remaining >= cost.get().max(1) {
            return paced;
        }
        paced.max(self.allowed_after(decision, cost).as_secs_ceil())
    }

    /// A time after which another request with this `cost` is allowed, if no other request is
    /// charged. It is exact for buckets and fixed windows.
    fn allowed_after(&self, decision: &Decision, cost: Cost) -> Micros {
        // A store that decides with a share of the quota refills units at another rate.
        let spare = match decision.limit == self.capacity {
            true => self.capacity.saturating_sub(cost.get().max(1)),
            false => 0,
        };
        // The request is allowed before the quota is full, by the time in which the policy refills
        // the units that the request does not need.
        let earlier = match self.algorithm {
            Algorithm::TokenBucket { refill: Refill::Greedy } => self.micros_for(spare),
            Algorithm::TokenBucket { refill: Refill::Interval } => {
                (spare / self.limit).saturating_mul(self.window)
            }
            Algorithm::LeakyBucket { mode: LeakyMode::Queue { max_wait: Some(max_wait) } } => {
                self.micros_for(spare).min(max_wait.get())
            }
            Algorithm::LeakyBucket { .. } => self.micros_for(spare),
            // A charged request proves that the window contains at most the limit. A free request
            // is also allowed while the client is in debt.
            Algorithm::SlidingWindowCounter if cost > Cost::ZERO => self.micros_for(spare),
            // The decision does not contain the times of earlier charges, so assume that all of
            // them must expire.
            Algorithm::SlidingWindowCounter
            | Algorithm::SlidingWindowLog { .. }
            | Algorithm::FixedWindowCounter
            | Algorithm::ConcurrentRequests => 0,
        };
        Micros::new(decision.reset_after.get().saturating_sub(earlier))
    }

    /// The time until the quota is full again if `units` are charged in addition to a decision, at
    /// a time `elapsed` after it.
    pub(super) fn reset_after_debt(
        &self,
        decision: &Decision,
        units: u64,
        elapsed: Micros,
    ) -> Micros {
        let (reset, elapsed) = (decision.reset_after.get(), elapsed.get());
        // A debt is at most one capacity, so at most two capacities are missing from a bucket.
        let bucket = |refill: &dyn Fn(u64) -> u64| {
            let most = elapsed.saturating_add(refill(decision.limit.saturating_mul(2)));
            reset.max(elapsed).saturating_add(refill(units)).min(most)
        };
        // The first window end after `elapsed`, given any window's end.
        let window_end = |end: u64| match elapsed.checked_sub(end) {
            None => end,
            Some(over) => end.saturating_add((over / self.window + 1).saturating_mul(self.window)),
        };
        Micros::new(match self.algorithm {
            Algorithm::TokenBucket { refill: Refill::Interval } => {
                bucket(&|units| units.div_ceil(self.limit).saturating_mul(self.window))
            }
            Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => bucket(&|units| {
                // A share of the quota is refilled more slowly.
                let share = u128::from(self.limit) * u128::from(decision.limit.max(1));
                let micros = u128::from(units) * u128::from(self.window);
                narrow(micros.saturating_mul(u128::from(self.capacity)).div_ceil(share))
            }),
            Algorithm::SlidingWindowLog { .. } => {
                reset.max(elapsed.saturating_add(self.expires_after))
            }
            Algorithm::FixedWindowCounter => window_end(reset),
            // Units count until the end of the next window.
            Algorithm::SlidingWindowCounter => {
                window_end(reset.saturating_sub(self.window)).saturating_add(self.window)
            }
            Algorithm::ConcurrentRequests => reset,
        })
    }

    /// The time in which the policy grants this number of units, rounded down.
    fn micros_for(&self, units: u64) -> u64 {
        narrow(u128::from(units) * u128::from(self.window) / u128::from(self.limit))
    }

    fn seconds_for(&self, units: u64) -> u64 {
        match units.checked_mul(self.seconds) {
            Some(product) => product.div_ceil(self.units),
            None => narrow(
                (u128::from(units) * u128::from(self.seconds)).div_ceil(u128::from(self.units)),
            ),
        }
    }
}

/// The seconds until the next step, if the last step is after `reset_after`.
fn until_step(reset_after: Micros, step: u64) -> u64 {
    let micros = match reset_after.get() {
        last if last <= step => last,
        last => (last - 1) % step + 1,
    };
    Micros::new(micros).as_secs_ceil()
}

pub(super) fn gcd(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { gcd(b, a % b) }
}

pub(super) const MICROS: u128 = 1_000_000;

pub(super) fn narrow(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
