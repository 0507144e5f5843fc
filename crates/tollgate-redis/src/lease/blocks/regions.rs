//! Three distant regions that lease from one quota. The test moves the clock, and the reference
//! store acts as Redis. `docs/benchmarks/scaling.md` has the figures.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate_core::{Charge, Cost, Granted, Key, Lease, Policy, Quota, Timestamp};
use tollgate_store_tests::reference::Reference;

use super::{Blocks, Plan, Returned};
use crate::clock::{Clock, Moment};
use crate::encode::Ask;
use crate::ticket::Leased;

/// Units per second, and the bucket's capacity.
const RATE: u64 = 3_000;
const MILLISECOND: Moment = 1_000;
const SECOND: Moment = 1_000 * MILLISECOND;
/// The one-way latency between a region and Redis.
const WAY: Moment = 40 * MILLISECOND;
/// Earlier seconds are a warm-up and not counted.
const WARM: u64 = 3;
const SECONDS: u64 = 12;

struct Region {
    blocks: Blocks,
    /// Requests due, in thousandths.
    due: u64,
    is_calling: bool,
}

enum Message {
    /// To Redis.
    Decide,
    Lease(Returned, Ask),
    /// From Redis.
    Granted(Returned, Ask, Granted, Timestamp),
}

/// The number of requests in a second, and how many were admitted.
#[derive(Clone, Copy, Default)]
struct Seen {
    asked: u64,
    admitted: u64,
    /// Decided individually by Redis.
    alone: u64,
}

/// A region's requests per second, by region and second.
type Demand = fn(usize, u64) -> u64;

type Case = (&'static str, Demand);

fn run(lease: Lease, demand: Demand) -> Vec<Seen> {
    let policy = Policy::token_bucket("parent", Quota::per_second(RATE)).expect("builds");
    let policy = policy.with_lease(lease).expect("can be leased");
    let time = Arc::new(AtomicU64::new(0));
    let clock = Clock::by_hand(Arc::clone(&time), true);
    let mut redis = Reference::default();
    let mut regions: Vec<_> = (0..3)
        .map(|_| Region { blocks: Blocks::new(&policy, lease, 0), due: 0, is_calling: false })
        .collect();
    let mut messages: VecDeque<(Moment, usize, Message)> = VecDeque::new();
    let mut seen = vec![Seen::default(); SECONDS as usize];
    let mut tag = 0;
    for now in (0..SECONDS * SECOND).step_by(MILLISECOND as usize) {
        time.store(now, Ordering::SeqCst);
        let second = (now / SECOND) as usize;
        let instant = Timestamp::from_micros(now);
        while messages.front().is_some_and(|(at, ..)| *at <= now) {
            let (_, region, message) = messages.pop_front().expect("a message");
            match message {
                Message::Decide => {
                    let charge = Charge::new(&policy, &Key::GLOBAL, Cost::ONE);
                    let is_admitted = redis.decide(&[charge], instant).is_admitted();
                    seen[second].admitted += u64::from(is_admitted);
                    seen[second].alone += 1;
                }
                Message::Lease(spent, ask) => {
                    let told: Vec<_> = spent.spent().iter().map(|it| (it.id, it.units)).collect();
                    let block = (ask.id(instant), ask.units, ask.ttl);
                    let granted = redis.lease((&policy, &Key::GLOBAL), instant, &told, block);
                    let answer = Message::Granted(spent, ask, granted, instant);
                    messages.push_back((now + WAY, region, answer));
                }
                Message::Granted(spent, ask, granted, decided_at) => {
                    let sent = now - 2 * WAY;
                    let leased = Leased { granted, decided_at, sent };
                    regions[region].blocks.learn(spent, ask, Ok(leased), &clock);
                    regions[region].is_calling = false;
                }
            }
        }
        for (index, region) in regions.iter_mut().enumerate() {
            region.due += demand(index, second as u64);
            while region.due >= 1_000 {
                region.due -= 1_000;
                seen[second].asked += 1;
                if region.blocks.take(1, &clock).is_some() {
                    seen[second].admitted += 1;
                } else {
                    region.blocks.has_refill |= region.blocks.asked(now);
                    messages.push_back((now + WAY, index, Message::Decide));
                }
            }
            if region.blocks.has_refill && !region.is_calling {
                tag += 1;
                if let Plan::Call { spent, ask } = region.blocks.plan(now, || tag) {
                    region.is_calling = true;
                    messages.push_back((now + WAY, index, Message::Lease(spent, ask)));
                }
            }
        }
    }
    seen
}

/// The most units admitted in any span of seconds beyond the bucket's capacity and refill.
fn over_admission(seen: &[Seen]) -> u64 {
    let mut most = 0;
    for first in 0..seen.len() {
        let mut admitted = 0;
        for (seconds, seen) in seen[first..].iter().enumerate() {
            admitted += seen.admitted;
            most = most.max(admitted.saturating_sub(RATE * (seconds as u64 + 2)));
        }
    }
    most
}

#[test]
fn regions_never_exceed_shared_quota() {
    let cases: [Case; 4] =
        [
            ("900 a second in each", |_, _| 900),
            ("2000 a second in each", |_, _| 2_000),
            ("2800 in one, 50 in the others", |region, _| if region == 0 { 2_800 } else { 50 }),
            ("2800 in one, another each 3 s", |region, second| {
                if second / 3 % 3 == region as u64 { 2_800 } else { 50 }
            }),
        ];
    println!("demand | share | time of a lease | of the possible | decided alone | too many");
    for (name, demand) in cases {
        for (of, millis) in [(20, 1_000), (6, 1_000), (3, 1_000), (6, 300)] {
            let lease = Lease::of(1, of).ttl(Duration::from_millis(millis));
            let seen = run(lease, demand);
            let counted = &seen[WARM as usize..];
            let asked: u64 = counted.iter().map(|seen| seen.asked).sum();
            let admitted: u64 = counted.iter().map(|seen| seen.admitted).sum();
            let alone: u64 = counted.iter().map(|seen| seen.alone).sum();
            let possible = asked.min(RATE * (SECONDS - WARM));
            let part = admitted as f64 / possible as f64;
            let over = over_admission(&seen);
            println!(
                "{name} | 1/{of} | {millis} ms | {:.1} % | {:.1} % | {over}",
                100.0 * part,
                100.0 * alone as f64 / asked as f64
            );
            assert_eq!(over, 0, "{name}, 1/{of} for {millis} ms");
            // With a fixed third per region, a region that needs 2800 would get 1000.
            assert!(part > 0.5, "{name}, 1/{of} for {millis} ms: {part}");
        }
    }
}
