//! The numbers that clients see under a leased policy, and how they may be wrong.

use tollgate_core::{Decision, Policy, Source, Verdict};

use super::{ALGORITHMS, Scene, ask, drain, policy, until_leased};
use crate::store::layered;

fn remaining(verdict: &Verdict) -> u64 {
    verdict.decisions()[0].remaining
}

#[tokio::test]
async fn remaining_updates_with_each_block() {
    for algorithm in ALGORITHMS {
        let scene = Scene::start();
        let (store, other) = (scene.store().await, scene.store().await);
        let policy = policy(600, algorithm);
        let exact = Policy::new("p", policy.quota(), algorithm).unwrap();
        let (first, mut spent) = until_leased(&store, &policy).await;
        // Charges that Redis decided after it had granted the block are not included.
        assert!(remaining(&first) >= 600 - spent, "{algorithm}");
        for _ in 0..50 {
            assert!(ask(&other, &exact, 1).await.is_admitted());
        }
        let second = ask(&store, &policy, 1).await;
        assert_eq!(second.source(), Source::Lease, "{algorithm}");
        assert_eq!(remaining(&second), remaining(&first) - 1, "{algorithm}");
        spent += 50 + 1;
        assert!(remaining(&second) >= 600 - spent + 50, "{algorithm}");
        loop {
            let verdict = ask(&store, &policy, 1).await;
            assert!(verdict.is_admitted(), "{algorithm}: the charges never showed");
            spent += 1;
            if remaining(&verdict) <= 600 - spent {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn headers_report_remaining_of_last_block() {
    for algorithm in ALGORITHMS {
        let scene = Scene::start();
        let (store, other) = (scene.store().await, scene.store().await);
        let policy = policy(600, algorithm);
        let exact = Policy::new("p", policy.quota(), algorithm).unwrap();
        let (first, _) = until_leased(&store, &policy).await;
        assert!(ask(&other, &exact, 50).await.is_admitted());
        let answer = layered::ask(&store, &[&policy], "GET").await;
        let remains = remaining(&first) - 1;
        let item = format!(r#""p";r={remains};"#);
        assert!(answer.header("ratelimit").starts_with(&item), "{algorithm}: {answer:?}");
    }
}

#[tokio::test]
async fn redis_counts_leased_units_as_spent() {
    for algorithm in ALGORITHMS {
        let scene = Scene::start();
        let (store, other) = (scene.store().await, scene.store().await);
        let policy = policy(600, algorithm);
        let exact = Policy::new("p", policy.quota(), algorithm).unwrap();
        until_leased(&store, &policy).await;
        let told = remaining(&ask(&other, &exact, 0).await);
        assert_eq!(drain(&other, &exact).await, told, "{algorithm}");
        assert!(drain(&store, &policy).await > 0, "{algorithm}");
    }
}

#[tokio::test]
async fn retry_after_accounts_for_leases() {
    for (algorithm, returns) in ALGORITHMS.into_iter().flat_map(|it| [(it, false), (it, true)]) {
        let scene = Scene::start();
        let (store, other) = (scene.store().await, scene.store().await);
        let policy = policy(600, algorithm);
        let exact = Policy::new("p", policy.quota(), algorithm).unwrap();
        until_leased(&store, &policy).await;
        drain(&other, &exact).await;
        let denied = ask(&other, &exact, 1).await;
        let wait = denied.decisions().iter().find_map(Decision::retry_after).unwrap();
        if returns {
            store.return_leases().await;
        } else {
            scene.set(scene.now() + wait.get());
        }
        assert!(ask(&other, &exact, 1).await.is_admitted(), "{algorithm}: {returns} {denied:?}");
    }
}
