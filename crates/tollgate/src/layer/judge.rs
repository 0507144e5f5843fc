//! Applies the store's reply to a request.

use std::sync::Arc;

use http::Extensions;
use tollgate_core::{Micros, Outcome, Policy, Store, StoreError, Verdict};

use super::cancel::CancelGuard;
use super::extras::FollowUp;
use super::row::{Decided, Rejection, Row, Rows};
use super::state::LayerState;
use super::telemetry::DecisionTimer;

pub(super) enum Judgement {
    /// `None` if the layer adds no headers or state to the response.
    Pass(Option<Passed>),
    Reject(Rejection),
}

/// A request that passed, until its response is known.
pub(super) struct Passed {
    pub(super) decided: Decided,
    pub(super) follow_up: Option<Box<FollowUp>>,
}

impl Passed {
    /// Gives the handler access to the decision.
    #[inline]
    pub(super) fn prepare<St: Store>(&self, layer: &LayerState<St>, extensions: &mut Extensions) {
        if let Some(extras) = &layer.extras {
            extras.prepare(&layer.limits, &self.decided, self.follow_up.as_deref(), extensions);
        }
    }

    /// Refunds the charges of the request if it is dropped before it runs. Its permits are returned
    /// with `self`.
    pub(super) fn guard<St: Store>(&self, layer: &Arc<LayerState<St>>) -> CancelGuard<St> {
        let Decided { rows, .. } = &self.decided;
        let refunds = |policy: &Policy| !policy.is_concurrency();
        CancelGuard::charged(layer, rows, self.decided.verdict(), refunds)
    }

    /// Returns the limit that delays the request, and the delay.
    pub(super) fn delay<St>(&self, layer: &LayerState<St>) -> Option<(usize, Micros)> {
        let delay = self.follow_up.as_ref()?.delay;
        let limit = layer.extras.as_ref()?.delays?;
        (delay > Micros::ZERO).then_some((limit, delay))
    }
}

#[inline]
pub(super) fn judge<St: Store>(
    layer: &LayerState<St>,
    rows: Rows,
    timer: &DecisionTimer,
    reply: Result<Verdict, StoreError>,
) -> Judgement {
    layer.telemetry.record(&layer.limits, &rows, timer, &reply, layer.store.name());
    match reply {
        Ok(verdict) => {
            if layer.outage.is_on() {
                layer.outage.decided();
            }
            let decided = Decided::new(rows, &verdict);
            if verdict.is_admitted() {
                Judgement::Pass(pass(layer, decided))
            } else {
                Judgement::Reject(Rejection::Denied(decided))
            }
        }
        Err(error) => fail(layer, rows, error),
    }
}

#[inline]
fn pass<St: Store>(layer: &LayerState<St>, decided: Decided) -> Option<Passed> {
    tracing::debug!(target: "tollgate", remaining = remaining(&decided.rows), "allow");
    for row in &decided.rows {
        let limit = layer.limit(row);
        if row.decision.denies() && !limit.enforce {
            let policy = limit.policy.name();
            match limit.shadow {
                true => tracing::debug!(target: "tollgate", policy, "shadow deny"),
                false => tracing::debug!(target: "tollgate", policy, "annotate"),
            }
        }
    }
    let extras = layer.extras.as_ref();
    let follow_up = extras.and_then(|extras| extras.follow_up(&layer.limits, &decided));
    let is_shown = layer.options.headers.any() || layer.options.expose_verdicts;
    (follow_up.is_some() || is_shown).then_some(Passed { decided, follow_up })
}

fn remaining(rows: &[Row]) -> Option<u64> {
    let decided = rows.iter().filter(|row| row.decision.outcome != Outcome::Undecided);
    decided.map(|row| row.decision.remaining).min()
}

/// Applies the failure policies to a request that the store could not decide.
#[cold]
fn fail<St>(layer: &LayerState<St>, rows: Rows, error: StoreError) -> Judgement {
    let passes = layer.limits.failing_closed(&rows, &error).next().is_none();
    layer.outage.failed(&error, passes);
    if passes {
        tracing::debug!(target: "tollgate", %error, "failed open");
        return Judgement::Pass(None);
    }
    tracing::debug!(target: "tollgate", %error, "failed closed");
    Judgement::Reject(Rejection::Undecided(rows, error))
}
