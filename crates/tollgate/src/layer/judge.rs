//! Applies the store's reply to a request.

use tollgate_core::{Outcome, Store, StoreError, Verdict};

use super::row::Row;
use super::rows::{Rejection, Rows};
use super::state::LayerState;
use super::telemetry::DecisionTimer;

/// Writes the decisions into the rows, or applies the failure policies.
#[inline]
pub(super) fn judge<St: Store>(
    layer: &LayerState<St>,
    rows: &mut Rows,
    timer: &DecisionTimer,
    reply: Result<Verdict, StoreError>,
) -> Result<(), Rejection> {
    layer.telemetry.record(&layer.limits, rows, timer, &reply, layer.store.name());
    let verdict = match reply {
        Ok(verdict) => verdict,
        Err(error) => return fail(layer, rows, error),
    };
    if layer.outage.is_on() {
        layer.outage.decided();
    }
    rows.fill_in(&verdict);
    if !verdict.is_admitted() {
        return Err(Rejection::Denied);
    }
    tracing::debug!(target: "tollgate", remaining = remaining(rows), "allow");
    for row in rows.iter().filter(|row| row.decision.denies()) {
        let limit = layer.limit(row);
        let policy = limit.policy.name();
        match limit.shadow {
            true => tracing::debug!(target: "tollgate", policy, "shadow deny"),
            false => tracing::debug!(target: "tollgate", policy, "annotate"),
        }
    }
    if let Some(extras) = &layer.extras {
        rows.follow_up = extras.follow_up(&layer.limits, rows, &verdict);
    }
    Ok(())
}

fn remaining(rows: &[Row]) -> Option<u64> {
    let decided = rows.iter().filter(|row| row.decision.outcome != Outcome::Undecided);
    decided.map(|row| row.decision.remaining).min()
}

/// Applies the failure policies to a request that the store could not decide.
#[cold]
fn fail<St>(layer: &LayerState<St>, rows: &mut Rows, error: StoreError) -> Result<(), Rejection> {
    let passes = layer.limits.failing_closed(rows, &error).next().is_none();
    layer.outage.failed(&error, passes);
    if passes {
        tracing::debug!(target: "tollgate", %error, "failed open");
        rows.clear();
        return Ok(());
    }
    tracing::debug!(target: "tollgate", %error, "failed closed");
    Err(Rejection::Undecided(error))
}
