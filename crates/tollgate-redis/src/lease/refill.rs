//! A busy key's refill task: it fetches the next block early enough, and returns remaining units.

use std::mem;
use std::sync::{Arc, Weak};

use scopeguard::{ScopeGuard, guard};
use tokio::time::Instant;
use tollgate_core::{BoxFuture, Charge};

use super::blocks::{Plan, Returned};
use super::key::LeasedKey;
use crate::calls::ticket::{Answer, Leased, Request};
use crate::script::encode::Ask;
use crate::store::{Inner, RedisStore};

impl RedisStore {
    /// Counts a request that Redis must decide. If all keys are busy, they get refill tasks. Blocks
    /// for only some keys would remain unused, because a request is answered from blocks completely
    /// or not at all.
    pub(crate) fn note_asked(&self, charges: &[Charge<'_>]) {
        let leases = &self.0.leases;
        let Some(keys) = leases.spendable(&self.0.names, charges) else { return };
        let now = leases.clock.now();
        // Every key is counted, even if another is not busy.
        let busy = keys.iter().filter(|key| key.blocks.lock().asked(now)).count();
        if busy < keys.len() {
            return;
        }
        for key in keys {
            if !self.starts_refill(&key) && key.blocks.lock().wakes_refill() {
                key.bell.notify_one();
            }
        }
    }

    /// Starts the key's refill task. Returns `false` if the key has one.
    fn starts_refill(&self, key: &Arc<LeasedKey>) -> bool {
        if mem::replace(&mut key.blocks.lock().has_refill, true) {
            return false;
        }
        let keep = run(Arc::downgrade(&self.0), Arc::clone(key));
        self.0.combiner.runtime.spawn(keep);
        true
    }

    /// Returns leased units that were not spent, so other replicas need not wait until the leases
    /// expire. Call it before the process exits. The store leases again after later requests.
    ///
    /// This waits for calls that are already on their way, because Redis may lease units in them,
    /// and returns these units too. Each call takes no longer than the store's timeout.
    ///
    /// If Redis does not confirm that it has the units, or the caller stops waiting, the store
    /// returns them again in the background until their lease expires.
    pub async fn return_leases(&self) {
        let keys: Vec<_> = self.0.leases.keys.read().table.iter().cloned().collect();
        let answered = self.return_blocks(&keys).await;
        // A refill task may already report the block that its call has brought. If so, this waits
        // for the report.
        self.return_blocks(&answered).await;
    }

    /// Returns the keys' blocks, and waits for the refill tasks' calls in flight. Returns the keys
    /// for which there was such a call.
    async fn return_blocks(&self, keys: &[Arc<LeasedKey>]) -> Vec<Arc<LeasedKey>> {
        let now = self.0.leases.clock.now();
        let (mut calls, mut answers) = (Vec::new(), Vec::new());
        // Send all calls before waiting for the first.
        for key in keys {
            let (spent, answered) = key.close(now);
            answers.extend(answered.map(|answered| (key, answered)));
            if spent.is_empty() {
                continue;
            }
            let ttl = key.policy.lease().unwrap_or_default().time_to_live();
            let call = call(self, key, &spent, Ask { tag: 0, units: 0, ttl });
            calls.push((call, guard(spent, |spent| self.return_again(key, spent))));
        }
        for (call, unconfirmed) in calls {
            match call.await {
                Ok(_) => drop(ScopeGuard::into_inner(unconfirmed)),
                Err(error) => {
                    tracing::debug!(target: "tollgate", %error, "a lease is not returned yet");
                }
            }
        }
        let mut answered = Vec::new();
        for (key, answer) in answers {
            answer.await;
            answered.push(Arc::clone(key));
        }
        answered
    }

    /// Lets the refill task repeat a report.
    fn return_again(&self, key: &Arc<LeasedKey>, spent: Returned) {
        key.blocks.lock().report_again(spent, self.0.leases.clock.now());
        if !self.starts_refill(key) {
            key.bell.notify_one();
        }
    }
}

/// Refills a key until it is no longer busy, or the store is dropped.
async fn run(store: Weak<Inner>, key: Arc<LeasedKey>) {
    // The task may be dropped with its runtime.
    let leaving = guard(&*key, LeasedKey::lose_refill);
    loop {
        let Some(inner) = store.upgrade() else { return };
        let store = RedisStore(inner);
        let leases = &store.0.leases;
        let now = leases.clock.now();
        let plan = key.blocks.lock().plan(now, || store.0.combiner.ids.tag());
        match plan {
            Plan::Call { spent, ask } => {
                let answer = call(&store, &key, &spent, ask).await;
                key.learn(spent, ask, answer, &leases.clock);
            }
            Plan::Wait(moment) => {
                let at = moment.and_then(|moment| leases.clock.instant(moment));
                // A waiting task must not keep the store alive.
                drop(store);
                wait(&key, at).await;
            }
            Plan::Leave => {
                // `plan` has already cleared `has_refill`, under the lock.
                ScopeGuard::into_inner(leaving);
                return;
            }
        }
    }
}

/// Reports spent units to Redis, and requests a new block.
fn call(store: &RedisStore, key: &LeasedKey, spent: &Returned, ask: Ask) -> BoxFuture<Leased> {
    let (state, policy) = (key.state.clone(), key.policy.clone());
    let request = Request::Lease { state, policy, spent: spent.spent(), ask };
    let answer = store.submit(request);
    answer.boxed(|it| match it {
        Answer::Leased(leased) => Some(leased),
        _ => None,
    })
}

async fn wait(key: &LeasedKey, at: Option<Instant>) {
    let bell = key.bell.notified();
    match at {
        // Whichever is first: the timer or the bell.
        Some(at) => drop(tokio::time::timeout_at(at, bell).await),
        None => bell.await,
    }
}
