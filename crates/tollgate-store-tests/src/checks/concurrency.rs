//! Many concurrent tasks.

use std::collections::BTreeSet;

use tokio::task::JoinSet;
use tollgate_core::{Charge, Cost, Key, Policy, Store, Verdict};

use super::{LONG, MODES, charge, decide, fresh_id, policy, remaining, settle, timed};
use crate::Harness;

const TASKS: u64 = 32;
const EACH: u64 = 25;

/// Runs `TASKS` tasks that each send `EACH` requests, and returns the verdicts in any order.
async fn storm<S: Store>(
    store: &S,
    policies: &[(Policy, Key)],
    cost: impl Fn(u64) -> Cost + Copy + Send + 'static,
) -> Vec<(Cost, Verdict)> {
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (store, policies) = (store.clone(), policies.to_vec());
        tasks.spawn(async move {
            let mut verdicts = Vec::new();
            for n in 0..EACH {
                let cost = cost(task * EACH + n);
                let charges: Vec<_> =
                    policies.iter().map(|(p, k)| Charge::new(p, k, cost)).collect();
                verdicts.push((cost, decide(&store, &charges).await));
                tokio::task::yield_now().await;
            }
            verdicts
        });
    }
    tasks.join_all().await.into_iter().flatten().collect()
}

fn admitted(verdicts: &[(Cost, Verdict)]) -> u64 {
    let admitted = verdicts.iter().filter(|(_, verdict)| verdict.is_admitted());
    admitted.map(|(cost, _)| cost.get()).sum()
}

/// 800 requests at a limit of 500: 500 are allowed, each with a different `remaining`.
pub async fn concurrent_tasks_share_one_limit<H: Harness>(_: &H, store: &H::Store) {
    for algorithm in MODES {
        let policies = [(policy(&format!("{algorithm:?}"), 500, algorithm), Key::GLOBAL)];
        let verdicts = storm(store, &policies, |_| Cost::ONE).await;
        assert_eq!(admitted(&verdicts), 500, "{algorithm:?}");
        let left: BTreeSet<_> = verdicts
            .iter()
            .filter(|(_, verdict)| verdict.is_admitted())
            .map(|(_, verdict)| verdict.decisions()[0].remaining)
            .collect();
        assert_eq!(left, (0..500).collect(), "{algorithm:?}: some sequential order");
    }
}

/// With several policies per request, each policy is charged for exactly the admitted requests.
pub async fn concurrent_tasks_obey_tightest_policy<H: Harness>(_: &H, store: &H::Store) {
    for algorithm in MODES {
        let wide = policy(&format!("{algorithm:?} wide"), 700, algorithm);
        let tight = policy(&format!("{algorithm:?} tight"), 300, algorithm);
        let policies = [(wide.clone(), Key::from("a")), (tight, Key::from("b"))];
        let verdicts = storm(store, &policies, |_| Cost::ONE).await;
        assert_eq!(admitted(&verdicts), 300, "{algorithm:?}");
        assert_eq!(remaining(store, &wide, &Key::from("a")).await, 400, "{algorithm:?}");
    }
}

/// Some requests cost a single unit, so the limit is used up exactly.
pub async fn mixed_costs_use_every_unit<H: Harness>(_: &H, store: &H::Store) {
    for algorithm in MODES {
        let policy = policy(&format!("{algorithm:?}"), 1_000, algorithm);
        let policies = [(policy.clone(), Key::GLOBAL)];
        let verdicts = storm(store, &policies, |n| Cost::new([1, 3, 5, 10][n as usize % 4])).await;
        let in_storm = admitted(&verdicts);
        let left = remaining(store, &policy, &Key::GLOBAL).await;
        assert_eq!(in_storm + left, 1_000, "{algorithm:?}");
        while charge(store, &policy, &Key::GLOBAL, 1).await.allows() {}
        assert_eq!(remaining(store, &policy, &Key::GLOBAL).await, 0, "{algorithm:?}");
    }
}

/// Every task charges units and refunds them. In the end, the full quota is available.
pub async fn concurrent_settlements_lose_no_units<H: Harness>(_: &H, store: &H::Store) {
    // These algorithms refund exactly, regardless of other charges made since.
    for algorithm in [MODES[0], MODES[1], MODES[3]] {
        let policy = policy(&format!("{algorithm:?}"), 100, algorithm);
        let mut tasks = JoinSet::new();
        for _ in 0..TASKS {
            let (store, policy) = (store.clone(), policy.clone());
            tasks.spawn(async move {
                for _ in 0..EACH {
                    let charges = [Charge::new(&policy, &Key::GLOBAL, Cost::new(3))];
                    let verdict = decide(&store, &charges).await;
                    tokio::task::yield_now().await;
                    for receipt in verdict.receipts(&charges, fresh_id) {
                        settle(&store, &receipt, 0).await;
                        settle(&store, &receipt, 0).await;
                    }
                }
            });
        }
        tasks.join_all().await;
        assert_eq!(remaining(store, &policy, &Key::GLOBAL).await, 100, "{algorithm:?}");
    }
}

/// No two requests leave a queue at the same time.
pub async fn queued_requests_depart_separately<H: Harness>(_: &H, store: &H::Store) {
    let [.., queue, _] = MODES;
    let policy = timed("queue", 10_000, LONG, queue);
    let interval = LONG.as_micros() as u64 / 10_000;
    let verdicts = storm(store, &[(policy, Key::GLOBAL)], |_| Cost::ONE).await;
    let mut departures: Vec<_> = verdicts
        .iter()
        .map(|(_, verdict)| (verdict.decided_at() + verdict.delay()).as_micros())
        .collect();
    departures.sort_unstable();
    for pair in departures.windows(2) {
        assert_eq!(pair[1] - pair[0], interval);
    }
}
