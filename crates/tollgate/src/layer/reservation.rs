//! A handler's access to its request's estimated charges.

use std::sync::Arc;

use http::Extensions;
use smallvec::SmallVec;
use tollgate_core::{Cost, Receipt};
use tollgate_engine::OpenCharge;

use crate::drive::Open;

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
pub struct Reservation(SmallVec<[Arc<Open>; 1]>);

impl Reservation {
    /// Corrects the estimate to the `actual` cost. See [`Reserve`](crate::limit::Reserve) for the
    /// effect.
    ///
    /// This does not wait for the store. If the store fails, the estimate becomes final, and a
    /// `tollgate` event reports the failure.
    pub fn settle(&self, actual: impl Into<Cost>) {
        self.settle_where(actual.into(), OpenCharge::is_estimate);
    }

    /// Like [`settle`](Self::settle), but corrects the estimate only for this policy.
    pub fn settle_policy(&self, policy: &str, actual: impl Into<Cost>) {
        let is_meant = |charge: &OpenCharge| charge.is_estimate() && charge.is_of(policy);
        self.settle_where(actual.into(), is_meant);
    }

    fn settle_where(&self, actual: Cost, is_meant: impl Fn(&OpenCharge) -> bool) {
        for open in &self.0 {
            open.settle(|charge| is_meant(charge).then_some(actual));
        }
    }

    /// Returns the receipts of charges that are not settled yet. This reservation can still settle
    /// them: the first settlement counts.
    pub fn receipts(&self) -> Vec<Receipt> {
        self.0.iter().flat_map(|open| open.receipts()).collect()
    }

    pub(super) fn hand_over(open: &Arc<Open>, extensions: &mut Extensions) {
        if open.charges().iter().any(OpenCharge::is_estimate) {
            extensions.get_or_insert_default::<Self>().0.push(Arc::clone(open));
        }
    }
}

debug_fields!(Reservation);
