//! Laws about requests that queue in the store.

use std::time::Duration;

use fastrand::Rng;
use tollgate_core::{
    Algorithm, Charge, Cost, Decision, Key, LeakyMode, Micros, Outcome, Policy, Quota, Receipt,
    ReceiptId, Refill, Resolution, Timestamp, Verdict,
};

use super::Subject;
use super::definition::{Units, counted};
use super::generate::is_interval;
use super::history::START;
use crate::seeds;

/// Requests that queue leave when their algorithm allows them: each at the first instant at which its
/// cost and its headroom fit all charges before it, and not before an earlier request. So they leave
/// in order, and exactly the requests that would wait too long are denied, with the exact time until
/// they may ask again. If a request charges several keys, it leaves when all of them allow it.
/// Requests that leave early give their units back, and nobody is admitted in their place too often.
pub fn queues_keep_order_and_quota<S: Subject>(make: impl Fn() -> S) {
    let each = 40;
    for seed in seeds((S::steps() / each) as u64) {
        let mut queue = Queue::new(make(), seed);
        for step in 0..each {
            let text = queue.step();
            if let Err(wrong) = queue.judge() {
                panic!("seed {seed}, step {step}: {wrong}\n{text}\n{:#?}", queue.lines);
            }
        }
    }
}

/// One or two quotas, each with a key, and the whole history of their charges.
struct Queue<S> {
    subject: S,
    rng: Rng,
    now: u64,
    lines: Vec<Line>,
    receipts: Vec<(usize, Receipt)>,
    ids: u128,
    /// What the last request was told, and what it should have been told.
    told: Vec<(Decision, Expected)>,
}

/// A quota's policy and its charges.
#[derive(Debug)]
struct Line {
    policy: Policy,
    key: Key,
    /// The charges that stand, with their numbers. Each counts from the instant at which its request
    /// leaves.
    standing: Vec<(u128, Units)>,
    /// The charges as if none had been refunded.
    all: Vec<Units>,
}

/// When a request should leave at the earliest and at the latest, and the longest time it queues.
#[derive(Clone, Copy, Debug)]
struct Expected {
    leaves: (u64, u64),
    now: u64,
    queue: u64,
    can: bool,
}

impl<S: Subject> Queue<S> {
    fn new(subject: S, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let count = rng.usize(1..=2);
        let line = |number: usize, rng: &mut Rng| Line {
            policy: policy(rng, number, count),
            key: Key::from(["a", "b"][number]),
            standing: Vec::new(),
            all: Vec::new(),
        };
        let lines = (0..count).map(|number| line(number, &mut rng)).collect();
        let now = START + rng.u64(0..2_000);
        Self { subject, rng, now, lines, receipts: Vec::new(), ids: 0, told: Vec::new() }
    }

    fn step(&mut self) -> String {
        self.now += [0, 0, 1, self.rng.u64(0..200), self.rng.u64(0..3_000)][self.rng.usize(..5)];
        self.told.clear();
        match self.rng.u8(..4) {
            0 if !self.receipts.is_empty() => self.leave_early(),
            _ => self.ask(),
        }
    }

    /// A request that was admitted leaves before its instant, or is corrected after it.
    fn leave_early(&mut self) -> String {
        let index = self.rng.usize(..self.receipts.len());
        let (line, receipt) = self.receipts.swap_remove(index);
        if is_interval(&receipt.policy) {
            // Its interval would go on, so the charge would still make a difference.
            return String::new();
        }
        let settled = self.subject.settle(&receipt, Cost::ZERO, at(self.now));
        if settled.is_some() {
            self.lines[line].standing.retain(|(number, _)| *number != receipt.id.0);
        }
        format!("settle {receipt:?} at {}: {settled:?}", self.now)
    }

    fn ask(&mut self) -> String {
        let (now, rng) = (self.now, &mut self.rng);
        let count = if self.lines.len() == 2 && rng.bool() { 2 } else { 1 };
        let first = if count == 1 { rng.usize(..self.lines.len()) } else { 0 };
        let queue = [0, rng.u64(0..1_000), rng.u64(0..10_000)][rng.usize(..3)];
        let asked: Vec<_> = self.lines[first..first + count]
            .iter()
            .map(|line| {
                let cost = rng.u64(1..=line.policy.capacity().min(3));
                let most = line.policy.capacity() - cost;
                let headroom = if rng.u8(..4) == 0 { rng.u64(0..=most) } else { 0 };
                (cost, headroom)
            })
            .collect();
        let charges: Vec<_> = self.lines[first..first + count]
            .iter()
            .zip(&asked)
            .map(|(line, (cost, headroom))| Charge {
                queue: Some(Micros::new(queue)),
                ..Charge::new(&line.policy, &line.key, Cost::new(*cost))
                    .leaving(Cost::new(*headroom))
            })
            .collect();
        let Some(verdict) = self.subject.decide(&charges, at(now)) else {
            return "the store failed".to_owned();
        };
        let text = format!("{charges:?} at {now}: {verdict:?}");
        let lines = || self.lines[first..first + count].iter().zip(&asked);
        let earliest = |line: &Line, of: &[Units], (cost, headroom): (u64, u64)| {
            line.earliest(of, cost + headroom, now)
        };
        let with = lines().map(|(line, asked)| earliest(line, &line.all, *asked)).max();
        let without = lines().map(|(line, asked)| earliest(line, &line.charges(), *asked)).max();
        let leaves = (without.unwrap_or(now), with.unwrap_or(now));
        let can = verdict.decisions().iter().all(|it| it.outcome != Outcome::ExceedsCapacity);
        let expected = Expected { leaves, now, queue, can };
        self.told = verdict.decisions().iter().map(|decision| (*decision, expected)).collect();
        self.remember(first, &charges_of(&charges), &verdict);
        text
    }

    fn remember(&mut self, first: usize, costs: &[(Policy, Key, u64)], verdict: &Verdict) {
        if !verdict.is_admitted() {
            return;
        }
        let leaves = self.now + verdict.delay().get();
        let charges: Vec<_> = costs
            .iter()
            .map(|(policy, key, cost)| Charge::new(policy, key, Cost::new(*cost)))
            .collect();
        let ids = &mut self.ids;
        let next_id = || {
            *ids += 1;
            ReceiptId(*ids)
        };
        let receipts: Vec<_> = verdict.receipts(&charges, next_id).collect();
        for ((line, charge), receipt) in (first..).zip(&charges).zip(receipts) {
            let units = Units { at: leaves, units: charge.cost.get().cast_signed() };
            let number = receipt.id.0;
            self.receipts.push((line, receipt));
            let Line { standing, all, .. } = &mut self.lines[line];
            standing.push((number, units));
            let last = all.last().map_or(0, |last| last.at);
            all.push(Units { at: leaves.max(last), ..units });
        }
    }

    fn judge(&self) -> Result<(), String> {
        for (decision, expected) in &self.told {
            expected.judge(decision)?;
        }
        self.lines.iter().try_for_each(Line::judge)
    }
}

fn charges_of(charges: &[Charge<'_>]) -> Vec<(Policy, Key, u64)> {
    let owned = |it: &Charge<'_>| (it.policy.clone(), it.key.clone(), it.cost.get());
    charges.iter().map(owned).collect()
}

const fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros)
}

impl Expected {
    /// A request leaves no later than if nothing had been refunded, and no earlier than if nothing
    /// refunded had been charged. Without refunds, that is a single instant.
    fn judge(&self, decision: &Decision) -> Result<(), String> {
        let Self { leaves: (first, last), now, queue, can } = *self;
        let told = match decision.outcome {
            Outcome::Allow { delay, .. } => now + delay.get(),
            Outcome::Deny { retry_after } => now + queue + retry_after.get(),
            Outcome::WouldAllow if can => return Ok(()),
            _ => return Err(format!("{decision:?} although the cost fits: {self:?}")),
        };
        let is_denied = decision.denies();
        if is_denied != (told > now + queue) || !(first..=last).contains(&told) {
            return Err(format!("{decision:?} instead of {self:?}"));
        }
        Ok(())
    }
}

impl Line {
    fn charges(&self) -> Vec<Units> {
        self.standing.iter().map(|(_, units)| *units).collect()
    }

    /// The first instant at which `units` fit beside these charges, and not before the last of them.
    fn earliest(&self, charges: &[Units], units: u64, now: u64) -> u64 {
        let fits = |at: u64| counted(&self.policy, charges, at) + units <= self.policy.capacity();
        let mut at = charges.last().map_or(now, |last| now.max(last.at));
        // Units stop counting one after the other, so the first instant is found by doubling steps
        // and then halving them.
        let mut step = 1;
        while !fits(at + step) {
            step *= 2;
        }
        if fits(at) {
            return at;
        }
        while step > 0 {
            if !fits(at + step) {
                at += step;
            }
            step /= 2;
        }
        at + 1
    }

    /// The requests left in order, and none exceeded the quota when it left.
    fn judge(&self) -> Result<(), String> {
        let charges = self.charges();
        if !charges.is_sorted_by_key(|charge| charge.at) {
            return Err("a request was overtaken".to_owned());
        }
        for end in 0..charges.len() {
            let before = &charges[..=end];
            let counts = counted(&self.policy, before, before[end].at);
            if counts > self.policy.capacity() {
                return Err(format!("{counts} units count at {}", before[end].at));
            }
        }
        Ok(())
    }
}

/// Small numbers, so that queues are long.
fn policy(rng: &mut Rng, number: usize, count: usize) -> Policy {
    let log = |resolution| Algorithm::SlidingWindowLog { resolution };
    let algorithms = [
        Algorithm::FixedWindowCounter,
        log(Resolution::Auto),
        log(Resolution::Thousandth),
        Algorithm::SlidingWindowCounter,
        Algorithm::TokenBucket { refill: Refill::Greedy },
        Algorithm::LeakyBucket { mode: LeakyMode::Meter },
        Algorithm::TokenBucket { refill: Refill::Interval },
    ];
    let quota = Quota::new(rng.u64(1..=6), Duration::from_micros(rng.u64(50..=1_200)));
    // A bucket that refills in intervals does not know its last charge, so it cannot keep the order of
    // a request that another quota has delayed.
    let choices = algorithms.len() - usize::from(count > 1);
    let algorithm = algorithms[rng.usize(..choices)];
    let policy = Policy::new(format!("queue-{number}"), quota, algorithm).expect("a valid quota");
    policy.with_queue(Duration::ZERO).expect("a policy that queues")
}
