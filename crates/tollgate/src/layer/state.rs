//! The data that all clones of a layer and its services share.

use http::{Extensions, HeaderMap, HeaderName};
use tollgate_core::Store;
use tollgate_engine::{AppliedLimit, Limits, Refunds};

use super::compiled::{CompiledLimit, Tiers};
use super::options::Options;
use super::reservation::Reservation;
use super::verdicts::Verdicts;
use crate::drive::{Decided, Driver};
use crate::headers::PolicyFields;
use crate::quiet::QuietLog;
use crate::{Limit, RequestHead};

/// A compiled layer: the limits and options that apply to each request.
pub(super) type LayerState<St> = Driver<St, Http>;

/// What only HTTP requests need.
pub(super) struct Http {
    pub(super) limits: Box<[CompiledLimit]>,
    pub(super) options: Options,
    pub(super) tiers: Option<Tiers>,
    pub(super) faults: QuietLog,
    /// Requests of proxies that are not trusted.
    pub(super) proxies: QuietLog,
    /// The headers in which services state a cost. The layer removes them from all responses.
    cost_headers: Box<[HeaderName]>,
}

pub(super) fn compile<St: Store>(
    store: St,
    limits: Vec<Limit>,
    options: Options,
) -> LayerState<St> {
    let tiers = Tiers::new(options.tiers.as_ref(), &limits);
    let reserves = limits.iter().filter_map(|limit| limit.settling.reserve.as_ref());
    let cost_headers = reserves.filter_map(|reserve| reserve.header.clone()).collect();
    let compile = |limit| CompiledLimit::new(limit, tiers.as_ref(), &options.costs);
    let limits: Box<[_]> = limits.into_iter().map(compile).collect();
    let rules = Limits::new(limits.iter().map(|limit| limit.rule(tiers.as_ref())));
    let fields: Box<[PolicyFields]> = limits.iter().map(|limit| limit.base.clone()).collect();
    let prepare = move |limit: usize, policy: &_, is_blocked| {
        let fields = &fields[limit];
        Box::new(match is_blocked {
            true => fields.of_blocked_client(policy),
            false => fields.of_client(policy),
        }) as _
    };
    let rules = rules.overridden_by(store.overrides(), prepare);
    let observed = options.observed.clone();
    let (faults, proxies) = (QuietLog::default(), QuietLog::default());
    let http = Http { limits, options, tiers, faults, proxies, cost_headers };
    // A client that leaves before the reply may have had its effect, so only permits are returned.
    Driver::new(store, rules, http, Refunds::Permits, &observed)
}

impl Http {
    #[inline]
    pub(super) fn exempts(&self, head: &RequestHead<'_>) -> bool {
        self.options.exempt_preflights && head.is_preflight()
            || self.options.exempt.iter().any(|exempt| exempt(head))
    }

    #[inline]
    pub(super) fn limit(&self, applied: &AppliedLimit) -> &Limit {
        &self.limits[usize::from(applied.limit)].limit
    }

    /// Returns the policy's header values for the request's client.
    #[inline]
    pub(super) fn fields<'a>(&'a self, applied: &'a AppliedLimit) -> &'a PolicyFields {
        self.limits[usize::from(applied.limit)].fields(applied)
    }

    /// Adds what handlers may ask for: the decisions, the reservation and the permits.
    #[inline]
    pub(super) fn hand_over(
        &self,
        limits: &Limits,
        decided: &Decided,
        extensions: &mut Extensions,
    ) {
        let follow_up = decided.follow_up.as_deref();
        let exposes = self.options.expose_verdicts || follow_up.is_some_and(|it| it.exceeds);
        if exposes && !decided.charges.is_empty() {
            Verdicts::push(extensions, limits, &decided.charges);
        }
        if let Some(follow_up) = follow_up {
            follow_up.in_flight.hand_over(extensions);
            if let Some(open) = &follow_up.open {
                Reservation::hand_over(open, extensions);
            }
        }
    }

    /// Whether the layer changes the response to a request that passed, or holds state for it.
    #[inline]
    pub(super) fn has_work(&self, decided: &Decided) -> bool {
        let is_shown = self.options.headers.any() || self.options.expose_verdicts;
        decided.follow_up.is_some()
            || self.has_cost_headers()
            || (is_shown && !decided.charges.is_empty())
    }

    #[inline]
    pub(super) const fn has_cost_headers(&self) -> bool {
        !self.cost_headers.is_empty()
    }

    pub(super) fn remove_costs(&self, headers: &mut HeaderMap) {
        for name in &self.cost_headers {
            headers.remove(name);
        }
    }
}
