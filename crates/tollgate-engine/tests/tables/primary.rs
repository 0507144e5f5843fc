//! A store that fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tollgate_core::{
    BoxFuture, Charge, Cost, Key, Micros, NeverPending, PenaltyBlock, Policy, Receipt, Reply,
    Settlement, Store, StoreError,
};
use tollgate_memory::{ManualClock, MemoryStore};

/// A store in memory that fails on command.
#[derive(Clone, Debug)]
pub(crate) struct Primary {
    store: MemoryStore<ManualClock>,
    fails: Arc<AtomicBool>,
}

impl Primary {
    pub(crate) fn new(store: MemoryStore<ManualClock>) -> Self {
        Self { store, fails: Arc::default() }
    }

    /// Makes all later decisions fail, or succeed again.
    pub(crate) fn fail(&self, fails: bool) {
        self.fails.store(fails, Ordering::Relaxed);
    }
}

impl Store for Primary {
    type Future = NeverPending;

    fn decide(&self, charges: &[Charge<'_>]) -> Reply<NeverPending> {
        match self.fails.load(Ordering::Relaxed) {
            true => Reply::ready(Err(StoreError::not_charged("primary", "it is down"))),
            false => self.store.decide(charges),
        }
    }

    fn settle(&self, receipt: &Receipt, actual: Cost) -> Reply<BoxFuture<Settlement>> {
        self.store.settle(receipt, actual)
    }

    fn renew(&self, receipt: &Receipt) -> Reply<BoxFuture<Option<Receipt>>> {
        self.store.renew(receipt)
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Reply<BoxFuture<()>> {
        self.store.reset(policy, key)
    }

    fn block(
        &self,
        policy: &Policy,
        key: &Key,
        block: PenaltyBlock,
    ) -> Reply<BoxFuture<Option<Micros>>> {
        self.store.block(policy, key, block)
    }
}
