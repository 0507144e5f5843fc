//! Features that continue after the decision: cost corrections, permits, delays. Most layers need
//! none.

use std::sync::Arc;

use http::{Extensions, HeaderMap, HeaderName, Response};
use tollgate_core::{AnyStore, Micros, Store, Verdict};

use super::compiled::CompiledLimits;
use super::in_flight::LeaseRenewer;
use super::receipts::receipts;
use super::row::Row;
use super::settlement::{OpenCharges, Reservation, open_charges, settle_by_response};
use super::wait_queue::WaitQueue;
use crate::body::InFlight;
use crate::{Limit, ResponseHead};

pub(super) struct Extras<St> {
    /// The store, if charges may be corrected when the response is known.
    settles: Option<AnyStore>,
    /// The headers in which services state a cost. The layer removes them from all responses.
    cost_headers: Box<[HeaderName]>,
    leases: Option<LeaseRenewer<St>>,
    /// The leaky bucket in queue mode, which may delay requests.
    pub(super) delays: Option<usize>,
    pub(super) wait_queue: Option<WaitQueue>,
    has_soft_limits: bool,
}

/// State for a request that passed: corrections, permits, a delay.
#[derive(Default)]
pub(super) struct FollowUp {
    /// Whether the request exceeds a soft limit.
    pub(super) exceeds: bool,
    open: Option<Arc<OpenCharges>>,
    in_flight: InFlight,
    pub(super) delay: Micros,
}

impl<St: Store> Extras<St> {
    /// Returns `None` if no limit needs these features.
    pub(super) fn new(store: &St, limits: &[Limit], queue: &WaitQueue) -> Option<Box<Self>> {
        let settles = limits.iter().any(|limit| limit.settling.settles());
        let reserves = limits.iter().filter_map(|limit| limit.settling.reserve.as_ref());
        let in_tiers = |limit| Limit::tiers(limit).map(|(_, policy)| policy);
        let policies = limits.iter().map(Limit::policy).chain(limits.iter().flat_map(in_tiers));
        let waits = limits.iter().any(|limit| limit.max_wait().is_some());
        let extras = Self {
            settles: settles.then(|| AnyStore::new(store.clone())),
            cost_headers: reserves.filter_map(|reserve| reserve.header.clone()).collect(),
            leases: LeaseRenewer::new(store, policies),
            delays: limits.iter().position(|limit| limit.enforce && limit.policy.queues()),
            wait_queue: waits.then(|| queue.clone()),
            has_soft_limits: limits.iter().any(Limit::is_soft),
        };
        let is_needed = extras.settles.is_some()
            || extras.leases.is_some()
            || extras.delays.is_some()
            || waits
            || extras.has_soft_limits;
        is_needed.then(|| Box::new(extras))
    }

    /// Returns `None` if this request needs no follow-up.
    #[inline(never)]
    pub(super) fn follow_up(
        &self,
        limits: &CompiledLimits,
        rows: &[Row],
        verdict: &Verdict,
    ) -> Option<Box<FollowUp>> {
        let mut follow_up = FollowUp::default();
        if self.settles.is_some() || self.leases.is_some() {
            let receipts = receipts(limits, rows, verdict);
            let leases = self.leases.as_ref();
            follow_up.in_flight = leases.map(|leases| leases.hold(&receipts)).unwrap_or_default();
            let settles = self.settles.as_ref();
            follow_up.open = settles.and_then(|store| open_charges(store, limits, receipts));
        }
        let is_exceeded = |row: &Row| row.decision.denies() && limits.of(row).limit.is_soft();
        follow_up.exceeds = self.has_soft_limits && rows.iter().any(is_exceeded);
        follow_up.delay = self.delay(limits, rows);
        (!follow_up.is_empty()).then(|| Box::new(follow_up))
    }

    /// The longest delay by an enforced policy. The verdict's delay would include shadow policies.
    fn delay(&self, limits: &CompiledLimits, rows: &[Row]) -> Micros {
        if self.delays.is_none() {
            return Micros::ZERO;
        }
        let enforced = rows.iter().filter(|row| limits.of(row).limit.enforce);
        enforced.map(|row| row.decision.delay()).max().unwrap_or_default()
    }
}

impl<St> Extras<St> {
    pub(super) const fn holds_permits(&self) -> bool {
        self.leases.is_some()
    }

    pub(super) const fn may_wait(&self) -> bool {
        self.wait_queue.is_some() || self.delays.is_some()
    }

    pub(super) const fn has_cost_headers(&self) -> bool {
        !self.cost_headers.is_empty()
    }

    pub(super) fn remove_costs(&self, headers: &mut HeaderMap) {
        for name in &self.cost_headers {
            headers.remove(name);
        }
    }
}

impl FollowUp {
    /// Gives the handler access to permits and open charges.
    pub(super) fn hand_over(&self, extensions: &mut Extensions) {
        self.in_flight.hand_over(extensions);
        if let Some(open) = &self.open {
            Reservation::hand_over(open, extensions);
        }
    }

    fn is_empty(&self) -> bool {
        let Self { exceeds, open, in_flight, delay } = self;
        !exceeds && open.is_none() && in_flight.is_empty() && *delay == Micros::ZERO
    }

    /// Corrects the charges according to the response, and the rows for its headers. Returns the
    /// permits.
    pub(super) fn settle<B>(
        self,
        limits: &CompiledLimits,
        response: &Response<B>,
        rows: &mut [Row],
    ) -> InFlight {
        if let Some(open) = &self.open {
            let applied = rows.iter().map(|row| &limits.of(row).limit);
            settle_by_response(open, &ResponseHead::of(response), applied);
            open.correct(limits, rows);
        }
        self.in_flight
    }
}
