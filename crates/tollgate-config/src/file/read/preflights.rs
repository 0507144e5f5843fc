use std::sync::Arc;

use tollgate::limit::Mode;
use tollgate::policy::Cost;
use tollgate::{Policy, Quota};

use super::context::FileContext;
use crate::code;
use crate::file::format::PreflightWord;
use crate::plan::{CostTable, LimitPlan, Preflights, QuotaPlan, Whose};
use crate::yaml::problem::Checked;

pub(super) fn preflights(file: &FileContext<'_>) -> Checked<Preflights> {
    let limiter = file.limiter;
    let per_minute = match limiter.preflights.value()? {
        PreflightWord::PerMinute(per_minute) => per_minute,
        PreflightWord::Charged => return Ok(Preflights::Charged),
        PreflightWord::Unlimited => return Ok(Preflights::Unlimited),
    };
    file.names.take(Preflights::NAME, &limiter.preflights.location());
    let policy = Policy::sliding_window_counter(Preflights::NAME, Quota::per_minute(per_minute));
    let wrong = |error: tollgate::policy::PolicyError| {
        limiter.preflights.error(
            code::QUOTA_RANGE,
            error.to_string(),
            "write a number from 1 to 1000000",
        )
    };
    let mut policy = policy.map_err(wrong)?.with_on_store_error(limiter.on_store_error.value()?);
    if let Some(shed) = limiter.shed.value()? {
        policy = policy.with_shed(shed);
    }
    Ok(Preflights::Limited(Arc::new(LimitPlan {
        name: Preflights::NAME.to_owned(),
        quotas: vec![QuotaPlan::of(policy)],
        whose: Whose::Client,
        costs: Arc::new(CostTable::flat(Cost::ONE)),
        mode: if limiter.shadow.value()? { Mode::Shadow } else { Mode::Reject },
        hide_headers: false,
        counts: None,
        forgives: None,
        reserve: None,
        in_flight: None,
        penalty: None,
        levels: Vec::new(),
        tenants: None,
    })))
}
