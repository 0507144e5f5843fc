//! Random histories.

use std::time::Duration;

use fastrand::Rng;
use tollgate_core::algorithm::penalty::Terms;
use tollgate_core::{Algorithm, Kind, LeakyMode, Micros, Policy, Quota, Refill};

use super::history::{Action, Asked, History, KEY_COUNT, Step};
use crate::checks::MODES;

/// Which features a law's histories contain: by default all, because most mistakes are made where
/// two features meet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mix {
    pub(super) versions: Versions,
    /// The clock steps back. An expired key may then grant up to a quota again, so laws that
    /// compare answers disable this.
    pub(super) clock_steps: bool,
    /// Keys are reset, but not in histories with clock steps, in which an older receipt may refund
    /// newer charges, see [`Store`](tollgate_core::Store#clock).
    pub(super) resets: bool,
    /// Charges are settled to more than their cost.
    pub(super) debts: bool,
    /// Penalties count denials and failures.
    pub(super) penalties: bool,
    /// The store fails now and then.
    pub(super) outages: bool,
}

impl Default for Mix {
    fn default() -> Self {
        Self {
            versions: Versions::Any,
            clock_steps: true,
            resets: true,
            debts: true,
            penalties: true,
            outages: true,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Versions {
    /// One per quota.
    One,
    /// Two per quota. The first admits at least as much as the second.
    Pair,
    /// Up to three per quota, with any numbers and algorithms. Stores remember four versions, so
    /// they drop none of these.
    Any,
    /// Up to three concurrency limits per quota.
    Permits,
}

pub(super) fn history(seed: u64, mix: Mix) -> History {
    let rng = &mut Rng::with_seed(seed);
    let mut policies = Vec::new();
    for name in ["a", "b", "c"].into_iter().take(rng.usize(1..=3)) {
        policies.extend(versions(rng, name, mix));
    }
    if mix.penalties && rng.u8(..3) == 0 {
        policies.push(penalty(rng, "strikes", true));
        policies.push(penalty(rng, "failures", false));
    }
    // Either the clock steps back, or keys are reset.
    let steps_back = mix.clock_steps && rng.u8(..3) == 0;
    let mix = Mix { clock_steps: steps_back, resets: mix.resets && !steps_back, ..mix };
    let mut writer = Writer { rng, mix, policies: &policies, current: Vec::new() };
    writer.current = writer.choose_versions();
    let count = writer.rng.usize(8..60);
    let mut steps = Vec::new();
    while steps.len() < count {
        if writer.rng.u8(..16) == 0 {
            writer.late_refund(&mut steps);
        } else {
            let step = writer.step(steps.len());
            steps.push(step);
        }
    }
    History { policies, steps }
}

/// Writes one step after the other.
struct Writer<'a> {
    rng: &'a mut Rng,
    mix: Mix,
    policies: &'a [Policy],
    /// The version of each quota that requests use now.
    current: Vec<usize>,
}

impl Writer<'_> {
    fn step(&mut self, id: usize) -> Step {
        let after = self.gap();
        // A version remains in force for a few steps, like between two reloads.
        if self.rng.u8(..5) == 0 {
            self.current = self.choose_versions();
        }
        let of = id.saturating_sub(1 + self.rng.usize(..12));
        let nth = if self.rng.u8(..4) > 0 { 0 } else { self.rng.usize(..3) };
        let action = match self.rng.u8(..40) {
            0..10 => Action::Settle { of, nth, actual: self.actual() },
            10..12 => Action::Renew { of, nth },
            12 if self.mix.resets => {
                Action::Reset { policy: self.policy(), key: self.rng.usize(..KEY_COUNT) }
            }
            13 if self.mix.outages => Action::Outage(self.rng.bool()),
            14..20 => Action::Obey(self.charges()),
            _ => Action::Ask(self.charges()),
        };
        Step { id, after, action }
    }

    /// Two requests reserve units, and one of them settles. After the bucket has drained, a third
    /// request takes units, and only then the other request settles. Its refund must not return the
    /// third request's units. Random steps rarely have this order.
    fn late_refund(&mut self, steps: &mut Vec<Step>) {
        let (policy, key) = (self.policy(), self.rng.usize(..KEY_COUNT));
        let (capacity, quota) = (self.policies[policy].capacity(), self.policies[policy].quota());
        let drains = self.policies[policy].window().get() * capacity / quota.limit();
        let half = capacity.div_ceil(2);
        let costs = [self.rng.u64(1..=half), self.rng.u64(1..=half), self.rng.u64(1..=capacity)];
        let [first, second, third] = costs.map(|cost| {
            let charge = Asked { nth: 0, policy, key, cost, enforce: true, dry: false };
            Action::Ask(vec![charge])
        });
        let id = steps.len();
        let early = self.rng.usize(..2);
        let mut settle = |of| Action::Settle { of, nth: 0, actual: self.actual() };
        let [early, late] = [id + early, id + 1 - early].map(&mut settle);
        for (index, action) in [first, second, early, third, late].into_iter().enumerate() {
            let most = if index == 3 { drains } else { drains / 16 };
            let after = self.rng.u64(..=most).cast_signed();
            steps.push(Step { id: id + index, after, action });
        }
    }

    fn choose_versions(&mut self) -> Vec<usize> {
        let mut chosen: Vec<usize> = Vec::new();
        for index in 0..self.policies.len() {
            let name = self.policies[index].name();
            match chosen.iter_mut().find(|other| self.policies[**other].name() == name) {
                Some(other) if self.rng.bool() => *other = index,
                Some(_) => {}
                None => chosen.push(index),
            }
        }
        chosen
    }

    /// Returns a version that is in force, or now and then any version.
    fn policy(&mut self) -> usize {
        match self.rng.u8(..10) {
            0..3 => self.rng.usize(..self.policies.len()),
            _ => self.current[self.rng.usize(..self.current.len())],
        }
    }

    fn charges(&mut self) -> Vec<Asked> {
        let count = [1, 1, 1, 2, 2, 3][self.rng.usize(..6)];
        let mut charges: Vec<Asked> = Vec::new();
        // A client usually has the same key under every policy.
        let usual = self.rng.usize(..10) / 8;
        for nth in 0..count {
            let mut policy = self.policy();
            let key = if self.rng.u8(..8) == 0 { self.rng.usize(..KEY_COUNT) } else { usual };
            // A request has one version of each quota.
            let name = self.policies[policy].name();
            let same = |other: &&Asked| self.policies[other.policy].name() == name;
            if let Some(other) = charges.iter().find(same) {
                policy = other.policy;
            }
            let cost = self.cost(policy);
            let (enforce, dry) = (self.rng.u8(..8) > 0, self.rng.u8(..16) == 0);
            charges.push(Asked { nth, policy, key, cost, enforce, dry });
        }
        charges
    }

    fn cost(&mut self, policy: usize) -> u64 {
        let capacity = self.policies[policy].capacity();
        match self.rng.u8(..16) {
            0 => 0,
            1 => capacity + 1,
            2 | 3 => capacity,
            4..8 => self.rng.u64(1..=capacity),
            8..11 => self.rng.u64(1..=capacity.div_ceil(4)),
            _ => 1,
        }
    }

    fn actual(&mut self) -> u64 {
        match self.rng.u8(..8) {
            0..4 => 0,
            4 => 1,
            _ if !self.mix.debts => 0,
            5 => self.rng.u64(..4),
            6 => self.rng.u64(..40),
            _ => self.rng.u64(..200),
        }
    }

    /// Returns the time until the next step: often zero, a part of a window, or about a window.
    fn gap(&mut self) -> i64 {
        let window = self.policies[self.rng.usize(..self.policies.len())].window().get();
        if self.mix.clock_steps && self.rng.u8(..8) == 0 {
            return -(self.rng.u64(1..=window).cast_signed());
        }
        let gap = match self.rng.u8(..20) {
            0..7 => 0,
            7..11 => self.rng.u64(1..20),
            11..16 => self.rng.u64(..=window / 4),
            16 | 17 => self.rng.u64(..=window),
            18 => window - self.rng.u64(..=1) + self.rng.u64(..=1),
            _ => self.rng.u64(..=3 * window),
        };
        gap.cast_signed()
    }
}

const LIMITS: [u64; 7] = [1, 2, 3, 5, 10, 20, 100];
const WINDOWS: [u64; 6] = [50, 60, 100, 1_000, 2_000, 20_000];

fn versions(rng: &mut Rng, name: &str, mix: Mix) -> Vec<Policy> {
    let queue = |max_wait| Algorithm::LeakyBucket { mode: LeakyMode::Queue { max_wait } };
    let others = [Algorithm::ConcurrentRequests, queue(Some(Micros::new(rng.u64(1..700))))];
    let modes = [&MODES[..], &others].concat();
    let mut algorithm = modes[rng.usize(..modes.len())];
    if mix.versions == Versions::Permits {
        algorithm = Algorithm::ConcurrentRequests;
    }
    let first = policy(rng, name, algorithm);
    match mix.versions {
        Versions::One => vec![first],
        Versions::Pair => {
            let second = smaller(rng, &first);
            vec![first, second]
        }
        Versions::Permits => {
            let other = policy(rng, name, algorithm);
            vec![first, other]
        }
        Versions::Any => {
            let mut versions = vec![first];
            for _ in 0..[0, 1, 1, 2][rng.usize(..4)] {
                let any = modes[rng.usize(..modes.len())];
                let algorithm = if rng.u8(..3) > 0 { algorithm } else { any };
                versions.push(policy(rng, name, algorithm));
            }
            versions
        }
    }
}

fn policy(rng: &mut Rng, name: &str, algorithm: Algorithm) -> Policy {
    let limit = LIMITS[rng.usize(..LIMITS.len())];
    let window = Duration::from_micros(WINDOWS[rng.usize(..WINDOWS.len())]);
    let mut quota = Quota::new(limit, window);
    if algorithm.is_bucket() && rng.bool() {
        quota = quota.burst([limit.div_ceil(2), 2 * limit, 10][rng.usize(..3)]);
    }
    Policy::new(name, quota, algorithm).expect("small numbers build")
}

/// Returns a version of `larger` that never admits more. A counter's windows have to nest.
/// Otherwise units that expire in one window might still count in the other.
fn smaller(rng: &mut Rng, larger: &Policy) -> Policy {
    let Kind::Limit(algorithm) = larger.kind() else { return larger.clone() };
    let window = larger.window().get();
    let window = match algorithm {
        Algorithm::FixedWindowCounter | Algorithm::SlidingWindowCounter => window * rng.u64(1..=3),
        _ => window + rng.u64(..=1) * rng.u64(..=window),
    };
    let limit = rng.u64(1..=larger.quota().limit());
    let mut quota = Quota::new(limit, Duration::from_micros(window));
    if algorithm.is_bucket() {
        quota = quota.burst(rng.u64(1..=larger.capacity()));
    }
    Policy::new(larger.name(), quota, algorithm).expect("small numbers build")
}

fn penalty(rng: &mut Rng, name: &str, counts_denials: bool) -> Policy {
    let terms = Terms {
        block: Micros::new(rng.u64(50..500)),
        factor: 2,
        max_block: Micros::new(2_000),
        forget_after: Micros::new(1_500),
        counts_denials,
    };
    let quota = Quota::new(rng.u64(1..5), Duration::from_micros(1_000));
    Policy::new(name, quota, Kind::Penalty(terms)).expect("small numbers build")
}

/// Whether units are refilled together.
pub(super) fn is_interval(policy: &Policy) -> bool {
    policy.algorithm() == Some(Algorithm::TokenBucket { refill: Refill::Interval })
}
