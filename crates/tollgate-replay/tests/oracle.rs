//! Compares a replay's decisions with a simple model, which derives each decision from the list of
//! all previous charges.
#![expect(clippy::unwrap_used, reason = "this crate is all tests, including their helpers")]

use std::sync::Arc;

use proptest::prelude::*;
use tollgate_core::{
    Algorithm, Cost, Key, LeakyMode, Micros, Policy, Quota, Refill, Resolution, Timestamp,
};
use tollgate_engine::{AppliedLimit, Charges, Limit, Limits, SubjectKind};
use tollgate_replay::{Answer, Client, Replay, Request};

/// A charge that was made.
struct Made {
    at: u64,
    cost: u64,
    /// When the charge was refunded, if it was.
    refunded_at: Option<u64>,
}

/// A policy and its charges for each client.
struct Oracle {
    policy: Policy,
    made: Vec<Vec<Made>>,
}

/// Durations are multiples of 100 ms, so events often coincide.
const STEP: u64 = 100_000;

impl Oracle {
    /// Returns the request's delay, or `None` if the policy denies it.
    fn decide(&self, client: usize, now: u64, cost: u64) -> Option<u64> {
        let (limit, window) = (self.policy.quota().limit(), self.policy.window().get());
        let capacity = self.policy.capacity();
        let made = &self.made[client];
        let still = |made: &&Made| made.refunded_at.is_none_or(|refunded_at| refunded_at > now);
        let sum = |counts: &dyn Fn(&Made) -> bool| -> u64 {
            made.iter().filter(still).filter(|made| counts(made)).map(|made| made.cost).sum()
        };
        let index = now / window;
        match self.policy.algorithm().expect("a limit") {
            Algorithm::FixedWindowCounter => {
                (sum(&|made| made.at / window == index) + cost <= limit).then_some(0)
            }
            Algorithm::SlidingWindowLog { .. } | Algorithm::ConcurrentRequests => {
                (sum(&|made| made.at + window > now) + cost <= limit).then_some(0)
            }
            Algorithm::SlidingWindowCounter => {
                let this = sum(&|made| made.at / window == index);
                let before = sum(&|made| made.at / window + 1 == index);
                let shared = (before * (window - now % window)).div_ceil(window);
                (this + cost + shared <= limit).then_some(0)
            }
            Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => {
                // A unit weighs `window`, and `limit` drains per microsecond.
                let (mut level, mut at) = (0_u64, 0);
                for made in made {
                    level = level.saturating_sub((made.at - at) * limit) + made.cost * window;
                    at = made.at;
                }
                level = level.saturating_sub((now - at) * limit);
                let queues = matches!(
                    self.policy.algorithm().expect("a limit"),
                    Algorithm::LeakyBucket { mode: LeakyMode::Queue { .. } }
                );
                let delay = if queues { level.div_ceil(limit) } else { 0 };
                (level + cost * window <= capacity * window).then_some(delay)
            }
        }
    }
}

fn policies() -> impl Strategy<Value = Vec<Policy>> {
    let algorithms = prop::sample::select(vec![
        Algorithm::FixedWindowCounter,
        Algorithm::SlidingWindowLog { resolution: Resolution::Exact },
        Algorithm::SlidingWindowCounter,
        Algorithm::TokenBucket { refill: Refill::Greedy },
        Algorithm::LeakyBucket { mode: LeakyMode::Meter },
        Algorithm::LeakyBucket { mode: LeakyMode::Queue { max_wait: None } },
        Algorithm::ConcurrentRequests,
    ]);
    let policy = (algorithms, 1_u64..8, 1_u64..40);
    prop::collection::vec(policy, 1..4).prop_map(|policies| {
        let policies = policies.into_iter().enumerate();
        let policies = policies.map(|(number, (algorithm, limit, steps))| {
            let window = match algorithm {
                // Permits outlive every response in this test.
                Algorithm::ConcurrentRequests => 1_000 * STEP,
                _ => steps * STEP,
            };
            let quota = Quota::new(limit, Micros::new(window).into());
            Policy::new(format!("p{number}"), quota, algorithm).unwrap()
        });
        policies.collect()
    })
}

/// Steps since the previous request, client, cost, duration, and whether the response counts.
type Recorded = (u64, usize, u64, u64, bool);

fn log() -> impl Strategy<Value = Vec<Recorded>> {
    prop::collection::vec((0_u64..6, 0_usize..3, 1_u64..4, 0_u64..12, any::<bool>()), 1..200)
}

/// For these algorithms, the list of charges is enough to model refunds.
fn models_refunds(policy: &Policy) -> bool {
    matches!(
        policy.algorithm().expect("a limit"),
        Algorithm::FixedWindowCounter | Algorithm::SlidingWindowLog { .. }
    )
}

proptest! {
    #[test]
    fn decisions_match_the_model(policies in policies(), log in log()) {
        let mut oracles: Vec<_> = policies
            .iter()
            .map(|policy| Oracle { policy: policy.clone(), made: (0..3).map(|_| Vec::new()).collect() })
            .collect();
        let keys = ["a", "b", "c"].map(Key::from);
        let limits = Arc::new(Limits::new(policies.iter().cloned().map(Limit::new)));
        let mut replay = Replay::new();
        let (mut now, mut denied, mut denied_clients) = (1_000_000_000 * STEP, 0, [false; 3]);
        for (steps, client, cost, duration, counts) in log {
            now += steps * STEP;
            let costs = oracles.iter().map(|oracle| {
                if oracle.policy.is_concurrency() { 1 } else { cost }
            });
            let costs: Vec<_> = costs.collect();
            let (mut charges, mut actual) = (Charges::default(), Vec::new());
            for (limit, (policy, cost)) in (0..).zip(policies.iter().zip(&costs)) {
                let (key, cost) = (keys[client].clone(), Cost::new(*cost));
                charges.push(AppliedLimit::new(limit, SubjectKind::Other, key, cost), &limits);
                if models_refunds(policy) && !counts {
                    actual.push((limit, Cost::ZERO));
                }
            }
            let rooms = oracles.iter().zip(&costs).map(|(it, cost)| it.decide(client, now, *cost));
            let delay = rooms.collect::<Option<Vec<_>>>().and_then(|all| all.into_iter().max());
            let request = Request::new(Timestamp::from_micros(now), &limits, charges)
                .settling(&actual)
                .of(Client { key: &keys[client], name: &client })
                .lasting(Micros::new(duration * STEP));
            let answer = replay.request(request).unwrap();
            let expected = match delay {
                Some(delay) => Answer::Allowed { wait: Micros::new(delay) },
                None => Answer::Denied,
            };
            prop_assert_eq!(answer, expected);
            match delay {
                Some(delay) => for (oracle, cost) in oracles.iter_mut().zip(&costs) {
                    let ends = oracle.policy.is_concurrency()
                        || models_refunds(&oracle.policy) && !counts;
                    let refunded_at = ends.then_some(now + delay + duration * STEP);
                    oracle.made[client].push(Made { at: now, cost: *cost, refunded_at });
                },
                None => (denied, denied_clients[client]) = (denied + 1, true),
            }
        }
        let report = replay.finish().unwrap();
        prop_assert!(report.is_exact());
        prop_assert_eq!(report.total.counts.denied, denied);
        let touched = denied_clients.into_iter().filter(|it| *it).count() as u64;
        prop_assert_eq!(report.clients_denied, touched);
        prop_assert_eq!(report.denied_clients.len() as u64, touched);
    }
}
