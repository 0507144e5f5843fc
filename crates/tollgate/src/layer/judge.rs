//! Applies the store's reply to a request.

use http::Extensions;
use tollgate_core::{Micros, OnStoreError, Outcome, Store, StoreError, Verdict};

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
        if let (Some(extras), Some(follow_up)) = (&layer.extras, &self.follow_up) {
            extras.prepare(&layer.limits, &self.decided, follow_up, extensions);
        }
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
    if let Some(extras) = &layer.extras {
        let follow_up = extras.follow_up(&layer.limits, &decided);
        return Some(Passed { decided, follow_up: Some(Box::new(follow_up)) });
    }
    layer.options.headers.any().then_some(Passed { decided, follow_up: None })
}

fn remaining(rows: &[Row]) -> Option<u64> {
    let decided = rows.iter().filter(|row| row.decision.outcome != Outcome::Undecided);
    decided.map(|row| row.decision.remaining).min()
}

/// Applies the failure policies to a request that the store could not decide.
#[cold]
fn fail<St>(layer: &LayerState<St>, rows: Rows, error: StoreError) -> Judgement {
    let passes = failing_closed(layer, &rows, &error).next().is_none();
    layer.outage.failed(&error, passes);
    if passes {
        tracing::debug!(target: "tollgate", %error, "failed open");
        return Judgement::Pass(None);
    }
    tracing::debug!(target: "tollgate", %error, "failed closed");
    Judgement::Reject(Rejection::Undecided(rows, error))
}

/// Returns the rows with policies that reject a request that the store could not decide. This
/// includes policies with a local fallback, because their local store could not decide either. But
/// if another policy fails closed, the local store was not called, so only closed policies reject.
pub(super) fn failing_closed<'a, St>(
    layer: &'a LayerState<St>,
    rows: &'a [Row],
    error: &'a StoreError,
) -> impl Iterator<Item = &'a Row> {
    let limit = |row: &Row| layer.limits.of(row);
    let is_closed = move |row: &Row| limit(row).on_error(error) == OnStoreError::Closed;
    let rejecting = rows.iter().filter(move |row| limit(row).fails_closed(error));
    let any_is_closed = rejecting.clone().any(&is_closed);
    rejecting.filter(move |row| !any_is_closed || is_closed(row))
}
