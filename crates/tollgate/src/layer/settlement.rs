//! Charges that a response corrects.

use http::Response;
use tollgate_core::{Cost, Decision, Micros, Receipt};
use tollgate_engine::{AppliedLimit, Charges, Correction, Ending};

use super::state::Http;
use crate::ResponseHead;
use crate::drive::Open;
use crate::headers::PolicyFields;

/// Corrects the open charges that a response determines, and corrects the numbers for its headers.
pub(super) fn by_response<B>(
    http: &Http,
    open: &Open,
    response: &Response<B>,
    charges: &mut Charges,
) {
    let head = ResponseHead::of(response);
    for applied in charges.iter() {
        let (limit, settling) = (http.limit(applied), &http.limit(applied).settling);
        let ending = Ending {
            counts: settling.counts.as_ref().map(|counts| counts(&head)),
            forgives: settling
                .forgives
                .as_ref()
                .is_some_and(|it| it.body.is_none() && (it.head)(&head)),
            stated: settling.reserve.as_ref().and_then(|reserve| reserve.stated(head.headers)),
        };
        open.settle(|charge| {
            let Receipt { policy, charged, .. } = charge.receipt();
            let is_meant = charge.is_of(limit.policy.name());
            is_meant.then(|| ending.correction(policy, charged.cost)).flatten()
        });
    }
    let elapsed = open.age();
    for charge in open.charges().iter() {
        let is_meant =
            |applied: &&mut AppliedLimit| charge.is_of(http.limit(applied).policy.name());
        let Some(applied) = charges.iter_mut().find(is_meant) else { continue };
        match charge.correction() {
            Some(Correction::Actual(actual)) => {
                let estimate = charge.receipt().charged.cost;
                let fields = http.fields(applied);
                let corrected = corrected(applied, fields, estimate, actual, elapsed);
                (applied.decision, applied.cost) = corrected;
            }
            Some(Correction::Forgive) => {
                applied.decision.remaining = applied.decision.limit;
                applied.decision.reset_after = Micros::ZERO;
            }
            None => {}
        }
    }
}

/// Returns the decision and the cost for the response's headers, at a time `elapsed` after the
/// decision.
fn corrected(
    applied: &AppliedLimit,
    fields: &PolicyFields,
    estimate: Cost,
    actual: Cost,
    elapsed: Micros,
) -> (Decision, Cost) {
    let (mut decision, mut cost) = (applied.decision, applied.cost);
    let (estimate, actual) = (estimate.get(), actual.get());
    if actual > estimate {
        let more = actual - estimate;
        decision.reset_after = fields.reset_after_debt(&decision, more, elapsed);
        if more > decision.remaining {
            // Like a free request, this request no longer shows that there is no debt.
            cost = Cost::ZERO;
        }
        decision.remaining = decision.remaining.saturating_sub(more);
        return (decision, cost);
    }
    let remaining = decision.remaining.saturating_add(estimate - actual).min(decision.limit);
    if remaining == decision.limit {
        // The quota is already full, because no other request has used units from it.
        decision.reset_after = Micros::ZERO;
    }
    decision.remaining = remaining;
    (decision, cost)
}
