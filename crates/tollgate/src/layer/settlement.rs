//! Charges that remain open until the response is known.

use std::sync::Arc;
use std::time::Duration;

use http::Extensions;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::time::Instant;
use tollgate_core::{AnyStore, Cost, Micros, Receipt};

use super::compiled::CompiledLimits;
use super::receipts::settle;
use super::row::Row;
use crate::headers::PolicyFields;
use crate::settling::Reserve;
use crate::{Limit, ResponseHead};

/// A request's estimated charges, which its handler can correct.
///
/// With the feature `axum` it is an extractor for every handler; otherwise it is in the extensions
/// of requests that were charged. It is empty if no limit with [`reserve`](crate::Limit::reserve)
/// was charged, and settling it then has no effect.
///
/// Clones share the same reservation, and the first settlement counts. In nested layers it contains
/// the charges of all layers.
///
/// ```
/// use tollgate::layer::Reservation;
///
/// async fn chat(reservation: Reservation) -> String {
///     let (answer, tokens) = ("42".to_owned(), 7);
///     reservation.settle(tokens);
///     answer
/// }
/// # let _ = chat;
/// ```
///
/// # Another process
///
/// If another process determines the cost, send it the [`receipts`](Self::receipts). Any process
/// may pass them to [`Store::settle`](crate::Store::settle), and the store accepts each receipt
/// only once. `store::SentReceipt` (feature `serde`) is the message format.
#[derive(Clone, Default)]
pub struct Reservation(SmallVec<[Arc<OpenCharges>; 1]>);

impl Reservation {
    /// Corrects the estimate to the `actual` cost. See [`Reserve`] for the effect.
    ///
    /// This does not wait for the store. If the store fails, the estimate becomes final, and a
    /// `tollgate` event reports the failure.
    pub fn settle(&self, actual: impl Into<Cost>) {
        self.settle_where(actual.into(), |charge| charge.reserve.is_some());
    }

    /// Like [`settle`](Self::settle), but corrects the estimate only for this policy.
    pub fn settle_policy(&self, policy: &str, actual: impl Into<Cost>) {
        let is_meant = |charge: &OpenCharge| charge.reserve.is_some() && charge.is_of(policy);
        self.settle_where(actual.into(), is_meant);
    }

    fn settle_where(&self, actual: Cost, is_meant: impl Fn(&OpenCharge) -> bool) {
        for charges in &self.0 {
            charges.settle(|charge| is_meant(charge).then_some(actual));
        }
    }

    /// Returns the receipts of charges that are not settled yet. This reservation can still settle
    /// them: the first settlement counts.
    pub fn receipts(&self) -> Vec<Receipt> {
        let mut receipts = Vec::new();
        for charges in &self.0 {
            let charges = charges.charges.lock();
            let open = charges.iter().filter(|it| it.reserve.is_some() && it.actual.is_none());
            receipts.extend(open.map(|charge| charge.receipt.clone()));
        }
        receipts
    }

    pub(super) fn hand_over(charges: &Arc<OpenCharges>, extensions: &mut Extensions) {
        if charges.charges.lock().iter().any(|charge| charge.reserve.is_some()) {
            extensions.get_or_insert_default::<Self>().0.push(Arc::clone(charges));
        }
    }
}

/// Infallible.
#[cfg(feature = "axum")]
impl<S: Sync> axum::extract::FromRequestParts<S> for Reservation {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(
        parts: &mut http::request::Parts,
        _: &S,
    ) -> Result<Self, Self::Rejection> {
        Ok(parts.extensions.get().cloned().unwrap_or_default())
    }
}

struct OpenCharge {
    receipt: Receipt,
    /// Set if handlers and services may settle the charge. It contains the deadline.
    reserve: Option<Reserve>,
    actual: Option<Cost>,
}

impl OpenCharge {
    fn is_of(&self, policy: &str) -> bool {
        self.receipt.policy.name() == policy
    }

    fn is_open(&self, age: Duration) -> bool {
        let has_lapsed = self.reserve.as_ref().is_some_and(|reserve| reserve.has_lapsed(age));
        self.actual.is_none() && !has_lapsed
    }
}

/// A request's charges that are settled later.
pub(super) struct OpenCharges {
    store: AnyStore,
    made: Instant,
    charges: Mutex<Vec<OpenCharge>>,
}

impl OpenCharges {
    /// Settles each open charge for which `actual` returns a cost.
    fn settle(&self, actual: impl Fn(&OpenCharge) -> Option<Cost>) {
        let age = self.made.elapsed();
        let mut settled = Vec::new();
        // Marks the charges under the lock, so that each is settled only once. The lock is released
        // before the store is called.
        for charge in self.charges.lock().iter_mut().filter(|charge| charge.is_open(age)) {
            if let Some(actual) = actual(charge) {
                charge.actual = Some(actual);
                settled.push((charge.receipt.clone(), actual));
            }
        }
        for (receipt, actual) in settled {
            settle(&self.store, receipt, actual, None);
        }
    }

    /// Updates the decisions of settled charges.
    pub(super) fn correct(&self, limits: &CompiledLimits, rows: &mut [Row]) {
        let elapsed = Micros::from(self.made.elapsed());
        for charge in &*self.charges.lock() {
            let is_meant = |row: &&mut Row| charge.is_of(limits.of(row).limit.policy.name());
            if let (Some(actual), Some(row)) = (charge.actual, rows.iter_mut().find(is_meant)) {
                correct(row, limits.fields(row), charge.receipt.charged.cost, actual, elapsed);
            }
        }
    }
}

pub(super) fn open_charges(
    store: &AnyStore,
    limits: &CompiledLimits,
    receipts: Vec<Receipt>,
) -> Option<Arc<OpenCharges>> {
    let open = receipts.into_iter().filter_map(|receipt| {
        let limit = limits.iter().find(|limit| limit.policy.name() == receipt.policy.name())?;
        let reserve = limit.settling.reserve.clone();
        let charge = OpenCharge { receipt, reserve, actual: None };
        limit.settling.settles().then_some(charge)
    });
    let charges: Vec<_> = open.collect();
    let any = !charges.is_empty();
    let (store, made) = (store.clone(), Instant::now());
    any.then(|| Arc::new(OpenCharges { store, made, charges: charges.into() }))
}

pub(super) fn settle_by_response<'a>(
    charges: &OpenCharges,
    head: &ResponseHead<'_>,
    limits: impl Iterator<Item = &'a Limit>,
) {
    for limit in limits {
        let settling = &limit.settling;
        let settle = |actual: &dyn Fn(Cost) -> Cost| {
            charges.settle(|charge| {
                let is_of_limit = charge.is_of(limit.policy.name());
                is_of_limit.then(|| actual(charge.receipt.charged.cost))
            });
        };
        if let Some(counts) = &settling.counts {
            match (limit.policy.is_penalty(), counts(head)) {
                // A penalty interprets a settlement above its charge as a strike.
                (true, true) => settle(&|charged| charged.plus(Cost::ONE)),
                (false, false) => settle(&|_| Cost::ZERO),
                _ => {}
            }
        }
        if let Some(stated) = settling.reserve.as_ref().and_then(|it| it.stated(head.headers)) {
            settle(&|_| stated);
        }
    }
}

/// Updates a row for the response's headers, at a time `elapsed` after the decision.
fn correct(row: &mut Row, fields: &PolicyFields, estimate: Cost, actual: Cost, elapsed: Micros) {
    let (decision, estimate, actual) = (&mut row.decision, estimate.get(), actual.get());
    if actual > estimate {
        let more = actual - estimate;
        decision.reset_after = fields.reset_after_debt(decision, more, elapsed);
        if more > decision.remaining {
            // Like a free request, this request no longer shows that there is no debt.
            row.cost = Cost::ZERO;
        }
        decision.remaining = decision.remaining.saturating_sub(more);
        return;
    }
    let remaining = decision.remaining.saturating_add(estimate - actual).min(decision.limit);
    if remaining == decision.limit {
        // The quota is already full, because no other request has used units from it.
        decision.reset_after = Micros::ZERO;
    }
    decision.remaining = remaining;
}

debug_fields!(Reservation);
