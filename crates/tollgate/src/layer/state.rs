//! The data that all clones of a layer and its services share.

use http::Extensions;
use tollgate_core::{Reply, Store};

use super::compiled::{CompiledLimit, CompiledLimits, Tiers};
use super::extras::Extras;
use super::options::Options;
use super::outage::Outage;
use super::row::Row;
use super::rows::Rows;
use super::telemetry::Telemetry;
use super::verdicts::Verdicts;
use super::wait_queue::WaitQueue;
use crate::key::FaultLog;
use crate::{Limit, RequestHead};

/// A compiled layer: the limits and options that apply to each request.
pub(super) struct LayerState<St> {
    pub(super) store: St,
    pub(super) limits: CompiledLimits,
    pub(super) options: Options,
    pub(super) tiers: Option<Tiers>,
    pub(super) extras: Option<Box<Extras<St>>>,
    pub(super) telemetry: Telemetry,
    pub(super) outage: Outage,
    pub(super) faults: FaultLog,
}

impl<St: Store> LayerState<St> {
    pub(super) fn new(store: St, limits: Vec<Limit>, options: Options) -> Self {
        let extras = Extras::new(&store, &limits, &options.queue);
        let tiers = Tiers::new(options.tiers.as_ref(), &limits);
        let compile = |limit| CompiledLimit::new(limit, tiers.as_ref(), &options.costs);
        let limits = CompiledLimits(limits.into_iter().map(compile).collect());
        Self {
            store,
            telemetry: Telemetry::new(&limits, &options.observed),
            limits,
            options,
            tiers,
            extras,
            outage: Outage::default(),
            faults: FaultLog::default(),
        }
    }
}

impl<St: Store> LayerState<St> {
    #[inline(always)]
    pub(super) fn decide(&self, rows: &[Row]) -> Reply<St::Future> {
        match rows {
            [row] => self.store.decide(&[self.limits.charge(row)]),
            _ => self.store.decide(&self.limits.charges(rows)),
        }
    }
}

impl<St> LayerState<St> {
    #[inline]
    pub(super) fn exempts(&self, head: &RequestHead<'_>) -> bool {
        self.options.exempt_preflights && head.is_preflight()
            || self.options.exempt.iter().any(|exempt| exempt(head))
    }

    #[inline]
    pub(super) fn limit(&self, row: &Row) -> &Limit {
        &self.limits.of(row).limit
    }

    /// Adds what handlers may ask for: the decisions, the reservation and the permits.
    #[inline]
    pub(super) fn hand_over(&self, rows: &Rows, extensions: &mut Extensions) {
        let follow_up = rows.follow_up.as_ref();
        let exposes = self.options.expose_verdicts || follow_up.is_some_and(|it| it.exceeds);
        if exposes && !rows.is_empty() {
            Verdicts::push(extensions, &self.limits, rows);
        }
        if let Some(follow_up) = follow_up {
            follow_up.hand_over(extensions);
        }
    }

    /// Removes the rows of a request that passed if its response adds no headers or state.
    #[inline]
    pub(super) fn clear_unshown(&self, rows: &mut Rows) {
        let is_shown = self.options.headers.any() || self.options.expose_verdicts;
        if !is_shown && rows.follow_up.is_none() {
            rows.clear();
        }
    }

    #[inline]
    pub(super) fn has_cost_headers(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.has_cost_headers())
    }

    /// Whether requests hold permits of a concurrency limit.
    pub(super) fn holds_permits(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.holds_permits())
    }

    /// Whether requests may wait for long. If so, they must not occupy a ready service.
    pub(super) fn may_wait(&self) -> bool {
        self.extras.as_ref().is_some_and(|extras| extras.may_wait())
    }

    #[inline]
    pub(super) fn wait_queue(&self) -> Option<&WaitQueue> {
        self.extras.as_ref()?.wait_queue.as_ref()
    }
}
