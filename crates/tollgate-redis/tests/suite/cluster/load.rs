//! Requests that continue while the Cluster changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::{JoinSet, block_in_place};
use tollgate_core::{Charge, Cost, Key, Policy, Store};
use tollgate_redis::RedisStore;
use tollgate_test_servers::until;

use super::MINUTE;

/// Tasks that charge one unit at a time under the same policies.
#[derive(Debug)]
pub(crate) struct Load {
    is_over: Arc<AtomicBool>,
    admitted: Arc<AtomicU64>,
    tasks: JoinSet<Tally>,
}

/// The tasks' results.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) admitted: u64,
    pub(crate) denied: u64,
    /// Errors that are known to have charged no units.
    pub(crate) refused: u64,
    /// Errors that may have charged.
    pub(crate) lost: u64,
    /// One of the errors.
    pub(crate) error: Option<String>,
}

impl Load {
    /// Starts this number of tasks.
    pub(crate) fn begin(store: &RedisStore, policies: &[Policy], key: &Key, tasks: usize) -> Self {
        let mut load =
            Self { is_over: Arc::default(), admitted: Arc::default(), tasks: JoinSet::new() };
        for _ in 0..tasks {
            let (is_over, admitted) = (Arc::clone(&load.is_over), Arc::clone(&load.admitted));
            let (store, policies, key) = (store.clone(), policies.to_vec(), key.clone());
            load.tasks.spawn(async move {
                let mut tally = Tally::default();
                while !is_over.load(Ordering::Relaxed) {
                    let before = tally.admitted;
                    tally.ask(&store, &policies, &key).await;
                    admitted.fetch_add(tally.admitted - before, Ordering::Relaxed);
                    // Leave time for other processes.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                tally
            });
        }
        load
    }

    /// Waits until more requests were admitted than were in flight.
    pub(crate) fn goes_on(&self, what: &str) {
        let admitted = || self.admitted.load(Ordering::Relaxed);
        let enough = admitted() + 2 * self.tasks.len() as u64;
        block_in_place(|| until(what, MINUTE, || (admitted() >= enough).then_some(())));
    }

    pub(crate) async fn end(self) -> Tally {
        self.is_over.store(true, Ordering::Relaxed);
        self.tasks.join_all().await.into_iter().fold(Tally::default(), Tally::plus)
    }
}

impl Tally {
    /// Asserts that each request was admitted and charged once.
    pub(crate) fn assert_all_admitted(&self, used: u64) {
        assert_eq!((self.denied, self.refused, self.lost), (0, 0, 0), "{self:?}");
        assert_eq!(self.admitted, used, "{self:?}");
    }

    pub(crate) fn assert_charges_match(&self, used: u64) {
        let at_most = self.admitted + self.lost;
        assert!((self.admitted..=at_most).contains(&used), "{used} are charged: {self:?}");
    }

    async fn ask(&mut self, store: &RedisStore, policies: &[Policy], key: &Key) {
        let charges: Vec<_> =
            policies.iter().map(|policy| Charge::new(policy, key, Cost::ONE)).collect();
        match store.decide(&charges).await {
            Ok(verdict) => {
                assert_eq!(verdict.decisions().len(), policies.len());
                for (decision, policy) in verdict.decisions().iter().zip(policies) {
                    // Policies have different limits, so a reply to another request is noticed.
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
    }

    fn plus(self, other: Self) -> Self {
        Self {
            admitted: self.admitted + other.admitted,
            denied: self.denied + other.denied,
            refused: self.refused + other.refused,
            lost: self.lost + other.lost,
            error: self.error.or(other.error),
        }
    }
}
