//! How a request gets into the service: finds the limits that apply, calls the store, and applies
//! its reply.

use std::mem;
use std::sync::Arc;

use tollgate_core::{Decision, Store};

use super::compiled::CompiledLimit;
use super::judge::judge;
use super::respond::{self, OwnResponse};
use super::row::{Row, TierIndex};
use super::rows::Rows;
use super::state::LayerState;
use super::wait::{self, Waiting};
use crate::access::{AccessLists, Listed};
use crate::denial::Denial;
use crate::key::{KeyError, Subject, SubjectKind};
use crate::{OnMissingKey, RequestHead};

pub(super) enum Admission {
    /// The request goes to the service.
    Pass,
    Respond(OwnResponse),
    /// The request waits for the store, for units, or for its turn in a leaky bucket.
    Wait(Waiting),
}

#[inline]
pub(super) fn admit<St: Store>(
    layer: &Arc<LayerState<St>>,
    head: &RequestHead<'_>,
    rows: &mut Rows,
) -> Admission {
    if let Err(response) = classify(layer, head, rows) {
        return Admission::Respond(response);
    }
    if rows.is_empty() {
        return Admission::Pass;
    }
    let timer = layer.telemetry.start(&layer.limits, rows, head);
    let judged = match layer.wait_queue() {
        Some(queue) => wait::for_units(layer, queue, rows, timer, head),
        None => match layer.decide(rows).now() {
            Ok(reply) => judge(layer, rows, &timer, reply).map(|()| None),
            Err(reply) => Ok(Some(wait::for_store(layer, mem::take(rows), timer, reply))),
        },
    };
    match judged {
        Ok(Some(waiting)) => Admission::Wait(waiting),
        Ok(None) if wait::delay(layer, rows).is_some() => {
            Admission::Wait(wait::for_turn(layer, mem::take(rows)))
        }
        Ok(None) => Admission::Pass,
        Err(rejection) => Admission::Respond(respond::reject(layer, rows, &rejection, head)),
    }
}

/// Finds the limits that apply to a request, with its key and cost under each.
#[inline]
fn classify<St>(
    layer: &LayerState<St>,
    head: &RequestHead<'_>,
    rows: &mut Rows,
) -> Result<(), OwnResponse> {
    // The blocklist overrides exemptions, so it is checked first.
    if let Some(lists) = &layer.options.access
        && is_on_allowlist(layer, lists, head)?
    {
        return Ok(());
    }
    if layer.exempts(head) {
        return Ok(());
    }
    let tier = layer.tiers.as_ref().map_or_else(TierIndex::default, |tiers| tiers.of(head));
    for (limit, compiled) in (0..).zip(&layer.limits.0) {
        if !compiled.limit.applies_to(head) {
            continue;
        }
        let Subject { kind, key } = match compiled.limit.key.subject(head) {
            Ok(Some(subject)) => subject,
            missing => match without_key(layer, compiled, missing.err(), head)? {
                Some(subject) => subject,
                None => continue,
            },
        };
        let cost = compiled.cost(head, &layer.options.grpc);
        let row = Row { limit, tier, kind, key, cost, decision: Decision::undecided(0) };
        rows.push(row, layer.limits.0.len());
    }
    Ok(())
}

/// # Errors
/// The response to a client on the blocklist.
#[inline(never)]
fn is_on_allowlist<St>(
    layer: &LayerState<St>,
    lists: &AccessLists,
    head: &RequestHead<'_>,
) -> Result<bool, OwnResponse> {
    let denial = match lists.find(head) {
        Ok(Listed::Blocked) => Denial::denied_subject(),
        Ok(listed) => return Ok(listed == Listed::Allowed),
        Err(error) => of_error(layer, &error),
    };
    tracing::debug!(target: "tollgate", reason = denial.reason().code(), "deny");
    Err(respond::without_verdict(layer, denial, head))
}

/// Applies [`OnMissingKey`], and handles key sources that fail. Returns `None` to skip the limit. A
/// shadow policy never rejects.
#[cold]
fn without_key<St>(
    layer: &LayerState<St>,
    compiled: &CompiledLimit,
    error: Option<KeyError>,
    head: &RequestHead<'_>,
) -> Result<Option<Subject>, OwnResponse> {
    let limit = &compiled.limit;
    let denial = match (error, limit.on_missing_key) {
        (Some(error), _) => of_error(layer, &error),
        (None, Some(OnMissingKey::Pass)) => return Ok(None),
        (None, Some(OnMissingKey::Share)) => {
            let key = OnMissingKey::shared_key();
            return Ok(Some(Subject { kind: SubjectKind::Other, key }));
        }
        (None, Some(OnMissingKey::Deny) | None) => {
            let (policy, shadow) = (limit.policy.name(), !limit.enforce);
            tracing::debug!(target: "tollgate", policy, shadow, "no key");
            Denial::missing_key()
        }
    };
    if limit.enforce { Err(respond::without_verdict(layer, denial, head)) } else { Ok(None) }
}

/// The denial if a key source fails. Only the server's own mistakes are reported.
fn of_error<St>(layer: &LayerState<St>, error: &KeyError) -> Denial<'static> {
    if matches!(error, KeyError::Ambiguous) {
        tracing::debug!(target: "tollgate", "ambiguous key");
        return Denial::ambiguous_key();
    }
    layer.faults.report(error);
    Denial::misconfigured()
}
