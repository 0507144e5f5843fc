//! Charges that are settled when the response is known.

mod by_policy;
mod cost_header;
mod counting;
mod reserving;

use tollgate::key::Key;
use tollgate::{Policy, Store, StoreExt};

async fn left<St: Store>(store: &St, policy: &Policy) -> u64 {
    store.peek(policy, &Key::GLOBAL).await.unwrap().decisions()[0].remaining
}
