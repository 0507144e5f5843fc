//! How a request gets into the service: finds the limits that apply, calls the store, and applies
//! its reply.

use std::sync::Arc;

use tollgate_core::{Decision, Store};

use super::compiled::CompiledLimit;
use super::judge::{Judgement, Passed, judge};
use super::respond::{self, OwnResponse};
use super::row::{Row, Rows, TierIndex};
use super::state::LayerState;
use super::wait::{self, Waiting};
use crate::denial::Denial;
use crate::key::{KeyError, Subject, SubjectKind};
use crate::{OnMissingKey, RequestHead};

pub(super) enum Admission {
    /// The request goes to the service. `None` if the layer adds no headers or state.
    Pass(Option<Passed>),
    Respond(OwnResponse),
    /// The request waits for the store, for units, or for its turn in a leaky bucket.
    Wait(Waiting),
}

#[inline]
pub(super) fn admit<St: Store>(layer: &Arc<LayerState<St>>, head: &RequestHead<'_>) -> Admission {
    let rows = match classify(layer, head) {
        Ok(rows) if rows.is_empty() => return Admission::Pass(None),
        Ok(rows) => rows,
        Err(response) => return Admission::Respond(response),
    };
    let timer = layer.telemetry.start(&layer.limits, &rows, head);
    let judged = match layer.wait_queue() {
        Some(queue) => wait::for_units(layer, queue, rows, timer, head),
        None => match layer.decide(&rows).now() {
            Ok(reply) => Ok(judge(layer, rows, &timer, reply)),
            Err(reply) => Err(wait::for_store(layer, rows, timer, reply)),
        },
    };
    match judged {
        Ok(Judgement::Pass(Some(passed))) if passed.delay(layer).is_some() => {
            Admission::Wait(wait::for_turn(layer, passed))
        }
        Ok(Judgement::Pass(passed)) => Admission::Pass(passed),
        Ok(Judgement::Reject(rejection)) => {
            Admission::Respond(respond::reject(layer, &rejection, head))
        }
        Err(waiting) => Admission::Wait(waiting),
    }
}

/// Finds the limits that apply to a request, with its key and cost under each.
#[inline]
fn classify<St>(layer: &LayerState<St>, head: &RequestHead<'_>) -> Result<Rows, OwnResponse> {
    if layer.exempts(head) {
        return Ok(Rows::new());
    }
    let mut rows = Rows::new();
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
        if rows.is_empty() {
            rows.reserve(layer.limits.0.len());
        }
        rows.push(Row { limit, tier, kind, key, cost, decision: Decision::undecided(0) });
    }
    Ok(rows)
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
        (Some(error), _) => {
            layer.faults.report(&error);
            Denial::misconfigured()
        }
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
