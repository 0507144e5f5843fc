//! The checks, by subject.

pub mod basics;
pub mod calendar;
pub mod concurrency;
pub mod in_flight;
pub mod penalties;
pub mod settle;
pub mod several;
pub mod time;
pub mod traces;
pub mod versions;
pub mod wrappers;

use std::time::Duration;

use tollgate_core::{
    Algorithm, Charge, Cost, Decision, Key, LeakyMode, Micros, Policy, Quota, Receipt, ReceiptId,
    Refill, Resolution, Settlement, Store, StoreExt, Timestamp, Verdict,
};

use crate::Harness;

/// Every rate limiting algorithm, in every mode.
pub(crate) const MODES: [Algorithm; 8] = [
    Algorithm::FixedWindowCounter,
    Algorithm::SlidingWindowLog { resolution: Resolution::Exact },
    Algorithm::SlidingWindowLog { resolution: Resolution::Thousandth },
    Algorithm::SlidingWindowCounter,
    Algorithm::TokenBucket { refill: Refill::Greedy },
    Algorithm::TokenBucket { refill: Refill::Interval },
    Algorithm::LeakyBucket { mode: LeakyMode::Queue { max_wait: None } },
    Algorithm::LeakyBucket { mode: LeakyMode::Meter },
];

/// The longest possible window. No unit is refilled during a test.
const LONG: Duration = Policy::MAX_WINDOW;

/// Creates a policy for `limit` units in a window that never finishes during a test.
fn policy(name: &str, limit: u64, algorithm: Algorithm) -> Policy {
    timed(name, limit, LONG, algorithm)
}

fn timed(name: &str, limit: u64, window: Duration, algorithm: Algorithm) -> Policy {
    Policy::new(name, Quota::new(limit, window), algorithm).expect("the checks' policies build")
}

async fn decide(store: &impl Store, charges: &[Charge<'_>]) -> Verdict {
    store.decide(charges).await.expect("the store decides")
}

/// Charges a single policy and returns its decision.
async fn charge(store: &impl Store, policy: &Policy, key: &Key, cost: u64) -> Decision {
    decide(store, &[Charge::new(policy, key, Cost::new(cost))]).await.decisions()[0]
}

async fn remaining(store: &impl Store, policy: &Policy, key: &Key) -> u64 {
    charge(store, policy, key, 0).await.remaining
}

/// Charges a single policy and returns the receipt. The request must be admitted.
async fn receipt(store: &impl Store, policy: &Policy, key: &Key, cost: u64) -> Receipt {
    let charges = [Charge::new(policy, key, Cost::new(cost))];
    let verdict = decide(store, &charges).await;
    assert!(verdict.is_admitted(), "{policy}: {verdict:?}");
    verdict.receipts(&charges, fresh_id).next().expect("an admitted charge has a receipt")
}

async fn settle(store: &impl Store, receipt: &Receipt, actual: u64) -> Settlement {
    store.settle(receipt, Cost::new(actual)).await.expect("the store settles")
}

async fn reset(store: &impl Store, policy: &Policy, key: &Key) {
    store.reset(policy, key).await.expect("the store resets");
}

/// Moves the store's clock. Only checks that the macro leaves out in real time call this.
fn advance<H: Harness>(harness: &H, span: Micros) {
    assert!(
        harness.advance(span),
        "this check moves the store's clock, and `Harness::advance` returns false\n\
         cure: move the clock there, or leave such checks out with `store_tests!(…, real time)`"
    );
}

/// The store's time.
async fn now(store: &impl Store) -> Timestamp {
    let policy = policy("what time is it", 1, Algorithm::FixedWindowCounter);
    store.peek(&policy, &Key::GLOBAL).await.expect("the store decides").decided_at()
}

/// Waits until the store's time has advanced by at least a microsecond, also in real time.
async fn pass_a_microsecond<H: Harness>(harness: &H, store: &H::Store) {
    let before = now(store).await;
    while now(store).await == before {
        harness.advance(Micros::new(1));
    }
}

/// Returns a unique receipt ID.
fn fresh_id() -> ReceiptId {
    ReceiptId(fastrand::u128(..))
}
