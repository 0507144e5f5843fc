//! Replicas that lease, on random traces, compared with an oracle that sees each unit as it is
//! spent.

use fastrand::Rng;
use tollgate_core::{Outcome, Policy, Source};
use tollgate_redis::RedisStore;
use tollgate_store_tests::{is_long, seeds};

use super::oracle::Oracle;
use super::{ALGORITHMS, START, Scene, TTL, ask, policy};

macro_rules! traces {
    ($($test:ident $index:literal)+) => {
        $(
            #[tokio::test]
            async fn $test() {
                let mut leased = 0;
                for (seed, limit) in seeds(3).zip([60, 600, 6_000]) {
                    leased += trace(&policy(limit, ALGORITHMS[$index]), seed).await;
                }
                assert!(leased > 500, "{leased} were leased");
            }
        )+
    };
}

traces! {
    fixed_window_never_exceeds_limit 0
    exact_log_never_exceeds_limit 1
    thousandth_log_never_exceeds_limit 2
    sliding_window_counter_never_exceeds_limit 3
    token_bucket_never_exceeds_limit 4
    meter_never_exceeds_limit 5
}

/// Three replicas: two lease and sometimes disappear silently, while the third always calls Redis.
/// Time advances to the microsecond at which blocks expire and windows start.
async fn trace(policy: &Policy, seed: u64) -> u64 {
    let scene = Scene::start();
    let mut rng = Rng::with_seed(seed);
    let exact = Policy::new("p", policy.quota(), policy.kind()).unwrap();
    let mut stores = vec![scene.store().await, scene.store().await, scene.store().await];
    let mut oracle = Oracle::new(policy);
    let (mut leased, mut ends_at) = (0, START);
    let steps = if is_long() { 3_000 } else { 500 };
    for step in 0..steps {
        let replica = rng.usize(..3);
        if rng.u8(..10) == 0 {
            // Charge all remaining units, so a single further unit would be too many.
            let rest = ask(&stores[2], &exact, 0).await.decisions()[0].remaining;
            // This fails if a block was fetched in between.
            if ask(&stores[2], &exact, rest).await.is_admitted() {
                let (at, what) = (scene.now(), format_args!("{policy:?} {seed} step {step}"));
                assert!(oracle.allows(at, rest), "{what}: all {rest} at {at}");
                oracle.take(at, rest);
            }
        }
        let policy = if replica == 2 { &exact } else { policy };
        for _ in 0..rng.usize(..40) {
            let cost = [1, 1, 1, 2, 5][rng.usize(..5)];
            let verdict = ask(&stores[replica], policy, cost).await;
            if !verdict.is_admitted() {
                break;
            }
            let at = scene.now();
            let allows = oracle.allows(at, cost);
            assert!(allows, "{policy:?} seed {seed} step {step}: {cost} units at {at}");
            oracle.take(at, cost);
            if verdict.source() == Source::Lease {
                leased += 1;
                if let Outcome::Allow { charged_at, .. } = verdict.decisions()[0].outcome {
                    // For most blocks, this is the last microsecond.
                    ends_at = charged_at.as_micros() + TTL;
                }
            }
        }
        let now = scene.now();
        oracle.forget(now);
        scene.set(match rng.u8(..40) {
            0..20 => now,
            20..30 => now + rng.u64(..TTL / 10),
            30..35 => (ends_at + rng.u64(..3)).saturating_sub(1).max(now),
            35 => ((now / 60_000_000 + 1) * 60_000_000 - 1 + rng.u64(..2)).max(now),
            36 => now + rng.u64(..20_000_000),
            _ => now + rng.u64(..2 * TTL),
        });
        if rng.u8(..100) == 0 {
            let replica = rng.usize(..2);
            stores[replica] = scene.store().await;
        }
        // Refill calls may or may not finish here.
        for _ in 0..rng.u8(..4) {
            tokio::task::yield_now().await;
        }
    }
    drop::<Vec<RedisStore>>(stores);
    leased
}
