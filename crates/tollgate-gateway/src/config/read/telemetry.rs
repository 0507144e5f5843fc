//! Logs and traces.

use std::time::Duration;

use super::super::format;
use super::super::tables::RateLimiter;
use super::super::typed::{Checked, Reported};
use crate::plan::{AccessLogPlan, LogPlan, TracingPlan};

pub(super) fn log(limiter: &RateLimiter) -> Checked<LogPlan> {
    let log = limiter.log.get()?;
    Ok(LogPlan { format: log.format.value()?, level: log.level.value()? })
}

pub(super) fn access_log(limiter: &RateLimiter) -> Checked<Option<AccessLogPlan>> {
    let Some(log) = limiter.access_log.get()? else { return Ok(None) };
    let file = log.file.value()?.map(Into::into);
    let (format, sample) = (log.format.value()?, log.sample.value()?);
    Ok(Some(AccessLogPlan { file, format, sample }))
}

pub(super) fn tracing(limiter: &RateLimiter) -> Checked<Option<TracingPlan>> {
    let Some(tracing) = limiter.tracing.get()? else { return Ok(None) };
    let timeout = tracing.timeout.value()?;
    if !(SHORTEST..=LONGEST).contains(&timeout) {
        return Err(tracing.timeout.error(
            format!("a timeout of {timeout:?} is outside 10 ms to 60 s"),
            "the program waits up to this time for the collector when it stops: 3s is plenty",
        ));
    }
    let endpoint = tracing.endpoint.get()?.text.trim_end_matches('/');
    let path = if endpoint.ends_with(TRACES) { "" } else { TRACES };
    Ok(Some(TracingPlan {
        endpoint: format::target(&format!("{endpoint}{path}")).map_err(|_| Reported)?,
        sample: tracing.sample.value()?,
        headers: tracing.headers.value()?.unwrap_or_default(),
        service_name: tracing.service_name.value()?,
        timeout,
    }))
}

/// Where collectors take spans.
const TRACES: &str = "/v1/traces";

const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(60);
