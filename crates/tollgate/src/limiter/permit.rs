//! The permission for a call.

use std::fmt;
use std::sync::Arc;

use tollgate_core::{Cost, Receipt, Store, StoreError};
use tollgate_engine::OpenCharge;

use super::state::State;
use crate::drive::Decided;
use crate::layer::Verdicts;

/// The permission for a call, which was charged.
///
/// * [`settle`](Self::settle) corrects the charge when the actual cost is known.
/// * [`cancel`](Self::cancel) refunds the charge, because the call does not happen.
/// * If the permit is dropped, the charge stands.
///
/// Under a concurrency limit ([`Policy::concurrent_requests`](crate::Policy::concurrent_requests)),
/// the call is in flight until the permit is dropped, settled or cancelled. A task renews it.
#[must_use = "a concurrency limit counts the call until the permit is dropped"]
pub struct Permit<St: Store> {
    state: Arc<State<St>>,
    decided: Decided,
}

impl<St: Store> Permit<St> {
    pub(super) fn new(state: &Arc<State<St>>, decided: Decided) -> Self {
        Self { state: Arc::clone(state), decided }
    }

    /// Corrects the charge to the `actual` cost, under every rate limit. See
    /// [`Store::settle`](crate::Store::settle) for its effect.
    ///
    /// # Errors
    /// The store failed. It may have corrected a part of the charges.
    pub async fn settle(self, actual: impl Into<Cost>) -> Result<(), StoreError> {
        let actual = actual.into();
        self.settle_where(|_| Some(actual)).await
    }

    /// Like [`settle`](Self::settle), but corrects only the charge to this policy. Does nothing if
    /// the policy did not charge the call.
    ///
    /// # Errors
    /// The store failed.
    pub async fn settle_policy(
        &self,
        policy: &str,
        actual: impl Into<Cost>,
    ) -> Result<(), StoreError> {
        let actual = actual.into();
        self.settle_where(|charge| charge.is_of(policy).then_some(actual)).await
    }

    /// Refunds the charge, as if the call had not been made.
    ///
    /// # Errors
    /// The store failed. It may have refunded a part of the charges.
    pub async fn cancel(self) -> Result<(), StoreError> {
        self.settle_where(|_| Some(Cost::ZERO)).await
    }

    /// Returns the decisions of all policies.
    pub fn verdicts(&self) -> Verdicts {
        Verdicts::of(&self.state.limits, &self.decided.charges)
    }

    async fn settle_where(
        &self,
        actual: impl Fn(&OpenCharge) -> Option<Cost>,
    ) -> Result<(), StoreError> {
        let open = self.decided.follow_up.as_ref().and_then(|it| it.open.as_ref());
        let settled = open.map(|open| open.take(actual)).unwrap_or_default();
        let mut result = Ok(());
        for (receipt, actual) in settled {
            // Even if a charge cannot be corrected, correct the others.
            if let Err(error) = self.state.store.settle(&receipt, actual).await {
                result = Err(error);
            }
        }
        result
    }

    /// Returns the receipts of charges that are not corrected yet, for a process that determines
    /// the cost. Any process may pass them to [`Store::settle`](crate::Store::settle).
    pub fn receipts(&self) -> Vec<Receipt> {
        let open = self.decided.follow_up.as_ref().and_then(|it| it.open.as_ref());
        open.map(|open| open.receipts()).unwrap_or_default()
    }
}

impl<St: Store> fmt::Debug for Permit<St> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("verdicts", &self.verdicts()).finish()
    }
}
