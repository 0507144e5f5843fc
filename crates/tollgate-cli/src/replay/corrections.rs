//! How a logged response corrects a charge.

use http::StatusCode;
use tollgate::policy::Cost;
use tollgate::store::Micros;
use tollgate_config::plan::{ChargePlan, LimitPlan, ReservePlan, Route, SettleBy, Statuses};
use tollgate_engine::{Correction, Ending};
use tollgate_llm::{Models, Usage};
use tollgate_replay::log::{Record, Tokens};

use crate::worst::refunds;

/// The logged tokens' cost.
pub(super) fn usage(
    record: &Record<'_>,
    models: Option<&Models>,
    settle: SettleBy,
) -> Option<Cost> {
    let Tokens { model, input, cached_input, output } = record.tokens?;
    let cached_input = cached_input.min(input);
    let mut usage = Usage::new(input - cached_input, output);
    usage.cached_input = cached_input;
    settle.cost_of(models?.get(model), &usage)
}

/// Whether a response may correct a charge on this route.
pub(super) fn corrects(route: &Route) -> bool {
    let counts_failures = |charge: ChargePlan<'_>| matches!(charge, ChargePlan::Penalty(penalty) if penalty.failures.is_some());
    route.limits.all().any(|limit| refunds(limit) || limit.charges().any(counts_failures))
}

/// How a response corrects a charge.
pub(super) fn correction(
    limit: &LimitPlan,
    charge: ChargePlan<'_>,
    record: &Record<'_>,
) -> Option<Correction> {
    let policy = charge.any_policy()?;
    let (counts, stated) = match charge {
        ChargePlan::InFlight(_) => return None,
        ChargePlan::Penalty(penalty) => {
            let failures = penalty.failures.as_ref();
            (failures.map(|failures| contain(failures, record.status)), None)
        }
        ChargePlan::Quota(_) => {
            // If the client left before the response, the charge is final.
            let is_known = !matches!(record.status, 0 | 499);
            let counts = limit.counts.as_ref();
            let counts = counts.map(|counts| !is_known || contain(counts, record.status));
            (counts, limit.reserve.as_ref().and_then(|reserve| stated(reserve, record)))
        }
    };
    let forgives = limit.forgives.as_ref().is_some_and(|on| {
        // A log has no headers and bodies of responses.
        on.header.is_none() && on.body.is_none() && contain(&on.status, record.status)
    });
    Ending { counts, forgives, stated }.correction(policy, Cost::ONE)
}

fn stated(reserve: &ReservePlan, record: &Record<'_>) -> Option<Cost> {
    if record.duration.is_some_and(|duration| duration >= Micros::from(reserve.lapse)) {
        return None;
    }
    match reserve.settle {
        SettleBy::Bytes(unit) => Some(Cost::new(record.bytes.div_ceil(unit))),
        SettleBy::Header | SettleBy::Trailer | SettleBy::Tokens | SettleBy::Money => None,
    }
}

/// False for a request without a status, because its outcome is unknown.
fn contain(statuses: &[Statuses], status: u16) -> bool {
    let status = StatusCode::from_u16(status);
    status.is_ok_and(|status| statuses.iter().any(|it| it.contain(status)))
}
