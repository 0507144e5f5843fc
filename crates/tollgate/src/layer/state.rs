use http::{HeaderMap, HeaderName};
use tollgate_core::{AnyStore, Decision, Store, Verdict};

use super::action::{Answer, OwnResponse, RequestContext};
use super::in_flight::LeaseRenewer;
use super::lanes::bits;
use super::limits::{AppliedLimits, CompiledLimit, Tiers};
use super::options::Options;
use super::outage::Outage;
use super::telemetry::Telemetry;
use super::wait_queue::WaitQueue;
use super::waiter::Waiter;
use crate::denial::{Denial, ResponseFormat};
use crate::headers::PolicyFields;
use crate::key::FaultLog;
use crate::{Limit, RequestHead};

/// The limits and options of a layer, compiled. Three functions work with it:
/// [`classify`](Self::classify), [`decide`](Self::decide) and [`conclude`](Self::conclude).
pub(super) struct LayerState<St> {
    pub(super) store: St,
    pub(super) limits: Box<[CompiledLimit]>,
    pub(super) options: Options,
    pub(super) telemetry: Telemetry,
    pub(super) tiers: Option<Tiers>,
    /// The leaky bucket in queue mode, which may delay requests.
    pub(super) delays: Option<usize>,
    /// The store, if charges may have to be corrected when the response is known.
    pub(super) settles: Option<AnyStore>,
    /// The headers that state a cost to the layer: no response keeps them.
    pub(super) cost_headers: Box<[HeaderName]>,
    pub(super) wait_queue: Option<WaitQueue>,
    pub(super) leases: Option<LeaseRenewer<St>>,
    /// Whether an admission needs no more of the layer than header fields.
    pub(super) is_plain: bool,
    pub(super) outage: Outage,
    pub(super) faults: FaultLog,
}

impl<St: Store> LayerState<St> {
    pub(super) fn new(store: St, limits: Vec<Limit>, options: Options) -> Self {
        let delays = limits.iter().position(|limit| limit.enforce && limit.policy.queues());
        let settles = limits.iter().any(|limit| limit.settling.settles());
        let settles = settles.then(|| AnyStore::new(store.clone()));
        let reserves = limits.iter().filter_map(|limit| limit.settling.reserve.as_ref());
        let cost_headers = reserves.filter_map(|reserve| reserve.header.clone()).collect();
        let waits = limits.iter().any(|limit| limit.max_wait().is_some());
        let wait_queue = waits.then(|| options.queue.clone());
        let in_tiers = |limit| Limit::tiers(limit).map(|(_, policy)| policy);
        let policies = limits.iter().map(Limit::policy).chain(limits.iter().flat_map(in_tiers));
        let leases = LeaseRenewer::new(&store, policies);
        let all_shown = limits.iter().all(|limit| limit.enforce && !limit.policy.is_penalty());
        let tiers = Tiers::new(options.tiers.as_ref(), &limits);
        let compile = |limit| CompiledLimit::new(limit, tiers.as_ref());
        let limits: Box<[_]> = limits.into_iter().map(compile).collect();
        Self {
            store,
            is_plain: all_shown
                && !(options.expose_verdicts
                    || settles.is_some()
                    || waits
                    || delays.is_some()
                    || leases.is_some()),
            telemetry: Telemetry::new(&limits, &options.observed),
            limits,
            options,
            tiers,
            delays,
            settles,
            cost_headers,
            wait_queue,
            leases,
            outage: Outage::default(),
            faults: FaultLog::default(),
        }
    }

    /// Whether the response to a request shows or decides anything of its admission.
    pub(super) fn works_on_responses(&self) -> bool {
        self.options.expose_verdicts
            || self.options.headers.any()
            || self.settles.is_some()
            || self.leases.is_some()
    }

    pub(super) fn remove_costs(&self, headers: &mut HeaderMap) {
        for name in &self.cost_headers {
            headers.remove(name);
        }
    }

    pub(super) fn limits(&self) -> impl Iterator<Item = &Limit> {
        self.limits.iter().map(|compiled| &compiled.limit)
    }

    pub(super) fn applied(
        &self,
        applied: AppliedLimits,
    ) -> impl Iterator<Item = &CompiledLimit> + Clone {
        bits(applied.bits).map(|number| &self.limits[number])
    }

    /// The enforced policies and their decisions. A penalty is shown when it blocks.
    pub(super) fn rows<'a>(
        &'a self,
        verdict: &'a Verdict,
        applied: AppliedLimits,
    ) -> impl Iterator<Item = (&'a PolicyFields, &'a Decision)> {
        let enforced = self.applied(applied).zip(verdict.decisions());
        let enforced = enforced.filter(|(compiled, _)| compiled.limit.enforce);
        let rows = enforced.map(move |(compiled, it)| (compiled.fields(applied.tier), it));
        rows.filter(|(fields, decision)| fields.is_shown(decision))
    }

    #[inline]
    pub(super) fn record(&self, answer: &Answer, context: &RequestContext) {
        let RequestContext { resolved, timer, .. } = context;
        self.telemetry.record(&self.limits, resolved, timer, answer, self.store.name());
    }

    /// The request as one that may wait; `None` if it waits for no limit.
    pub(super) fn waiter(&self, context: &RequestContext) -> Option<Waiter<St>> {
        let limits = context.resolved.iter().map(|it| &self.limits[it.limit].limit);
        let max_waits = limits.map(Limit::max_wait).collect();
        Waiter::new(&self.store, context.owned_charges(&self.limits), max_waits)
    }

    /// The response of a denial, without the fields of a verdict.
    pub(super) fn respond(&self, denial: &Denial<'_>, head: &RequestHead<'_>) -> OwnResponse {
        let format = ResponseFormat::among(head, &self.options.grpc);
        Box::new(denial.respond(format, &*self.options.response))
    }
}
