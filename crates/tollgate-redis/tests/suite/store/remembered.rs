//! Compares remembered answers with Redis' answers at the same moment, in every field.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use tollgate_core::{
    Charge, Cost, Decision, Key, Micros, Outcome, Policy, Quota, Source, Store, StoreExt, Strikes,
    Verdict,
};
use tollgate_redis::RedisStore;
use tollgate_test_servers::Redis;

use super::{connected, patient};
use crate::support::modes;

/// The default costs of HTTP methods.
const COSTS: [u64; 4] = [1, 3, 5, 10];
/// Decades ahead of the server's own clock, by which keys expire.
const START: u64 = 4_000_000_000_000_000;

fn policies() -> Vec<Policy> {
    let policies = modes(20_000_000).into_iter().zip(7..).map(|(algorithm, limit)| {
        let quota = Quota::new(limit, Duration::from_secs(limit));
        Policy::new(format!("{algorithm:?}"), quota, algorithm).unwrap()
    });
    let day = tollgate_calendar::day("Europe/Berlin").unwrap();
    let calendar = Policy::fixed_window_counter("calendar", Quota::per_calendar(40, day)).unwrap();
    let strikes = Strikes::of_denials(9, Duration::from_secs(60)).block(Duration::from_secs(5));
    let penalty = Policy::penalty("penalty", strikes).unwrap();
    policies.chain([calendar, penalty]).collect()
}

/// A server, two stores, and their shared manual clock.
struct Scene {
    time: Arc<AtomicU64>,
    remembers: RedisStore,
    /// Calls Redis for each request.
    asks: RedisStore,
    _server: Redis,
}

impl Scene {
    async fn start() -> Self {
        let server = Redis::start();
        let time = Arc::new(AtomicU64::new(START));
        let builder = || patient(&server.url()).time(Arc::clone(&time));
        let remembers = connected(builder().deny_cache(Duration::from_secs(60))).await;
        let asks = connected(builder().deny_cache(Duration::ZERO)).await;
        Self { time, remembers, asks, _server: server }
    }

    fn pass(&self, micros: u64) {
        self.time.fetch_add(micros, Ordering::SeqCst);
    }
}

/// Counts the comparisons of each kind.
#[derive(Default)]
struct Seen(HashMap<String, u32>);

impl Seen {
    fn count(&mut self, what: impl Into<String>) {
        *self.0.entry(what.into()).or_default() += 1;
    }

    fn assert(&self, what: &str, least: u32) {
        let count = self.0.get(what).copied().unwrap_or_default();
        assert!(count >= least, "{what}: {count} of {:?}", self.0);
    }
}

impl Scene {
    /// Sends a request, and compares a remembered answer with Redis' answer.
    async fn compare(&self, charges: &[Charge<'_>], seen: &mut Seen) -> Verdict {
        let answer = self.remembers.decide(charges).await.unwrap();
        if answer.source() != Source::Cache {
            return answer;
        }
        let asked = self.asks.decide(charges).await.unwrap();
        assert_eq!(asked.source(), Source::Store);
        let what = format!("{answer:?}\n{asked:?}\n{charges:?}");
        assert_eq!(answer.is_admitted(), asked.is_admitted(), "{what}");
        assert_eq!(answer.decided_at(), asked.decided_at(), "{what}");
        assert_eq!(answer.decisions().len(), charges.len(), "{what}");
        let decisions = answer.decisions().iter().zip(asked.decisions());
        for (charge, (mine, theirs)) in charges.iter().zip(decisions) {
            if mine.outcome == Outcome::Undecided {
                seen.count("left out");
                continue;
            }
            assert_eq!(mine, theirs, "{what}");
            seen.count(charge.policy.name());
            seen.count(match mine.outcome {
                Outcome::ExceedsCapacity => "exceeds".to_owned(),
                _ => format!("{} units", charge.cost.get()),
            });
        }
        seen.count(format!("{} charges", charges.len()));
        answer
    }
}

/// Another replica sometimes charges a small cost. It cannot charge a frozen key, and its charges
/// to other keys do not affect remembered answers.
#[tokio::test]
async fn remembered_answers_match_redis() {
    let scene = Scene::start().await;
    let policies = policies();
    let mut rng = Rng::with_seed(tollgate_store_tests::seed());
    let mut seen = Seen::default();
    for episode in 0..120 {
        // Each policy is first equally often.
        let mut order: Vec<_> = policies.iter().collect();
        order.swap(0, episode % policies.len());
        rng.shuffle(&mut order[1..]);
        // A penalty blocks after denials by another policy.
        let least = if order[0].is_penalty() { 2 } else { 1 };
        let asked: Vec<_> = order[..rng.usize(least..=3)]
            .iter()
            .map(|policy| (policy, Key::from(["a", "b"][rng.usize(..2)]), rng.u8(..6) > 0))
            .collect();
        // Some of the keys have no units left.
        let (policy, key, _) = asked.iter().find(|(policy, ..)| !policy.is_penalty()).unwrap();
        while scene.asks.charge(policy, key, Cost::ONE).await.unwrap().is_admitted() {}
        let mut wait = 0;
        for _ in 0..30 {
            let one = COSTS[rng.usize(..4)];
            let mut cost = || Cost::new(if rng.bool() { one } else { COSTS[rng.usize(..4)] });
            let charges: Vec<_> = asked
                .iter()
                .map(|(policy, key, enforce)| {
                    let charge = Charge::new(policy, key, cost());
                    if *enforce { charge } else { charge.shadow() }
                })
                .collect();
            let answer = scene.compare(&charges, &mut seen).await;
            let waits = answer.decisions().iter().filter_map(Decision::retry_after);
            wait = waits.min().map_or(wait, Micros::get);
            let (policy, key, _) = &asked[rng.usize(..asked.len())];
            if rng.u8(..3) == 0 {
                let little = Cost::new(rng.u64(1..=2));
                scene.asks.charge(policy, key, little).await.unwrap();
            }
            scene.pass(match rng.u8(..20) {
                0..12 => rng.u64(0..2),
                12..16 => rng.u64(1..50_000),
                // Around the instant at which a request passes.
                16..19 => (wait + rng.u64(0..3)).saturating_sub(1),
                _ => rng.u64(1..3_000_000),
            });
        }
        if episode % 4 == 0 {
            scene.pass(30_000_000);
        }
    }
    policies.iter().for_each(|policy| seen.assert(policy.name(), 1));
    COSTS.iter().for_each(|cost| seen.assert(&format!("{cost} units"), 30));
    (1..=3).for_each(|count| seen.assert(&format!("{count} charges"), 30));
    ["left out", "exceeds"].iter().for_each(|what| seen.assert(what, 10));
}
