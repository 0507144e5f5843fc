//! A busy key's refill task: it fetches the next block early enough, and returns remaining units.

use std::sync::{Arc, Weak};

use tokio::time::Instant;

use super::blocks::{Plan, Returned};
use super::key::LeasedKey;
use crate::encode::Ask;
use crate::future::RedisFuture;
use crate::store::{Inner, RedisStore};
use crate::ticket::{CallAnswer, Leased, Request};

/// Refills a key until it is no longer busy, or the store is dropped.
pub(super) async fn run(store: Weak<Inner>, key: Arc<LeasedKey>) {
    let leaving = Leaving(&key);
    loop {
        let Some(inner) = store.upgrade() else { return };
        let store = RedisStore(inner);
        let leases = &store.0.leases;
        let now = leases.clock.now();
        let plan = key.blocks.lock().plan(now, || store.0.combiner.ids.tag());
        match plan {
            Plan::Call { spent, ask } => {
                let answer = call(&store, &key, &spent, ask).await;
                key.blocks.lock().learn(spent, ask, answer, &leases.clock);
            }
            Plan::Wait(moment) => {
                let at = moment.and_then(|moment| leases.clock.instant(moment));
                // A waiting task must not keep the store alive.
                drop(store);
                wait(&key, at).await;
            }
            Plan::Leave => {
                // `plan` has already cleared `has_refill`, under the lock.
                std::mem::forget(leaving);
                return;
            }
        }
    }
}

/// Reports spent units to Redis, and requests a new block.
pub(super) fn call(
    store: &RedisStore,
    key: &LeasedKey,
    spent: &Returned,
    ask: Ask,
) -> RedisFuture<Leased> {
    let (state, policy) = (key.state.clone(), key.policy.clone());
    let request = Request::Lease { state, policy, spent: spent.spent(), ask };
    store.submit(&key.state, request, |answer| match answer {
        CallAnswer::Leased(leased) => Some(leased),
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

/// Clears `has_refill` if the task is dropped, for example with its runtime.
struct Leaving<'a>(&'a LeasedKey);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.blocks.lock().has_refill = false;
    }
}
