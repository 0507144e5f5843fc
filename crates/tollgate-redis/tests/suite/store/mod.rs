//! The store with real servers and with simulated ones: how it connects, how it combines requests, and which denials it
//! remembers.
#![expect(clippy::unwrap_used, reason = "a test that finds something else has failed")]

mod combining;
mod connecting;
mod denials;
mod ending;
pub(crate) mod layered;
mod out_of_step;
mod remembered;

use tollgate_core::{Cost, Key, Policy, Quota, StoreExt, Verdict};
use tollgate_redis::RedisStore;

use crate::support::{connected, patient};

/// A policy with the longest window, so no window starts while a test runs.
fn policy(limit: u64) -> Policy {
    Policy::fixed_window_counter("p", Quota::new(limit, Policy::MAX_WINDOW)).unwrap()
}

async fn charge(store: &RedisStore, policy: &Policy, key: &str, cost: u64) -> Verdict {
    store.charge(policy, &Key::from(key), Cost::new(cost)).await.unwrap()
}
