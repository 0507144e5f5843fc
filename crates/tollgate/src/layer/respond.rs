//! Builds the response to a rejected request, and adds headers to the service's response.

use bytes::Bytes;
use http::{HeaderMap, Response};
use tollgate_core::{Micros, Outcome, Source, StoreError};
use tollgate_engine::{AppliedLimit, Charges, Rejection, SubjectKind};

use super::forgiveness;
use super::settlement;
use super::state::{Http, LayerState};
use super::verdicts::Verdicts;
use crate::body::InFlight;
use crate::denial::{Denial, OwnDenial, ResponseFormat};
use crate::drive::Decided;
use crate::headers;
use crate::key::is_untrusted_proxy;
use crate::{Limit, RequestHead};

/// The layer's own response. Boxed, because most requests have none.
pub(super) type OwnResponse = Box<Response<Bytes>>;

pub(super) fn reject<St>(
    layer: &LayerState<St>,
    charges: &Charges,
    rejection: &Rejection,
    head: &RequestHead<'_>,
) -> OwnResponse {
    match rejection {
        Rejection::Denied | Rejection::TooLate | Rejection::QueueFull => deny(layer, charges, head),
        Rejection::Undecided(error) => store_unavailable(layer, charges, error, head),
    }
}

fn deny<St>(layer: &LayerState<St>, charges: &Charges, head: &RequestHead<'_>) -> OwnResponse {
    let http = &layer.face;
    let at = charges.decided_at();
    let options = &http.options.headers;
    let seed = if options.jitter_limit().is_zero() {
        0
    } else {
        // Uses the keys of all policies that apply, so that the seed does not depend on the denying
        // policy. A shadow policy must not change the wait.
        let visible = charges.iter().filter(|applied| in_headers(http.limit(applied)));
        headers::seed_of(visible.map(|applied| &applied.key))
    };
    let enforced = shown(http, charges, Limit::is_enforced);
    let denial = Denial::of_verdict(at, enforced, options, seed).of_request(*head);
    // At debug level, because a client can cause any number of denials. Metrics count them.
    tracing::debug!(
        target: "tollgate",
        policies = ?denial.policies(),
        keys = ?charges.iter().map(|applied| applied.kind.as_str()).collect::<Vec<_>>(),
        reason = denial.reason().code(),
        retry_after = ?denial.retry_after(),
        "deny",
    );
    let mut by_address =
        charges.iter().filter(|it| it.kind == SubjectKind::Ip && it.decision.denies());
    if by_address.any(|it| is_untrusted_proxy(head, &it.key)) {
        http.proxies.report(|| tracing::warn!(target: "tollgate", "{PROXY_IN_FRONT}"));
    }
    let mut response = own(http, &denial, head);
    options.write(response.headers_mut(), at, true, shown(http, charges, in_headers));
    add_reduced_capacity_reason(http, response.headers_mut(), charges);
    if http.options.expose_verdicts {
        Verdicts::push_outer(response.extensions_mut(), &layer.limits, charges);
    }
    response
}

fn store_unavailable<St>(
    layer: &LayerState<St>,
    charges: &Charges,
    error: &StoreError,
    head: &RequestHead<'_>,
) -> OwnResponse {
    let http = &layer.face;
    let policies = layer.limits.failing_closed(charges, error).map(|it| http.fields(it));
    let probe = error.retry_after().unwrap_or(PROBE);
    without_verdict(http, Denial::store_unavailable(policies, probe), head)
}

/// All clients behind the proxy share one quota, so the mistake shows when that is used up.
const PROXY_IN_FRONT: &str = "a denied request has `X-Forwarded-For` from a peer that is not a trusted \
                              proxy, so its limit counts the peer's address, and all clients behind \
                              this proxy share one quota: list the proxy in `ClientIp::behind`, or \
                              in the gateway's `trustedProxies` [TG0202]";

/// The `Retry-After` if the store does not know when it will decide again.
pub(super) const PROBE: Micros = Micros::new(1_000_000);

pub(super) fn without_verdict(
    http: &Http,
    denial: Denial<'_>,
    head: &RequestHead<'_>,
) -> OwnResponse {
    own(http, &denial.of_request(*head), head)
}

fn own(http: &Http, denial: &Denial<'_>, head: &RequestHead<'_>) -> OwnResponse {
    let format = ResponseFormat::among(head, &http.options.grpc);
    let mut response = denial.respond(format, &*http.options.response);
    if http.options.marks_denials {
        response.extensions_mut().insert(OwnDenial::of(denial.reason()));
    }
    Box::new(response)
}

/// Returns the policies of some limits, with their decisions. A penalty is included only while it
/// blocks.
#[inline]
fn shown<'a>(
    http: &'a Http,
    applied: &'a [AppliedLimit],
    is_meant: impl Fn(&Limit) -> bool + Clone,
) -> impl Iterator<Item = headers::ShownPolicy<'a>> + Clone {
    let meant = applied.iter().filter(move |applied| is_meant(http.limit(applied)));
    let policies = meant.map(|applied| (http.fields(applied), &applied.decision, applied.cost));
    policies.filter(|(fields, decision, _)| fields.is_shown(decision))
}

/// Clients see enforced and soft limits.
const fn in_headers(limit: &Limit) -> bool {
    !limit.is_shadow()
}

/// Adds the headers to the response of a request that passed. Returns the request's permits, which
/// the body holds until it is complete.
#[inline]
pub(super) fn finish<St, B>(
    layer: &LayerState<St>,
    response: &mut Response<B>,
    mut decided: Decided,
) -> InFlight {
    let (http, limits) = (&layer.face, &layer.limits);
    let mut in_flight = InFlight::default();
    let charges = &mut decided.charges;
    if !charges.is_empty() {
        let mut exceeds = false;
        if let Some(follow_up) = decided.follow_up.take() {
            exceeds = follow_up.exceeds;
            if let Some(open) = &follow_up.open {
                settlement::by_response(http, open, response, charges);
                let permits = follow_up.in_flight;
                in_flight = forgiveness::by_body(http, open, response, charges, permits);
            } else {
                in_flight = follow_up.in_flight;
            }
        }
        if http.options.headers.any() {
            let (at, shown) = (charges.decided_at(), shown(http, charges, in_headers));
            http.options.headers.write(response.headers_mut(), at, false, shown);
            add_reduced_capacity_reason(http, response.headers_mut(), charges);
        }
        if exceeds {
            add_exceeded(http, response.headers_mut(), charges);
        }
        if http.options.expose_verdicts || exceeds {
            Verdicts::push_outer(response.extensions_mut(), limits, charges);
        }
    }
    if http.has_cost_headers() {
        http.remove_costs(response.headers_mut());
    }
    in_flight
}

/// Adds the reason if the local store decided a policy with a share of its quota. Clients do not
/// know shadow policies, and a policy that failed open has no reduced capacity.
#[inline]
fn add_reduced_capacity_reason(http: &Http, headers: &mut HeaderMap, charges: &Charges) {
    let is_decided = |applied: &AppliedLimit| {
        in_headers(http.limit(applied)) && applied.decision.outcome != Outcome::Undecided
    };
    if charges.source() == Source::Local && charges.iter().any(is_decided) {
        headers.insert(headers::X_RATELIMIT_REASON, headers::REDUCED);
    }
}

#[cold]
fn add_exceeded(http: &Http, headers: &mut HeaderMap, applied: &[AppliedLimit]) {
    let limits = applied.iter().filter(|it| it.decision.denies()).map(|it| http.limit(it));
    let shown = limits.filter(|limit| limit.is_soft() && !limit.hides_headers);
    if let Some(names) = headers::names(shown.map(|limit| limit.policy.name())) {
        headers.append(headers::X_RATELIMIT_EXCEEDED, names);
    }
}
