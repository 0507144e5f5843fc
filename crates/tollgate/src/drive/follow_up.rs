//! What continues after the decision: cost corrections, permits, marks. Most requests need none.

use std::sync::Arc;

use tollgate_core::{AnyStore, Store};
use tollgate_engine::{AppliedLimit, Charges, Limits, Mode};

use super::in_flight::PermitRenewer;
use super::open::Open;
use super::receipts::next_id;
use crate::body::InFlight;

/// State of a request that passed.
#[derive(Default)]
pub(crate) struct FollowUp {
    /// Whether the request exceeds a soft limit.
    pub(crate) exceeds: bool,
    pub(crate) open: Option<Arc<Open>>,
    pub(crate) in_flight: InFlight,
}

impl FollowUp {
    /// Returns `None` if this request needs no follow-up.
    #[inline(never)]
    pub(super) fn of<St: Store>(
        charges: &Charges,
        limits: &Limits,
        settles: Option<&AnyStore>,
        renewer: Option<&PermitRenewer<St>>,
    ) -> Option<Box<Self>> {
        let mut follow_up = Self::default();
        if settles.is_some() || renewer.is_some() {
            let next_id = || next_id(charges.decided_at());
            let receipts: Vec<_> = charges.receipts(limits, next_id).collect();
            follow_up.in_flight =
                renewer.map(|renewer| renewer.hold(&receipts)).unwrap_or_default();
            let delay = charges.delay(limits);
            follow_up.open = settles.and_then(|store| Open::new(store, limits, receipts, delay));
        }
        let is_soft = |applied: &AppliedLimit| limits.of(applied).mode == Mode::Annotate;
        follow_up.exceeds = charges.iter().any(|it| it.decision.denies() && is_soft(it));
        let Self { exceeds, open, in_flight } = &follow_up;
        let is_needed = *exceeds || open.is_some() || !in_flight.is_empty();
        is_needed.then(|| Box::new(follow_up))
    }
}
