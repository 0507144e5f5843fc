//! The permission for a call.

use std::fmt;

use smallvec::SmallVec;
use tollgate_core::{Cost, Policy, Receipt, Settlement, Store};
use tollgate_engine::{Correction, OpenCharge};

use super::call::Acquire;
use super::error::SettleError;
use super::state::State;
use crate::drive::{self, Decided};
use crate::layer::Verdicts;

/// The permission for a call, which was charged.
///
/// * [`settle`](Self::settle) corrects the charge when the actual cost is known.
/// * [`cancel`](Self::cancel) refunds the charge, because the call does not happen.
/// * If the permit is dropped, the charge stands.
/// * [`learn`](Self::learn) reads the response, and [`retry`](Self::retry) repeats the call.
///
/// A charge can be corrected for an hour, limited to the longer of five minutes and the window of
/// its policy. After that it stands.
///
/// Under a concurrency limit ([`Policy::concurrent_requests`](crate::Policy::concurrent_requests)),
/// the call is in flight until the permit is dropped, settled or cancelled. A task renews it.
#[must_use = "a concurrency limit counts the call until the permit is dropped"]
pub struct Permit<St: Store> {
    pub(super) call: Acquire<St>,
    pub(super) decided: Decided,
}

impl<St: Store> Permit<St> {
    pub(super) const fn new(call: Acquire<St>, decided: Decided) -> Self {
        Self { call, decided }
    }

    pub(super) fn state(&self) -> &State<St> {
        &self.call.state
    }

    /// Corrects the charge to the `actual` cost, under every rate limit. See
    /// [`Store::settle`](crate::Store::settle) for its effect. If the future is dropped, the
    /// remaining corrections are still sent.
    ///
    /// # Errors
    /// See [`SettleError`]. Some of the charges may be corrected.
    pub async fn settle(self, actual: impl Into<Cost>) -> Result<(), SettleError> {
        let actual = actual.into();
        let budget = self.state().retries().map(Policy::name);
        let is_of_budget = |charge: &OpenCharge| budget.is_some_and(|name| charge.is_of(name));
        self.settle_where(|charge| (!is_of_budget(charge)).then_some(actual)).await
    }

    /// Like [`settle`](Self::settle), but corrects only the charge to this policy. Does nothing if
    /// the policy did not charge the call.
    ///
    /// # Errors
    /// See [`SettleError`].
    pub async fn settle_policy(
        &self,
        policy: &str,
        actual: impl Into<Cost>,
    ) -> Result<(), SettleError> {
        let actual = actual.into();
        self.settle_where(|charge| charge.is_of(policy).then_some(actual)).await
    }

    /// Refunds the charge, as if the call had not been made.
    ///
    /// # Errors
    /// See [`SettleError`]. Some of the charges may be refunded.
    pub async fn cancel(self) -> Result<(), SettleError> {
        self.settle_where(|_| Some(Cost::ZERO)).await
    }

    /// Refunds the charge, without waiting for the store.
    pub(super) fn refund(self) {
        if let Some(open) = self.decided.follow_up.as_ref().and_then(|it| it.open.as_ref()) {
            open.settle(|_| Some(Cost::ZERO));
        }
    }

    /// Refunds the charge, and returns the call.
    pub(super) async fn into_refunded(self) -> Acquire<St> {
        let _ = self.settle_where(|_| Some(Cost::ZERO)).await;
        self.call
    }

    /// Lets the turn pass, and returns the call. A retry is not repeated yet, so its budget is not used.
    pub(super) async fn into_unused(self) -> Acquire<St> {
        if let Some(budget) = self.state().retries() {
            let of_budget = |charge: &OpenCharge| charge.is_of(budget.name());
            let _ = self.settle_where(|charge| of_budget(charge).then_some(Cost::ZERO)).await;
        }
        self.call
    }

    /// Returns the decisions of all policies.
    pub fn verdicts(&self) -> Verdicts {
        Verdicts::of(&self.state().limits, &self.decided.charges)
    }

    async fn settle_where(
        &self,
        actual: impl Fn(&OpenCharge) -> Option<Cost>,
    ) -> Result<(), SettleError> {
        let Some(open) = self.decided.follow_up.as_ref().and_then(|it| it.open.as_ref()) else {
            return Ok(());
        };
        let has_lapsed = open.has_lapsed(&actual);
        let mut result = if has_lapsed { Err(SettleError::Lapsed) } else { Ok(()) };
        let store = &self.state().store;
        let mut unsent = Unsent { store, left: open.take(actual) };
        while let Some((receipt, correction)) = unsent.left.last().cloned() {
            // Even if a charge cannot be corrected, correct the others.
            match correction.apply(store, &receipt).await {
                Ok(Settlement::Lapsed) => result = Err(SettleError::Lapsed),
                Ok(_) => {}
                Err(error) => result = Err(SettleError::Store(error)),
            }
            unsent.left.pop();
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

/// Corrections that are sent even if the caller stops waiting for them. The store makes each only
/// once.
struct Unsent<'a, St: Store> {
    store: &'a St,
    left: SmallVec<[(Receipt, Correction); 1]>,
}

impl<St: Store> Drop for Unsent<'_, St> {
    fn drop(&mut self) {
        for (receipt, correction) in self.left.drain(..) {
            drive::settle(self.store, receipt, correction, None);
        }
    }
}

impl<St: Store> fmt::Debug for Permit<St> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("verdicts", &self.verdicts()).finish()
    }
}
