use super::super::format;
use super::super::problem::{Checked, Reported};
use super::super::tables::RateLimiter;
use crate::plan::{AccessLogPlan, LogPlan, TracingPlan};

pub(super) fn log(limiter: &RateLimiter) -> Checked<LogPlan> {
    let log = limiter.log.get()?;
    Ok(LogPlan { format: log.format.value()?, level: log.level.value()? })
}

pub(super) fn access_log(limiter: &RateLimiter) -> Checked<Option<AccessLogPlan>> {
    let Some(log) = limiter.access_log.get()? else { return Ok(None) };
    let file = log.file.value()?;
    let (format, sample) = (log.format.value()?, log.sample.value()?);
    Ok(Some(AccessLogPlan { file, format, sample }))
}

pub(super) fn tracing(limiter: &RateLimiter) -> Checked<Option<TracingPlan>> {
    let Some(tracing) = limiter.tracing.get()? else { return Ok(None) };
    let endpoint = tracing.endpoint.get()?.text.trim_end_matches('/');
    let path = if endpoint.ends_with(TRACES) { "" } else { TRACES };
    Ok(Some(TracingPlan {
        endpoint: format::target(&format!("{endpoint}{path}")).map_err(|_| Reported)?,
        sample: tracing.sample.value()?,
        headers: tracing.headers.value()?.unwrap_or_default(),
        service_name: tracing.service_name.value()?,
        timeout: tracing.timeout.value()?,
    }))
}

const TRACES: &str = "/v1/traces";
