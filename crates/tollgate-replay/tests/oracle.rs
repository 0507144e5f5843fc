//! Replays random requests, and compares each answer with an independent simulation.
//!
//! The simulation shares no code with the algorithms. It remembers every charge of a client, and
//! derives the earliest time for another charge from each limit's definition.
#![expect(clippy::unwrap_used, reason = "this crate is all tests, including their helpers")]

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tollgate_core::{Cost, Key, Policy, Quota, Timestamp};
use tollgate_engine::{Charges, Limit, Limits, Mode};
use tollgate_replay::{Answer, Replay, Request};

#[derive(Clone, Copy, Debug)]
enum Algorithm {
    FixedWindow,
    SlidingWindow,
    TokenBucket,
}

#[derive(Clone, Copy, Debug)]
struct Definition {
    algorithm: Algorithm,
    limit: u64,
    /// In microseconds.
    window: u64,
    /// Of a token bucket.
    burst: u64,
}

impl Definition {
    fn policy(&self, name: &str) -> Policy {
        let quota = Quota::new(self.limit, Duration::from_micros(self.window));
        match self.algorithm {
            Algorithm::FixedWindow => Policy::fixed_window_counter(name, quota),
            Algorithm::SlidingWindow => Policy::sliding_window_log(name, quota),
            Algorithm::TokenBucket => Policy::token_bucket(name, quota.burst(self.burst)),
        }
        .unwrap()
    }

    const fn capacity(&self) -> u64 {
        match self.algorithm {
            Algorithm::TokenBucket => self.burst,
            _ => self.limit,
        }
    }

    /// The earliest time from `now` at which a charge is allowed after these charges, if no other
    /// request is charged before it.
    fn earliest(&self, charges: &[(u64, u64)], now: u64, cost: u64) -> u64 {
        match self.algorithm {
            // The units of a window that is aligned to the epoch never exceed the limit.
            Algorithm::FixedWindow => {
                let window = now / self.window;
                let used = charges.iter().filter(|(at, _)| at / self.window == window);
                let used: u64 = used.map(|(_, cost)| cost).sum();
                if used + cost <= self.limit { now } else { (window + 1) * self.window }
            }
            // Charges less than a window apart never exceed the limit.
            Algorithm::SlidingWindow => {
                let (mut earliest, mut used) = (now, cost);
                for (at, cost) in charges.iter().rev() {
                    used += cost;
                    if used > self.limit {
                        earliest = earliest.max(at + self.window);
                        break;
                    }
                }
                earliest
            }
            // The charges from any of them until now never exceed the burst and the refill.
            Algorithm::TokenBucket => {
                let (mut earliest, mut used) = (now, cost);
                for (at, cost) in charges.iter().rev() {
                    used += cost;
                    let refilled = used.saturating_sub(self.burst) * self.window;
                    earliest = earliest.max(at + refilled.div_ceil(self.limit));
                }
                earliest
            }
        }
    }
}

/// A client's charges by policy, and when its last request passed.
#[derive(Default)]
struct Client {
    charges: HashMap<usize, Vec<(u64, u64)>>,
    passed: u64,
}

impl Client {
    /// Decides a request, which passes in order of arrival and charges all policies or none.
    fn decide(
        &mut self,
        policies: &[(usize, Definition)],
        at: u64,
        cost: u64,
        max_wait: u64,
    ) -> Option<u64> {
        if policies.iter().any(|(_, policy)| cost > policy.capacity()) {
            return None;
        }
        let mut now = at.max(self.passed);
        loop {
            let charges = |number| self.charges.get(number).map_or(&[][..], Vec::as_slice);
            let earliest =
                policies.iter().map(|(number, it)| it.earliest(charges(number), now, cost));
            let earliest = earliest.max().unwrap_or(now);
            if earliest > at + max_wait {
                return None;
            }
            if earliest == now {
                break;
            }
            now = earliest;
        }
        for (number, _) in policies {
            self.charges.entry(*number).or_default().push((now, cost));
        }
        self.passed = now;
        Some(now - at)
    }
}

fn definition() -> impl Strategy<Value = Definition> {
    let algorithm = prop_oneof![
        Just(Algorithm::FixedWindow),
        Just(Algorithm::SlidingWindow),
        Just(Algorithm::TokenBucket),
    ];
    // With a short window, several units are refilled within a few microseconds.
    let window = prop_oneof![50_u64..99, 50_u64..20_000_000];
    (algorithm, 1_u64..9, window, 1_u64..9).prop_map(|(algorithm, limit, window, burst)| {
        Definition { algorithm, limit, window, burst }
    })
}

#[derive(Clone, Debug)]
struct Recorded {
    /// The time since the previous request, in hundredths of a window.
    after: u64,
    client: u8,
    cost: u64,
    /// A bit for each policy that it charges.
    policies: u8,
}

fn recorded(costs: std::ops::Range<u64>) -> impl Strategy<Value = Recorded> {
    (prop_oneof![Just(0), 0_u64..100, 0_u64..1_000], 0_u8..4, costs, 1_u8..8)
        .prop_map(|(after, client, cost, policies)| Recorded { after, client, cost, policies })
}

/// Compares all answers. The requests wait for up to `max_wait`, or are denied immediately if it is
/// zero.
fn compare(
    definitions: &[Definition],
    requests: &[Recorded],
    max_wait: u64,
) -> Result<(), TestCaseError> {
    let mode = match max_wait {
        0 => Mode::Reject,
        _ => Mode::Wait(Duration::from_micros(max_wait)),
    };
    // The limits for each combination of policies.
    let policies: Vec<_> =
        definitions.iter().enumerate().map(|(n, it)| it.policy(&n.to_string())).collect();
    let chosen = |bits: u8| (0..definitions.len()).filter(move |n| bits & (1 << n) > 0);
    let limits: Vec<_> = (0..8)
        .map(|bits| chosen(bits).map(|n| Limit::new(policies[n].clone()).mode(mode)))
        .map(|limits| Arc::new(Limits::new(limits)))
        .collect();
    let mut clients: HashMap<u8, Client> = HashMap::new();
    let mut replay = Replay::new();
    let (mut expected, mut answers) = (Vec::new(), Vec::new());
    let mut at = 1_000_000_000_000;
    for Recorded { after, client, cost, policies } in requests {
        at += after * definitions[0].window / 100;
        let limits = &limits[usize::from(*policies)];
        let key = Key::new([*client]);
        let charges = Charges::of_each(limits, &key, Cost::new(*cost));
        let mut request = Request::new(Timestamp::from_micros(at), limits, charges);
        answers.push(replay.request(&mut request).unwrap());
        let policies: Vec<_> = chosen(*policies).map(|n| (n, definitions[n])).collect();
        let client = clients.entry(*client).or_default();
        expected.push(client.decide(&policies, at, *cost, max_wait));
    }
    replay.finish().unwrap();
    for resolved in replay.resolved() {
        answers[usize::try_from(resolved.number).unwrap()] = resolved.answer;
    }
    let answers = answers.into_iter().map(|answer| match answer {
        Answer::Allowed { wait } => Some(wait.get()),
        _ => None,
    });
    prop_assert_eq!(answers.collect::<Vec<_>>(), expected);
    Ok(())
}

proptest! {
    #[test]
    fn single_limits_match_their_definitions(
        definition in definition(),
        requests in prop::collection::vec(recorded(1..5), 1..120),
    ) {
        let requests: Vec<_> =
            requests.into_iter().map(|it| Recorded { policies: 1, ..it }).collect();
        compare(&[definition], &requests, 0)?;
    }

    #[test]
    fn levels_charge_all_or_none(
        definitions in prop::collection::vec(definition(), 3),
        requests in prop::collection::vec(recorded(1..4), 1..120),
    ) {
        compare(&definitions, &requests, 0)?;
    }

    /// Each request charges all policies, because requests with different keys may overtake.
    #[test]
    fn waits_end_at_the_earliest_time(
        definitions in prop::collection::vec(definition(), 1..4),
        requests in prop::collection::vec(recorded(1..2), 1..80),
        windows in 1_u64..4,
    ) {
        let policies = (1 << definitions.len()) - 1;
        let requests: Vec<_> =
            requests.into_iter().map(|it| Recorded { policies, ..it }).collect();
        let max_wait = definitions[0].window * windows;
        compare(&definitions, &requests, max_wait)?;
    }
}
