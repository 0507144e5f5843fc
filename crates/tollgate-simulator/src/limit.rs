//! Draws limits and stores from everything that a user can configure.

use std::fmt;
use std::time::Duration;

use fastrand::Rng;
use tollgate_core::{
    Algorithm, LeakyMode, Lease, Micros, OnStoreError, Policy, Quota, Refill, Resolution, Strikes,
};

use crate::history::Log;
use crate::traffic::Traffic;

/// What a run's replicas are configured with.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) limits: Vec<Limit>,
    pub(crate) traffic: Traffic,
    pub(crate) settings: Settings,
}

/// A policy with its versions and group.
#[derive(Debug)]
pub(crate) struct Limit {
    pub(crate) group: Group,
    /// The versions; replicas change to the next version at different times.
    pub(crate) versions: Vec<Policy>,
    /// Whether the policy denies requests, or is in shadow mode.
    pub(crate) is_enforced: bool,
    /// Whether charges are settled, and whether keys are reset.
    pub(crate) is_settled: bool,
    pub(crate) is_reset: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    Plain,
    Leased,
    /// With a local fallback.
    Local,
    /// Blocks clients for strikes, beside the other groups.
    Penalty,
}

/// The settings of a run's stores.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// For how long denials are remembered.
    pub(crate) deny_cache: Duration,
    pub(crate) has_breaker: bool,
    /// The maximum number of concurrent calls, and of requests in each.
    pub(crate) calls: usize,
    pub(crate) batch: usize,
    /// The share that local stores grant. `None` if it depends on the number of replicas.
    pub(crate) share: Option<(u32, u32)>,
    /// The maximum number of keys in a local store. Further keys share an overflow entry.
    pub(crate) local_keys: usize,
}

const LOG: Algorithm = Algorithm::SlidingWindowLog { resolution: Resolution::Exact };
const ROUNDED_LOG: Algorithm = Algorithm::SlidingWindowLog { resolution: Resolution::Thousandth };
const GREEDY: Algorithm = Algorithm::TokenBucket { refill: Refill::Greedy };
const INTERVAL: Algorithm = Algorithm::TokenBucket { refill: Refill::Interval };
const FIXED: Algorithm = Algorithm::FixedWindowCounter;
const COUNTER: Algorithm = Algorithm::SlidingWindowCounter;
const METER: Algorithm = Algorithm::LeakyBucket { mode: LeakyMode::Meter };
const QUEUE: Algorithm = queue(None);
const SHORT_QUEUE: Algorithm = queue(Some(Micros::new(400_000)));
const CONCURRENT: Algorithm = Algorithm::ConcurrentRequests;

const LEASABLE: &[Algorithm] = &[LOG, LOG, ROUNDED_LOG, GREEDY, FIXED, COUNTER, METER];
/// More often algorithms with the strongest promise, and with permits.
const ALL: &[Algorithm] = &[
    LOG,
    LOG,
    ROUNDED_LOG,
    GREEDY,
    INTERVAL,
    FIXED,
    COUNTER,
    METER,
    QUEUE,
    SHORT_QUEUE,
    CONCURRENT,
    CONCURRENT,
];
const FAILURES: &[Option<OnStoreError>] =
    &[None, None, Some(OnStoreError::Local), Some(OnStoreError::Open), Some(OnStoreError::Closed)];
const DAY: Duration = Duration::from_secs(86_400);
const MILLISECOND: Duration = Duration::from_millis(1);

const fn queue(max_wait: Option<Micros>) -> Algorithm {
    Algorithm::LeakyBucket { mode: LeakyMode::Queue { max_wait } }
}

/// Returns any of the choices. A frequent choice is listed several times.
pub(crate) fn any<T: Copy>(rng: &mut Rng, choices: &[T]) -> T {
    choices[rng.usize(..choices.len())]
}

/// Whether something happens that does so once in `times`.
pub(crate) fn once_in(rng: &mut Rng, times: u32) -> bool {
    rng.u32(..times) == 0
}

impl Settings {
    pub(crate) fn random(rng: &mut Rng) -> Self {
        Self {
            deny_cache: MILLISECOND * any(rng, &[0, 100, 1_000, 1_000, 1_000, 3_000]),
            has_breaker: !once_in(rng, 8),
            calls: any(rng, &[2, 64, 64]),
            batch: any(rng, &[8, 512, 512]),
            share: any(rng, &[None, None, None, Some((1, 3)), Some((1, 1))]),
            local_keys: any(rng, &[1_000, 1_000, 1]),
        }
    }
}

impl Default for Settings {
    /// The defaults of the stores.
    fn default() -> Self {
        let (deny_cache, has_breaker) = (Duration::from_secs(1), true);
        let (calls, batch, share, local_keys) = (64, 512, None, 1_000);
        Self { deny_cache, has_breaker, calls, batch, share, local_keys }
    }
}

impl Limit {
    pub(crate) fn random(rng: &mut Rng, index: usize, group: Group) -> Self {
        let name = format!("{group:?}-{index}").to_lowercase();
        // In a day, no unit is refilled during the run, so each lost unit is noticed.
        let is_long = once_in(rng, 3);
        let versions = if group == Group::Penalty {
            vec![penalty(rng, &name, is_long)]
        } else {
            policies(rng, &name, group, is_long)
        };
        let is_settled = once_in(rng, 3);
        let is_reset = !is_long && rng.bool();
        let is_enforced = !once_in(rng, 8);
        Self { group, versions, is_enforced, is_settled, is_reset }
    }

    pub(crate) fn name(&self) -> &str {
        self.versions[0].name()
    }

    pub(crate) fn is_penalty(&self) -> bool {
        self.group == Group::Penalty
    }

    /// Whether no unit is refilled or forgotten during a run, unless it is refunded.
    pub(crate) fn is_kept(&self) -> bool {
        self.versions.len() == 1 && Duration::from(self.versions[0].window()) == DAY
    }

    /// Whether `remaining` shows all units. A queue's longest wait may leave fewer.
    pub(crate) fn shows_units(&self) -> bool {
        !self.is_penalty() && self.versions[0].algorithm() != Some(SHORT_QUEUE)
    }

    /// Whether a refund returns exactly the units. A bucket may have refilled a part of one.
    pub(crate) fn refunds_exactly(&self) -> bool {
        let is_window =
            |algorithm| matches!(algorithm, FIXED | COUNTER | Algorithm::SlidingWindowLog { .. });
        self.is_kept() && self.versions[0].algorithm().is_some_and(is_window)
    }

    /// Returns the limit and the sum of the local shares, for a sliding window log.
    pub(crate) fn as_log(&self, share: Option<(u32, u32)>, replicas: usize) -> Option<Log> {
        let policy = &self.versions[0];
        let is_log = matches!(policy.algorithm(), Some(Algorithm::SlidingWindowLog { .. }));
        let (numerator, denominator) = share.unwrap_or((1, replicas as u32));
        let share = policy.share(numerator, denominator).expect("a share");
        is_log.then(|| Log {
            name: policy.name().to_owned(),
            limit: policy.capacity(),
            local: share.capacity() * replicas as u64,
            window: policy.window().get(),
        })
    }

    /// Returns a request's cost. Few requests only ask, or exceed every limit.
    pub(crate) fn cost(&self, rng: &mut Rng) -> u64 {
        let costs: &[u64] = match self.group {
            Group::Leased => &[1, 1, 2, 2, 3, 3],
            Group::Penalty => &[1],
            Group::Plain | Group::Local => &[1, 1, 1, 2, 5],
        };
        match rng.u8(..60) {
            0 => 0,
            1 => 1_000,
            _ => any(rng, costs),
        }
    }
}

fn policies(rng: &mut Rng, name: &str, group: Group, is_long: bool) -> Vec<Policy> {
    let algorithm = any(rng, if group == Group::Leased { LEASABLE } else { ALL });
    let is_long = is_long && algorithm != CONCURRENT;
    // The shortest blocks end while a call is in flight.
    let is_short = group == Group::Leased && rng.bool();
    let short = MILLISECOND * rng.u32(300..if is_short { 600 } else { 4_000 });
    let window = if is_long { DAY } else { short };
    let units = match group {
        Group::Leased => any(rng, &[1, 10]) * rng.u64(50..400),
        // Denials are only remembered of keys without units.
        _ if rng.bool() => rng.u64(1..4),
        _ => rng.u64(2..30),
    };
    let has_burst = matches!(algorithm, GREEDY | INTERVAL | METER | QUEUE | SHORT_QUEUE);
    let burst = (has_burst && once_in(rng, 3)).then(|| units.div_ceil(2) + rng.u64(..units));
    let (on_store_error, shed) = match group {
        Group::Local => (any(rng, FAILURES), any(rng, FAILURES)),
        _ => (None, None),
    };
    let build = |units| {
        let mut units = units;
        let policy = loop {
            let quota = Quota::new(units, window);
            let quota = burst.map_or(quota, |burst| quota.burst(burst));
            match Policy::new(name, quota, algorithm) {
                Ok(policy) => break policy,
                Err(error) => units = error.nearest_limit().unwrap_or(1),
            }
        };
        let policy = on_store_error.into_iter().fold(policy, Policy::with_on_store_error);
        shed.into_iter().fold(policy, Policy::with_shed)
    };
    let policy = build(units);
    match group {
        Group::Leased => {
            // A day's blocks end after the run, so its units must be returned.
            let most = if is_long { 6_000 * MILLISECOND } else { window };
            let ttl = match rng.u8(..2) {
                0 => most.mul_f64(0.1 + 0.9 * rng.f64()),
                _ => (most / 10).max(MILLISECOND * rng.u32(30..200)),
            };
            let lease = Lease::of(1, rng.u32(2..6)).ttl(ttl);
            vec![policy.with_lease(lease).expect("an algorithm with leases")]
        }
        Group::Plain if once_in(rng, 4) => vec![policy, build(rng.u64(2..30))],
        _ => vec![policy],
    }
}

fn penalty(rng: &mut Rng, name: &str, is_long: bool) -> Policy {
    let (strikes, within) = (rng.u64(1..6), MILLISECOND * rng.u32(100..2_000));
    let of = if rng.bool() { Strikes::of_denials } else { Strikes::of_failures };
    let strikes = if is_long {
        of(strikes, DAY)
    } else {
        let (block, longest) = (MILLISECOND * rng.u32(50..800), MILLISECOND * rng.u32(800..2_000));
        let strikes = of(strikes, within).block(block).growing(rng.u64(1..4), longest);
        strikes.forgotten_after(MILLISECOND * rng.u32(100..2_000))
    };
    Policy::penalty(name, strikes).expect("valid strikes")
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, policy) in self.versions.iter().enumerate() {
            let next = if index > 0 { ", then " } else { "" };
            write!(f, "{next}{policy:?}")?;
        }
        write!(f, "{}", if self.is_enforced { "" } else { ", in shadow mode" })
    }
}
