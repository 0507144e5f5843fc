//! Decisions computed from the states that the script returned.
//!
//! For each run of equal requests, a plain call reports its keys' states and how many requests were
//! admitted. Everything else follows from the rules in `tollgate-core`, which the script ports.

use smallvec::SmallVec;
use tollgate_core::algorithm::{
    Rule as _, fixed_window_counter, leaky_bucket, sliding_window_counter, token_bucket,
};
use tollgate_core::{AnyRule, Cost, Decision, Micros, Outcome, Timestamp, Verdict};

use crate::script::encode::{Batch, Sum};

/// A state's numbers, in the order of `lua/plain.lua`.
pub(crate) type Numbers = [u64; 3];

/// For each charge in a denied request: how long its key has no room for a unit, so charges cannot
/// change it. Zero if the key has room or this is unknown; empty in a verdict that admits.
pub type Frozen = SmallVec<[Micros; 2]>;

impl Batch {
    /// Returns the verdicts on `count` equal requests, the first of which found their keys in
    /// `states`. `None` if the rules would admit a different number than `admitted`.
    pub(crate) fn replay(
        &self,
        sums: &[Sum],
        states: &[Numbers],
        charges: &[u8],
        (count, admitted): (u16, u16),
        now: Timestamp,
    ) -> Option<Vec<(Verdict, Frozen)>> {
        let state = |(sum, numbers)| State::new(self.policy(sum).rule(), numbers);
        let mut states =
            sums.iter().zip(states).map(state).collect::<Option<SmallVec<[State<'_>; 2]>>>()?;
        let mut verdicts = Vec::with_capacity(count.into());
        for number in 0..count {
            let decide = |(sum, state): (&Sum, &State<'_>)| state.decide(sum, now);
            let mut decisions: SmallVec<[Decision; 2]> =
                sums.iter().zip(&states).map(decide).collect();
            let denies = |(sum, decision): (&Sum, &Decision)| sum.enforce && decision.denies();
            let passes = !sums.iter().zip(&decisions).any(denies);
            if passes != (number < admitted) {
                return None;
            }
            for ((sum, state), decision) in sums.iter().zip(&mut states).zip(&mut decisions) {
                if !decision.allows() {
                } else if !passes {
                    // A denied request is not charged, so report what remains without it.
                    *decision =
                        Decision { outcome: Outcome::WouldAllow, ..state.assess(now, Cost::ZERO) };
                } else if sum.cost > Cost::ZERO {
                    let at = if sum.queue.is_some() { now + decision.delay() } else { now };
                    state.charge(at, sum.cost);
                }
            }
            let frozen = |((decision, state), sum): ((Decision, &State<'_>), &Sum)| {
                let is_known = sum.queue.is_none() && decision.remaining == 0;
                let is_frozen = decision.denies() && is_known;
                let wait = || state.assess(now, Cost::ONE).retry_after();
                (decision, is_frozen.then(wait).flatten().unwrap_or_default())
            };
            let decisions: SmallVec<[_; 2]> =
                decisions.into_iter().zip(&states).zip(sums).map(frozen).collect();
            let verdict = of_charges(passes, now, &decisions, charges);
            if !passes {
                // The remaining requests are denied as well, because a denial changes no state.
                verdicts.resize(count.into(), verdict);
                break;
            }
            verdicts.push(verdict);
        }
        Some(verdicts)
    }
}

/// Builds the verdict from the decisions on each sum and how long their keys stay frozen.
pub(crate) fn of_charges(
    admitted: bool,
    now: Timestamp,
    sums: &[(Decision, Micros)],
    charges: &[u8],
) -> (Verdict, Frozen) {
    let of_charge = || charges.iter().map(|&sum| sums[usize::from(sum)]);
    let frozen = if admitted { Frozen::new() } else { of_charge().map(|it| it.1).collect() };
    let verdict = match (charges, sums) {
        ([_], [(only, _)]) => Verdict::single(admitted, now, *only),
        _ => Verdict::new(admitted, now, of_charge().map(|it| it.0)),
    };
    (verdict, frozen)
}

/// A state that consists of numbers, with its rule.
enum State<'a> {
    FixedWindowCounter(&'a fixed_window_counter::FixedWindowCounter, fixed_window_counter::State),
    SlidingWindowCounter(
        &'a sliding_window_counter::SlidingWindowCounter,
        sliding_window_counter::State,
    ),
    TokenBucket(&'a token_bucket::TokenBucket, token_bucket::State),
    LeakyBucket(&'a leaky_bucket::LeakyBucket, leaky_bucket::State),
}

/// Runs `$body` with the rule and the state inside a [`State`].
macro_rules! with_state {
    ($any:expr, $rule:ident, $state:ident => $body:expr) => {
        match $any {
            State::FixedWindowCounter($rule, $state) => $body,
            State::SlidingWindowCounter($rule, $state) => $body,
            State::TokenBucket($rule, $state) => $body,
            State::LeakyBucket($rule, $state) => $body,
        }
    };
}

impl<'a> State<'a> {
    fn new(rule: &'a AnyRule, numbers: &Numbers) -> Option<Self> {
        let [x, y, z] = *numbers;
        // A window's number for the time is its first, a bucket's is its second.
        let [charged_at, at] = [x, y].map(Timestamp::from_micros);
        Some(match rule {
            AnyRule::FixedWindowCounter(rule) => {
                let state = fixed_window_counter::State { at: charged_at, used: y };
                Self::FixedWindowCounter(rule, state)
            }
            AnyRule::SlidingWindowCounter(rule) => Self::SlidingWindowCounter(
                rule,
                sliding_window_counter::State { at: charged_at, previous: y, current: z },
            ),
            AnyRule::TokenBucket(rule) => {
                Self::TokenBucket(rule, token_bucket::State { missing: x, at, refunded: z })
            }
            AnyRule::LeakyBucket(rule) => {
                Self::LeakyBucket(rule, leaky_bucket::State { level: x, at, refunded: z })
            }
            _ => return None,
        })
    }

    /// Decides a charge. If it queues, it is the only one.
    fn decide(&self, sum: &Sum, now: Timestamp) -> Decision {
        let decision = self.assess(now, sum.cost);
        let leaves_at = decision.leaves_at(now).filter(|leaves_at| *leaves_at > now);
        match sum.queue.zip(leaves_at) {
            Some((queue, leaves_at)) => {
                self.assess(leaves_at, sum.cost).queued(leaves_at.since(now), queue)
            }
            None => decision,
        }
    }

    fn assess(&self, now: Timestamp, cost: Cost) -> Decision {
        with_state!(self, rule, state => rule.assess(rule.refresh(state, now), now, cost))
    }

    fn charge(&mut self, now: Timestamp, cost: Cost) {
        with_state!(self, rule, state => rule.charge(state, now, cost));
    }
}
