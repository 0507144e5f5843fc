//! A place in a queue, given back if its client leaves.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::pin::Pin;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Sleep, sleep};
use tollgate_core::{
    Charge, Cost, Key, Micros, Policy, Receipt, ReceiptId, Settlement, Store, StoreError, Verdict,
};

use super::rules::Rules;
use super::witness::Waits;

/// A charge that outlives its request.
#[derive(Clone, Debug)]
pub(super) struct Charged {
    policy: Policy,
    key: Key,
    cost: Cost,
    enforce: bool,
}

impl Charged {
    pub(super) fn of(charge: &Charge<'_>) -> Self {
        let Charge { policy, key, cost, enforce, .. } = *charge;
        Self { policy: policy.clone(), key: key.clone(), cost, enforce }
    }

    pub(super) fn charge(&self) -> Charge<'_> {
        let Self { policy, key, cost, enforce } = self;
        Charge { policy, key, cost: *cost, enforce: *enforce, dry: false }
    }
}

/// A request that waits for its turn. Dropped before, it gives back what it was charged:
/// its client has left.
pub(super) struct Queued<St: Store> {
    pub(super) turn: Pin<Box<Sleep>>,
    store: St,
    receipts: Vec<Receipt>,
    _waits: Waits,
}

impl<St: Store> Queued<St> {
    pub(super) fn new(
        rules: &Rules<St>,
        verdict: &Verdict,
        delay: Micros,
        charged: Option<Box<[Charged]>>,
    ) -> Self {
        let charged = charged.unwrap_or_default();
        let charges: Vec<_> = charged.iter().map(Charged::charge).collect();
        Self {
            turn: Box::pin(sleep(Duration::from(delay))),
            store: rules.store().clone(),
            // What is in flight is given back by who holds it, and a penalty took nothing.
            receipts: verdict
                .receipts(&charges, || next_id(verdict))
                .filter(|Receipt { policy, .. }| !policy.counts_in_flight() && !policy.penalises())
                .collect(),
            _waits: rules.waits(),
        }
    }

    /// The turn has come: the charges stand.
    pub(super) fn leave(mut self) {
        self.receipts.clear();
    }
}

impl<St: Store> Drop for Queued<St> {
    fn drop(&mut self) {
        for receipt in self.receipts.drain(..) {
            settle(&self.store, &receipt, Cost::ZERO);
        }
    }
}

/// Settles a charge without waiting for it.
pub(super) fn settle<St: Store>(store: &St, receipt: &Receipt, actual: Cost) {
    let mut settled = store.settle(receipt, actual);
    // A store in memory is done by now; another needs someone to wait for it, and
    // without a runtime nobody can: then the charge stands, which errs on the safe side.
    let mut cx = Context::from_waker(Waker::noop());
    match Pin::new(&mut settled).poll(&mut cx) {
        Poll::Ready(settled) => report(&settled),
        Poll::Pending => {
            if let Ok(runtime) = Handle::try_current() {
                runtime.spawn(async { report(&settled.await) });
            }
        }
    }
}

fn report(settled: &Result<Settlement, StoreError>) {
    if let Err(error) = settled {
        tracing::warn!(target: "tollgate", %error, "a charge could not be corrected and stands");
    }
}

/// A name that no other receipt has, for a charge of a verdict.
pub(super) fn next_id(verdict: &Verdict) -> ReceiptId {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let process = *PROCESS.get_or_init(|| RandomState::new().hash_one("receipts"));
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    ReceiptId::new(process, verdict.decided_at(), count)
}
