//! Requests that go on while something happens to the cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tollgate_core::{Charge, Cost, Key, Policy, Store};
use tollgate_redis::RedisStore;

/// Tasks that ask for one unit after the other, of the same quotas.
#[derive(Debug)]
pub(crate) struct Load {
    is_over: Arc<AtomicBool>,
    admitted: Arc<AtomicU64>,
    tasks: JoinSet<Tally>,
}

/// What came of them.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) admitted: u64,
    pub(crate) denied: u64,
    /// Errors that surely charged nothing.
    pub(crate) refused: u64,
    /// Errors that may have charged.
    pub(crate) lost: u64,
    /// One of the errors.
    pub(crate) error: Option<String>,
    pub(crate) slowest: Duration,
}

impl Load {
    /// Begins with so many tasks.
    pub(crate) fn begin(store: &RedisStore, policies: &[Policy], key: &Key, tasks: usize) -> Self {
        let mut load =
            Self { is_over: Arc::default(), admitted: Arc::default(), tasks: JoinSet::new() };
        for _ in 0..tasks {
            let (is_over, admitted) = (Arc::clone(&load.is_over), Arc::clone(&load.admitted));
            let (store, policies, key) = (store.clone(), policies.to_vec(), key.clone());
            load.tasks.spawn(async move {
                let mut tally = Tally::default();
                while !is_over.load(Ordering::Relaxed) {
                    tally.ask(&store, &policies, &key).await;
                    admitted.store(tally.admitted, Ordering::Relaxed);
                    // Other processes need the two cores as well.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                tally
            });
        }
        load
    }

    /// How many requests one of the tasks has seen admitted.
    pub(crate) fn admitted(&self) -> u64 {
        self.admitted.load(Ordering::Relaxed)
    }

    pub(crate) async fn end(self) -> Tally {
        self.is_over.store(true, Ordering::Relaxed);
        self.tasks.join_all().await.into_iter().fold(Tally::default(), Tally::plus)
    }
}

impl Tally {
    async fn ask(&mut self, store: &RedisStore, policies: &[Policy], key: &Key) {
        let charges: Vec<_> =
            policies.iter().map(|policy| Charge::new(policy, key, Cost::ONE)).collect();
        let began = Instant::now();
        match store.decide(&charges).await {
            Ok(verdict) => {
                assert_eq!(verdict.decisions().len(), policies.len());
                for (decision, policy) in verdict.decisions().iter().zip(policies) {
                    // Each policy has another limit, so that a reply to another shows.
                    assert_eq!(decision.limit, policy.capacity());
                    assert!(decision.remaining < policy.capacity(), "{decision:?}");
                }
                if verdict.is_admitted() {
                    self.admitted += 1;
                } else {
                    self.denied += 1;
                }
            }
            Err(error) => {
                if error.may_have_charged() {
                    self.lost += 1;
                } else {
                    self.refused += 1;
                }
                self.error = Some(error.to_string());
            }
        }
        self.slowest = self.slowest.max(began.elapsed());
    }

    fn plus(self, other: Self) -> Self {
        Self {
            admitted: self.admitted + other.admitted,
            denied: self.denied + other.denied,
            refused: self.refused + other.refused,
            lost: self.lost + other.lost,
            error: self.error.or(other.error),
            slowest: self.slowest.max(other.slowest),
        }
    }
}
