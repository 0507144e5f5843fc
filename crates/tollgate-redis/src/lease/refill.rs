//! The refill task of a busy key: it fetches the next block in time, and returns what is left.

use std::sync::{Arc, Weak};

use tokio::time::Instant;

use super::blocks::{Plan, Returned};
use super::key::LeasedKey;
use crate::encode::Ask;
use crate::ticket::{CallAnswer, Leased, Request};
use crate::{Inner, RedisFuture, RedisStore};

/// Refills a key until it is busy no more, or the store is gone.
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
                // A task that waits for a store must not keep it alive.
                drop(store);
                wait(&key, at).await;
            }
            Plan::Leave => {
                // The lock was held when this task was marked as ended.
                std::mem::forget(leaving);
                return;
            }
        }
    }
}

/// Tells Redis what was spent, and asks for more.
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
        // The timer or the bell, whichever comes first.
        Some(at) => drop(tokio::time::timeout_at(at, bell).await),
        None => bell.await,
    }
}

/// Marks a task as ended that ends with its runtime.
struct Leaving<'a>(&'a LeasedKey);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.blocks.lock().has_refill = false;
    }
}
