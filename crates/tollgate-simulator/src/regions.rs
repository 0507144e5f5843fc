//! Three distant regions lease from the same quota. `docs/benchmarks/scaling.md` has the figures.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tollgate_core::{Cost, Key, Lease, Policy, Quota, Source, StoreExt};

use crate::fleet::{Fleet, KEY};

/// Units per second, and the bucket's capacity.
const RATE: u64 = 300;
/// The one-way latency between a region and Redis.
const LATENCY: Duration = Duration::from_millis(40);
const REGIONS: usize = 3;
/// Earlier seconds are a warm-up and not counted.
const WARM: usize = 3;
const SECONDS: u64 = 12;
const MILLISECOND: Duration = Duration::from_millis(1);

/// The requests of a second.
#[derive(Clone, Copy, Default)]
struct Seen {
    asked: u64,
    admitted: u64,
    /// Answered by Redis, after a round trip.
    by_redis: u64,
}

/// A region's requests per second, by region and second.
type Demand = fn(usize, u64) -> u64;

type Case = (&'static str, Demand);

async fn run(lease: Lease, demand: Demand) -> Vec<Seen> {
    let policy = Policy::token_bucket("p", Quota::per_second(RATE)).expect("builds");
    let policy = policy.with_lease(lease).expect("a policy that can lease");
    let fleet = Fleet::new(policy.clone()).replicas(REGIONS).latency(LATENCY);
    let (world, stores) = fleet.connect(&mut Rng::with_seed(0), 6 * LATENCY).await;
    for store in &stores {
        // The first calls load the script, and take longer than requests may wait.
        while store.peek(&policy, &Key::new(KEY)).await.is_err() {}
    }
    let seen = Arc::new(Mutex::new(vec![Seen::default(); SECONDS as usize + 1]));
    let (start, began) = (Instant::now(), world.lock().servers[0].clock.now());
    let mut requests = JoinSet::new();
    let mut due = [0; REGIONS];
    for tick in 0..SECONDS as u32 * 1_000 {
        sleep_until(start + MILLISECOND * tick).await;
        let second = u64::from(tick / 1_000);
        for (region, due) in due.iter_mut().enumerate() {
            *due += demand(region, second);
            let count = *due / 1_000;
            *due %= 1_000;
            seen.lock()[second as usize].asked += count;
            for _ in 0..count {
                let (store, policy, seen) =
                    (stores[region].clone(), policy.clone(), Arc::clone(&seen));
                requests.spawn(async move {
                    let verdict = store.charge(&policy, &Key::new(KEY), Cost::ONE).await;
                    // The store sheds a request that it could not answer before the deadline.
                    let Ok(verdict) = verdict else { return };
                    let is_by_redis = verdict.source() == Source::Store;
                    // Redis' charges count when it decides, and leased units when they are spent.
                    let second = if is_by_redis {
                        verdict.decided_at().since(began).get() / 1_000_000
                    } else {
                        start.elapsed().as_secs()
                    };
                    let seen = &mut seen.lock()[second as usize];
                    seen.admitted += u64::from(verdict.is_admitted());
                    seen.by_redis += u64::from(is_by_redis);
                });
            }
        }
    }
    requests.join_all().await;
    let seen = seen.lock();
    seen.clone()
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
    let cases: [Case; 4] = [
        ("90 a second in each", |_, _| 90),
        ("200 a second in each", |_, _| 200),
        ("280 in one, 5 in the others", |region, _| if region == 0 { 280 } else { 5 }),
        (
            "280 in one, another each 3 s",
            |region, second| {
                if second / 3 % 3 == region as u64 { 280 } else { 5 }
            },
        ),
    ];
    println!("demand | share | lease time | of possible | by a round trip | over the limit");
    for (name, demand) in cases {
        for (of, millis) in [(20, 1_000), (3, 1_000), (6, 300)] {
            let lease = Lease::of(1, of).ttl(Duration::from_millis(millis));
            let seen = crate::paused(run(lease, demand));
            let counted = &seen[WARM..SECONDS as usize];
            let asked: u64 = counted.iter().map(|seen| seen.asked).sum();
            let admitted: u64 = counted.iter().map(|seen| seen.admitted).sum();
            let by_redis: u64 = counted.iter().map(|seen| seen.by_redis).sum();
            let possible = asked.min(RATE * counted.len() as u64);
            let part = admitted as f64 / possible as f64;
            let over = over_admission(&seen);
            println!(
                "{name} | 1/{of} | {millis} ms | {:.1} % | {:.1} % | {over}",
                100.0 * part,
                100.0 * by_redis as f64 / asked as f64
            );
            assert_eq!(over, 0, "{name}, 1/{of} for {millis} ms");
            // With a fixed third per region, a region that needs 280 would get 100.
            assert!(part > 0.5, "{name}, 1/{of} for {millis} ms: {part}");
        }
    }
}
