//! All algorithms on one hot key.

use std::time::Duration;

use tollgate::Quota;
use tollgate::policy::{Algorithm, LeakyMode, Refill, Resolution};

use super::side::{Expect, Keys, peer};
use super::sides::{Bucket, Governor, Tollgate};
use super::{ROUNDS, SPAN};
use crate::Failure;
use crate::clock::Ticking;
use crate::report::{Table, Target};
use crate::rounds::{Peer, Spread, interleave};

/// A row: an algorithm under a quota.
struct Case {
    name: &'static str,
    quota: &'static str,
    limiter: Limiter,
}

enum Limiter {
    Real(Tollgate),
    Ticking(Tollgate<Ticking>),
}

pub(super) fn table() -> Result<Table, Failure> {
    let mut table = Table::new(
        "All algorithms, one hot key, one thread, beside governor's token bucket",
        "algorithm | quota | answer | ns | × governor | target | met",
    );
    let keys = Keys::new(1);
    for (answer, expect) in [("allowed", Expect::Allowed), ("denied", Expect::Denied)] {
        let (bucket, quota, cases) = match expect {
            Expect::Allowed => (Bucket::ENDLESS, "10^9 per s", allowed()?),
            Expect::Denied => (Bucket::SPENT, "1 per h", denied()?),
        };
        let governor = Governor::<String>::new(bucket.theirs()?);
        let mut peers: Vec<Peer<'_>> = vec![peer(&governor, &keys, 1, SPAN, expect)];
        peers.extend(cases.iter().map(|case| match &case.limiter {
            Limiter::Real(limiter) => peer(limiter, &keys, 1, SPAN, expect),
            Limiter::Ticking(limiter) => peer(limiter, &keys, 1, SPAN, expect),
        }));
        let measured = interleave(&mut peers, ROUNDS);
        let names = [("governor, `String` keys", quota)];
        let names = names.into_iter().chain(cases.iter().map(|case| (case.name, case.quota)));
        for (index, ((name, quota), ns)) in names.zip(&measured).enumerate() {
            let target = if index == 0 { Target::None } else { Target::AtMost(1.0) };
            let ratio = Spread::of_ratios(ns, &measured[0]);
            table.row(&[&[name, quota, answer], &Spread::of(ns), &(ratio, target)]);
        }
    }
    Ok(table)
}

const TOKENS: Algorithm = Algorithm::TokenBucket { refill: Refill::Greedy };
const TOKENS_IN_INTERVALS: Algorithm = Algorithm::TokenBucket { refill: Refill::Interval };
const METER: Algorithm = Algorithm::LeakyBucket { mode: LeakyMode::Meter };
const QUEUE: Algorithm = Algorithm::LeakyBucket { mode: LeakyMode::Queue { max_wait: None } };
const LOG: Algorithm = Algorithm::SlidingWindowLog { resolution: Resolution::Auto };

/// The algorithms with a state of fixed size.
const SMALL: [(&str, Algorithm); 6] = [
    ("token bucket, greedy", TOKENS),
    ("token bucket, interval", TOKENS_IN_INTERVALS),
    ("leaky bucket, meter", METER),
    ("leaky bucket, queue", QUEUE),
    ("fixed window counter", Algorithm::FixedWindowCounter),
    ("sliding window counter", Algorithm::SlidingWindowCounter),
];

fn allowed() -> Result<Vec<Case>, Failure> {
    let mut cases = small("10^9 per s", Quota::per_second(1_000_000_000))?;
    // A unit per microsecond, so each decision removes an entry and adds an entry.
    cases.push(log("100 per 100 µs, an entry each", micros(100, 100))?);
    cases.push(log("1000 per 1000 µs, an entry each", micros(1_000, 1_000))?);
    let coarse = Tollgate::new(LOG, Quota::per_second(1_000_000_000), 1)?;
    cases.push(Case {
        name: "sliding window log, thousandths",
        quota: "10^9 per s, 1000 entries",
        limiter: Limiter::Real(coarse),
    });
    Ok(cases)
}

fn denied() -> Result<Vec<Case>, Failure> {
    let mut cases = small("1 per h", Quota::per_hour(1))?;
    cases.push(log("100 per h, an entry each", Quota::per_hour(100))?);
    cases.push(log("1000 per h, an entry each", Quota::per_hour(1_000))?);
    // A quota of 7 and not of 1, because processors divide faster by 1.
    cases.push(Case {
        name: "token bucket, greedy",
        quota: "7 per h",
        limiter: Limiter::Real(Tollgate::new(TOKENS, Quota::per_hour(7), 1)?),
    });
    Ok(cases)
}

fn small(text: &'static str, quota: Quota) -> Result<Vec<Case>, Failure> {
    SMALL
        .into_iter()
        .map(|(name, algorithm)| {
            let limiter = Limiter::Real(Tollgate::new(algorithm, quota, 1)?);
            Ok(Case { name, quota: text, limiter })
        })
        .collect()
}

fn log(text: &'static str, quota: Quota) -> Result<Case, Failure> {
    let limiter = Limiter::Ticking(Tollgate::ticking(LOG, quota)?);
    Ok(Case { name: "sliding window log, exact", quota: text, limiter })
}

fn micros(limit: u64, window: u64) -> Quota {
    Quota::new(limit, Duration::from_micros(window))
}
