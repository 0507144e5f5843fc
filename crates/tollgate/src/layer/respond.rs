//! Builds the response to a rejected request, and adds headers to the service's response.

use bytes::Bytes;
use http::{HeaderMap, Response};
use tollgate_core::{Micros, Outcome, Source, Store, StoreError};

use super::row::Row;
use super::rows::{Rejection, Rows};
use super::state::LayerState;
use super::verdicts::Verdicts;
use crate::body::InFlight;
use crate::denial::{Denial, ResponseFormat};
use crate::headers;
use crate::{Limit, RequestHead};

/// The layer's own response. Boxed, because most requests have none.
pub(super) type OwnResponse = Box<Response<Bytes>>;

pub(super) fn reject<St>(
    layer: &LayerState<St>,
    rows: &Rows,
    rejection: &Rejection,
    head: &RequestHead<'_>,
) -> OwnResponse {
    match rejection {
        Rejection::Denied => deny(layer, rows, head),
        Rejection::Undecided(error) => store_unavailable(layer, rows, error, head),
    }
}

fn deny<St>(layer: &LayerState<St>, rows: &Rows, head: &RequestHead<'_>) -> OwnResponse {
    let at = rows.decided_at;
    let options = &layer.options.headers;
    // Uses the keys of all policies that apply, so that the seed does not depend on the denying
    // policy. A shadow policy must not change the wait.
    let visible = rows.iter().filter(|row| in_headers(layer.limit(row)));
    let seed = headers::seed_of(visible.map(|row| &row.key));
    let enforced = shown(layer, rows, |limit| limit.enforce);
    let denial = Denial::of_verdict(at, enforced, options, seed).of_request(*head);
    // At debug level, because a client can cause any number of denials. Metrics count them.
    tracing::debug!(
        target: "tollgate",
        policies = ?denial.policies(),
        keys = ?rows.iter().map(|row| row.kind.as_str()).collect::<Vec<_>>(),
        reason = denial.reason().code(),
        retry_after = ?denial.retry_after(),
        "deny",
    );
    let mut response = own(layer, &denial, head);
    options.write(response.headers_mut(), at, true, shown(layer, rows, in_headers));
    add_reduced_capacity_reason(layer, response.headers_mut(), rows);
    if layer.options.expose_verdicts {
        Verdicts::push_outer(response.extensions_mut(), &layer.limits, rows);
    }
    response
}

fn store_unavailable<St>(
    layer: &LayerState<St>,
    rows: &[Row],
    error: &StoreError,
    head: &RequestHead<'_>,
) -> OwnResponse {
    let policies = layer.limits.failing_closed(rows, error).map(|row| layer.limits.fields(row));
    let probe = error.retry_after().unwrap_or(PROBE);
    without_verdict(layer, Denial::store_unavailable(policies, probe), head)
}

/// The `Retry-After` if the store does not know when it will decide again.
const PROBE: Micros = Micros::new(1_000_000);

pub(super) fn without_verdict<St>(
    layer: &LayerState<St>,
    denial: Denial<'_>,
    head: &RequestHead<'_>,
) -> OwnResponse {
    own(layer, &denial.of_request(*head), head)
}

fn own<St>(layer: &LayerState<St>, denial: &Denial<'_>, head: &RequestHead<'_>) -> OwnResponse {
    let format = ResponseFormat::among(head, &layer.options.grpc);
    Box::new(denial.respond(format, &*layer.options.response))
}

/// Returns the policies of some limits, with their decisions. A penalty is included only while it
/// blocks.
#[inline]
fn shown<'a, St>(
    layer: &'a LayerState<St>,
    rows: &'a [Row],
    is_meant: impl Fn(&Limit) -> bool + Clone,
) -> impl Iterator<Item = headers::Row<'a>> + Clone {
    let meant = rows.iter().filter(move |row| is_meant(layer.limit(row)));
    let rows = meant.map(|row| (layer.limits.fields(row), &row.decision, row.cost));
    rows.filter(|(fields, decision, _)| fields.is_shown(decision))
}

/// Clients see enforced and soft limits.
const fn in_headers(limit: &Limit) -> bool {
    !limit.shadow
}

/// Adds the headers to the response of a request that passed. Returns the request's permits, which
/// the body holds until it is complete.
#[inline]
pub(super) fn finish<St: Store, B>(
    layer: &LayerState<St>,
    response: &mut Response<B>,
    mut rows: Rows,
) -> InFlight {
    let mut in_flight = InFlight::default();
    if !rows.is_empty() {
        let mut exceeds = false;
        if let Some(follow_up) = rows.follow_up.take() {
            exceeds = follow_up.exceeds;
            in_flight = follow_up.settle(&layer.limits, response, &mut rows);
        }
        if layer.options.headers.any() {
            let shown = shown(layer, &rows, in_headers);
            layer.options.headers.write(response.headers_mut(), rows.decided_at, false, shown);
            add_reduced_capacity_reason(layer, response.headers_mut(), &rows);
        }
        if exceeds {
            add_exceeded(layer, response.headers_mut(), &rows);
        }
        if layer.options.expose_verdicts || exceeds {
            Verdicts::push_outer(response.extensions_mut(), &layer.limits, &rows);
        }
    }
    if let Some(extras) = &layer.extras {
        extras.remove_costs(response.headers_mut());
    }
    in_flight
}

/// Adds the reason if the local store decided a policy with a share of its quota. Clients do not
/// know shadow policies, and a policy that failed open has no reduced capacity.
#[inline]
fn add_reduced_capacity_reason<St>(layer: &LayerState<St>, headers: &mut HeaderMap, rows: &Rows) {
    let is_decided =
        |row: &Row| in_headers(layer.limit(row)) && row.decision.outcome != Outcome::Undecided;
    if rows.source == Source::Local && rows.iter().any(is_decided) {
        headers.insert(headers::X_RATELIMIT_REASON, headers::REDUCED);
    }
}

#[cold]
fn add_exceeded<St>(layer: &LayerState<St>, headers: &mut HeaderMap, rows: &[Row]) {
    let soft = rows.iter().filter(|row| row.decision.denies() && layer.limit(row).is_soft());
    let shown = soft.filter(|row| !layer.limit(row).hides_headers);
    if let Some(names) = headers::names(shown.map(|row| layer.limit(row).policy.name())) {
        headers.append(headers::X_RATELIMIT_EXCEEDED, names);
    }
}
