//! A token budget: each worker reserves 4096 of 100 000 tokens a minute, uses 200 of them, and
//! settles after about three seconds. A worker that is denied tries again after a second.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tollgate_core::{Algorithm, Charged, LeakyMode, Policy, Quota, Refill};

use crate::limiter::{Limiter, limiter, receipt};

const SECOND: u64 = 1_000_000;
const CAPACITY: u64 = 100_000;
const RESERVED: u64 = 4_096;
const USED: u64 = 200;

enum Budget {
    Bucket(Box<dyn Limiter>),
    /// The most that is possible: reservations do not drain, and only the used tokens do. The
    /// level has 60 parts per token, and drains by a part in 10 µs.
    Held {
        reserved: u64,
        level: u64,
        at: u64,
    },
}

impl Budget {
    fn reserve(&mut self, now: u64) -> Option<Option<Charged>> {
        match self {
            Self::Bucket(key) => receipt(&key.request(now, RESERVED), now, RESERVED).map(Some),
            Self::Held { reserved, level, at } => {
                (*level, *at) = (level.saturating_sub((now - *at) / 10), now);
                let fits = *level / 60 + *reserved + RESERVED <= CAPACITY;
                *reserved += if fits { RESERVED } else { 0 };
                fits.then_some(None)
            }
        }
    }

    fn settle(&mut self, charged: Option<&Charged>, now: u64) {
        match (self, charged) {
            (Self::Bucket(key), Some(charged)) => {
                key.give_back(charged, RESERVED - USED, now);
            }
            (Self::Held { reserved, level, .. }, _) => {
                *reserved -= RESERVED;
                *level += 60 * USED;
            }
            (Self::Bucket(_), None) => unreachable!("each charge to a bucket has a receipt"),
        }
    }

    /// Returns how many calls pass in five minutes. Pauses are up to `jitter` percent longer.
    fn calls(mut self, workers: u64, jitter: u64) -> u64 {
        let mut random = 1_u64;
        let mut up_to = |most: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % most.max(1)
        };
        // Without jitter, the workers start one after the other.
        let start = |worker, late| SECOND + worker * 3 * SECOND / workers + late;
        let mut events: BinaryHeap<_> =
            (0..workers).map(|it| Reverse((start(it, up_to(jitter * 10_000)), it))).collect();
        let mut open: Vec<Option<Option<Charged>>> = (0..workers).map(|_| None).collect();
        let mut passed = 0;
        while let Some(Reverse((now, worker))) = events.pop().filter(|it| it.0.0 < 300 * SECOND) {
            let open = &mut open[usize::try_from(worker).expect("few workers")];
            if let Some(charged) = open.take() {
                self.settle(charged.as_ref(), now);
            }
            *open = self.reserve(now);
            passed += u64::from(open.is_some());
            let pause = if open.is_some() { 3 * SECOND + up_to(jitter * 30_000) } else { SECOND };
            events.push(Reverse((now + pause, worker)));
        }
        passed
    }
}

/// Every receipt must not subtract the tokens refilled since. Without more state, some tokens are
/// lost at irregular intervals.
#[test]
fn concurrent_refunds_keep_the_budget() {
    for (workers, jitter, least) in [
        (2, 0, 100),
        (8, 0, 100),
        (20, 0, 100),
        (2, 50, 100),
        (8, 50, 100),
        (20, 50, 97),
        (60, 0, 100),
        (60, 50, 81),
    ] {
        let held = Budget::Held { reserved: 0, level: 0, at: 0 }.calls(workers, jitter);
        for refill in [
            Algorithm::TokenBucket { refill: Refill::Greedy },
            Algorithm::LeakyBucket { mode: LeakyMode::Meter },
        ] {
            let policy = Policy::new("tokens", Quota::per_minute(CAPACITY), refill).unwrap();
            let calls = Budget::Bucket(limiter(&policy)).calls(workers, jitter);
            assert!(
                calls * 100 >= held * least,
                "{workers} workers, jitter {jitter}: {calls} of {held}"
            );
        }
    }
}
