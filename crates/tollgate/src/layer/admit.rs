//! How a request gets into the service: finds the limits that apply, calls the store, and applies
//! its reply.

use std::sync::Arc;

use tollgate_core::{Micros, Store};
use tollgate_engine::{AppliedLimit, Charges, TierIndex};

use super::compiled::CompiledLimit;
use super::look_ups::{LookUps, WaitingLookUps};
use super::respond::{self, OwnResponse};
use super::state::{Http, LayerState};
use crate::access::{AccessLists, Listed};
use crate::denial::Denial;
use crate::drive::{Decided, Progress, Waiting};
use crate::key::{KeyError, Subject, SubjectKind, route};
use crate::tier::lookup::{Look, OwnQuotas, Refusal, Terms};
use crate::{Limit, OnMissingKey, RequestHead};

pub(super) enum Admission<St: Store> {
    /// The request goes to the service.
    Pass,
    Respond(OwnResponse),
    /// The request waits for the store, for units, or for its turn in a leaky bucket.
    Wait(Waiting<St, Http>),
    /// The request waits until its clients' quotas are looked up. Then it is admitted again.
    LookUp(WaitingLookUps),
}

#[inline]
pub(super) fn admit<St: Store>(
    layer: &Arc<LayerState<St>>,
    head: &RequestHead<'_>,
    decided: &mut Decided,
    mut look_ups: Option<Box<LookUps>>,
) -> Admission<St> {
    if let Err(response) = classify(layer, head, &mut decided.charges, &mut look_ups) {
        return Admission::Respond(response);
    }
    if let Some(look_ups) = look_ups.filter(|look_ups| look_ups.is_pending()) {
        return Admission::LookUp(look_ups.wait());
    }
    if decided.charges.is_empty() {
        return Admission::Pass;
    }
    let route = || route::pattern(head.extensions);
    let timer = layer.telemetry.start(&layer.limits, &decided.charges, route);
    let queue = layer.limits.may_wait().then(|| layer.face.options.queue.arrive(head));
    match layer.decide(decided, timer, queue, Micros::MAX) {
        Progress::Pass => Admission::Pass,
        Progress::Wait(waiting) => Admission::Wait(waiting),
        Progress::Reject(rejection) => {
            Admission::Respond(respond::reject(layer, &decided.charges, &rejection, head))
        }
    }
}

/// Finds the limits that apply to a request, with its key and cost under each.
#[inline]
fn classify<St>(
    layer: &LayerState<St>,
    head: &RequestHead<'_>,
    charges: &mut Charges,
    look_ups: &mut Option<Box<LookUps>>,
) -> Result<(), OwnResponse> {
    let http = &layer.face;
    // The blocklist overrides exemptions, so it is checked first.
    if let Some(lists) = &http.options.access
        && is_on_allowlist(http, lists, head)?
    {
        return Ok(());
    }
    if http.exempts(head) {
        return Ok(());
    }
    let tier = http.tiers.as_ref().map_or_else(TierIndex::default, |tiers| tiers.of(head));
    for (limit, compiled) in (0..).zip(&http.limits) {
        if !compiled.limit.applies_to(head) {
            continue;
        }
        apply(layer, (limit, compiled), tier, head, look_ups, charges)?;
    }
    Ok(())
}

/// Applies a limit to the request's subject, unless the limit is skipped, or the request must wait
/// for a look-up.
// Always inlined, and the charge is not returned: it would be written and read back.
#[inline(always)]
pub(super) fn apply<St>(
    layer: &LayerState<St>,
    (limit, compiled): (u8, &CompiledLimit),
    tier: TierIndex,
    head: &RequestHead<'_>,
    look_ups: &mut Option<Box<LookUps>>,
    charges: &mut Charges,
) -> Result<(), OwnResponse> {
    let http = &layer.face;
    if compiled.quotas.is_none() && compiled.unlimited.contain(tier) {
        if layer.limits.has_overrides() {
            push_overridden(layer, (limit, compiled), tier, head, charges);
        }
        return Ok(());
    }
    let Subject { kind, key } = match compiled.limit.key.subject(head) {
        Ok(Some(subject)) => subject,
        missing => match without_key(http, compiled, missing.err(), head)? {
            Some(subject) => subject,
            None => return Ok(()),
        },
    };
    let cost = compiled.cost(head, &http.options.grpc);
    let applied = AppliedLimit { tier, ..AppliedLimit::new(limit, kind, key, cost) };
    match &compiled.quotas {
        None => charges.push(applied, &layer.limits),
        Some(quotas) => {
            // Only this copy needs an address.
            let mut applied = applied;
            if apply_own(layer, compiled, quotas, &mut applied, head, look_ups)? {
                charges.push(applied, &layer.limits);
            }
        }
    }
    Ok(())
}

/// Applies a limit without a quota for the client's tier, if an operator has overridden the client.
#[cold]
fn push_overridden<St>(
    layer: &LayerState<St>,
    (limit, compiled): (u8, &CompiledLimit),
    tier: TierIndex,
    head: &RequestHead<'_>,
    charges: &mut Charges,
) {
    let Ok(Some(Subject { kind, key })) = compiled.limit.key.subject(head) else { return };
    let cost = compiled.cost(head, &layer.face.options.grpc);
    let applied = AppliedLimit { tier, ..AppliedLimit::new(limit, kind, key, cost) };
    if layer.limits.is_overridden(&applied) {
        charges.push(applied, &layer.limits);
    }
}

/// Applies the client's own quota. Returns `false` if the limit does not apply, or if the request
/// must wait for a look-up.
#[inline(never)]
fn apply_own<St>(
    layer: &LayerState<St>,
    compiled: &CompiledLimit,
    quotas: &OwnQuotas,
    applied: &mut AppliedLimit,
    head: &RequestHead<'_>,
    look_ups: &mut Option<Box<LookUps>>,
) -> Result<bool, OwnResponse> {
    if layer.limits.is_overridden(applied) {
        // A blocked client is told when its own quota allows it again.
        match quotas.last_known(&applied.key, applied.tier) {
            Some(Terms::Own(own)) => applied.own = Some(own),
            Some(Terms::Tier(tier)) => applied.tier = tier,
            _ => {}
        }
        return Ok(true);
    }
    let (http, limit) = (&layer.face, &compiled.limit);
    let waited_for = look_ups.as_ref().and_then(|look_ups| look_ups.answer(applied.limit));
    let answer = if let Some(answer) = waited_for {
        answer.clone()
    } else {
        let subject = Subject { kind: applied.kind, key: applied.key.clone() };
        match quotas.look(&*limit.key, &subject, head) {
            Ok(Some(Look::Cached(answer))) => answer,
            // Only its own quota is known yet, and it must not delay a request.
            Ok(Some(Look::InProgress(_))) if limit.is_shadow() => {
                return Ok(!compiled.unlimited.contain(applied.tier));
            }
            Ok(Some(Look::InProgress(pending))) => {
                look_ups.get_or_insert_default().push(applied.limit, pending);
                return Ok(false);
            }
            Ok(None) => return Ok(!compiled.unlimited.contain(applied.tier)),
            Err(error) => return refuse(http, limit, of_error(http, &error), head),
        }
    };
    match quotas.terms(&answer, applied.tier) {
        Terms::Tier(tier) => applied.tier = tier,
        Terms::Own(own) => applied.own = Some(own),
        Terms::Unlimited => return Ok(false),
        Terms::Refused(Refusal::Unknown) => {
            return refuse(http, limit, Denial::missing_key(), head);
        }
        Terms::Refused(Refusal::LookUpFailed) => {
            let fields = [compiled.fields(applied)];
            let denial = Denial::store_unavailable(fields, respond::PROBE);
            return refuse(http, limit, denial, head);
        }
    }
    if let Some(cost) = quotas.cost(&answer, head, &http.options.grpc) {
        applied.cost = cost;
    }
    Ok(true)
}

/// Only an enforced limit refuses a request.
#[cold]
fn refuse(
    http: &Http,
    limit: &Limit,
    denial: Denial<'_>,
    head: &RequestHead<'_>,
) -> Result<bool, OwnResponse> {
    let (policy, shadow) = (limit.policy.name(), !limit.is_enforced());
    tracing::debug!(target: "tollgate", policy, shadow, "no quota");
    if limit.is_enforced() { Err(respond::without_verdict(http, denial, head)) } else { Ok(false) }
}

/// # Errors
/// The response to a client on the blocklist.
#[inline(never)]
pub(super) fn is_on_allowlist(
    http: &Http,
    lists: &AccessLists,
    head: &RequestHead<'_>,
) -> Result<bool, OwnResponse> {
    let denial = match lists.find(head) {
        Ok(Listed::Blocked) => Denial::denied_subject(),
        Ok(listed) => return Ok(listed == Listed::Allowed),
        Err(error) => of_error(http, &error),
    };
    tracing::debug!(target: "tollgate", reason = denial.reason().code(), "deny");
    Err(respond::without_verdict(http, denial, head))
}

/// Applies [`OnMissingKey`], and handles key sources that fail. Returns `None` to skip the limit. A
/// shadow policy never rejects.
#[cold]
fn without_key(
    http: &Http,
    compiled: &CompiledLimit,
    error: Option<KeyError>,
    head: &RequestHead<'_>,
) -> Result<Option<Subject>, OwnResponse> {
    let limit = &compiled.limit;
    let denial = match (error, limit.on_missing_key) {
        (Some(error), _) => of_error(http, &error),
        (None, Some(OnMissingKey::Pass)) => return Ok(None),
        (None, Some(OnMissingKey::Share)) => {
            let key = OnMissingKey::shared_key();
            return Ok(Some(Subject { kind: SubjectKind::Other, key }));
        }
        (None, Some(OnMissingKey::Deny) | None) => {
            let (policy, shadow) = (limit.policy.name(), !limit.is_enforced());
            tracing::debug!(target: "tollgate", policy, shadow, "no key [TG0212]");
            Denial::missing_key()
        }
    };
    if limit.is_enforced() { Err(respond::without_verdict(http, denial, head)) } else { Ok(None) }
}

/// The denial if a key source fails. Only the server's own mistakes are reported.
fn of_error(http: &Http, error: &KeyError) -> Denial<'static> {
    if matches!(error, KeyError::Ambiguous) {
        tracing::debug!(target: "tollgate", "ambiguous key");
        return Denial::ambiguous_key();
    }
    let report = || tracing::error!(target: "tollgate", %error, "cannot identify the client");
    http.faults.report(report);
    Denial::misconfigured()
}
