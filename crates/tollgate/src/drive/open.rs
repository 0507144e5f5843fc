//! Charges that remain open until the outcome of their request is known.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use tokio::time::Instant;
use tollgate_core::{AnyStore, Cost, Micros, Receipt};
use tollgate_engine::{Correction, Limits, OpenCharge, OpenCharges};

use super::receipts::settle;

/// A request's charges that are settled later.
pub(crate) struct Open {
    store: AnyStore,
    /// When the request leaves, from which the store counts, too.
    made: Instant,
    charges: Mutex<OpenCharges>,
}

impl Open {
    pub(super) fn new(
        store: &AnyStore,
        limits: &Limits,
        receipts: Vec<Receipt>,
        delay: Micros,
    ) -> Option<Arc<Self>> {
        let charges = OpenCharges::new(limits, receipts)?.into();
        let now = Instant::now();
        let made = now.checked_add(delay.into()).unwrap_or(now);
        Some(Arc::new(Self { store: store.clone(), made, charges }))
    }

    /// Corrects each open charge for which `correct` returns a correction, without waiting for the
    /// store.
    pub(crate) fn settle<C: Into<Correction>>(&self, correct: impl Fn(&OpenCharge) -> Option<C>) {
        for (receipt, correction) in self.take(correct) {
            settle(&self.store, receipt, correction, None);
        }
    }

    /// Returns whether `actual` returns a cost for a charge that is too old to be settled.
    pub(crate) fn has_lapsed(&self, actual: impl Fn(&OpenCharge) -> Option<Cost>) -> bool {
        self.charges().has_lapsed(self.age(), actual)
    }

    /// Marks each open charge for which `correct` returns a correction, so that it is corrected only
    /// once. Returns what to correct in the store.
    pub(crate) fn take<C: Into<Correction>>(
        &self,
        correct: impl Fn(&OpenCharge) -> Option<C>,
    ) -> SmallVec<[(Receipt, Correction); 1]> {
        // The lock is released before the store is called.
        self.charges().settle(self.age(), correct)
    }

    /// Returns the receipts of estimates that are not settled yet.
    pub(crate) fn receipts(&self) -> Vec<Receipt> {
        let charges = self.charges();
        let open = charges.iter().filter(|it| it.is_estimate() && it.correction().is_none());
        open.map(|charge| charge.receipt().clone()).collect()
    }

    pub(crate) fn charges(&self) -> MutexGuard<'_, OpenCharges> {
        self.charges.lock()
    }

    pub(crate) fn age(&self) -> Micros {
        Micros::from(self.made.elapsed())
    }
}
