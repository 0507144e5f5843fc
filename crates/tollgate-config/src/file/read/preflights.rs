use std::sync::Arc;

use tollgate::{Policy, Quota};

use super::context::FileContext;
use super::policy::{self, OnStoreFailure};
use crate::file::format::PreflightWord;
use crate::plan::{LimitPlan, Preflights, QuotaPlan, Whose};
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
    let policy = policy.map_err(|error| {
        policy::out_of_range(&limiter.preflights, &error, "write a number from 1 to 1000000")
    })?;
    let (on_store_error, shed) = (limiter.on_store_error.value()?, limiter.shed.value()?);
    let quotas = vec![QuotaPlan::of(OnStoreFailure { on_store_error, shed }.of(policy))];
    let limit = LimitPlan::new(Preflights::NAME, Whose::Client, file.mode()?);
    Ok(Preflights::Limited(Arc::new(LimitPlan { quotas, ..limit })))
}
