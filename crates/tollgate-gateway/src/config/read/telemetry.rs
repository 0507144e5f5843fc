//! What is told of requests to those who run the gateway.

use std::time::Duration;

use tracing::level_filters::LevelFilter;

use super::super::format;
use super::super::problem::Problems;
use super::super::view::View;
use crate::plan::{AccessLogFormat, AccessLogPlan, LogFormat, LogPlan, TracingPlan};

/// How the log is written.
pub(super) fn log(limiter: &View<'_>) -> Option<LogPlan> {
    if !limiter.has("log") {
        return Some(LogPlan::default());
    }
    let view = limiter.view("log")?;
    let format = match view.text("format")? {
        "json" => LogFormat::Json,
        _ => LogFormat::Text,
    };
    // The words are those that it knows itself.
    let level = view.text("level")?.parse::<LevelFilter>().ok()?;
    Some(LogPlan { format, level })
}

/// The access log, if there is one. `None` where it is wrong.
pub(super) fn access_log(limiter: &View<'_>) -> Option<Option<AccessLogPlan>> {
    if !limiter.has("accessLog") {
        return Some(None);
    }
    let view = limiter.view("accessLog")?;
    let format = match view.text("format")? {
        "combined" => AccessLogFormat::Combined,
        _ => AccessLogFormat::Json,
    };
    let file = match view.item("file") {
        Some(item) => Some(item.text()?.into()),
        None => None,
    };
    Some(Some(AccessLogPlan { file, format, sample: view.text("sample")?.parse().ok()? }))
}

/// Where spans go, if anywhere. `None` where that is wrong.
pub(super) fn tracing(limiter: &View<'_>, problems: &mut Problems) -> Option<Option<TracingPlan>> {
    if !limiter.has("tracing") {
        return Some(None);
    }
    let view = limiter.view("tracing")?;
    let timeout = view.span("timeout")?;
    if !(SHORTEST..=LONGEST).contains(&timeout) {
        problems.error(
            view.place_of("timeout"),
            format!("a timeout of {timeout:?} is outside 10 ms to 60 s"),
            "the program waits so long for the collector when it stops: 3s is plenty",
        );
        return None;
    }
    let headers = match view.text("headers") {
        // What is wrong with it is told already.
        Some(text) => format::fields(text).ok()?,
        None => Vec::new(),
    };
    let endpoint = view.text("endpoint")?.trim_end_matches('/');
    let path = if endpoint.ends_with(TRACES) { "" } else { TRACES };
    Some(Some(TracingPlan {
        endpoint: format::target(&format!("{endpoint}{path}")).ok()?,
        sample: format::ratio(view.text("sample")?)?,
        headers,
        service_name: view.text("serviceName")?.to_owned(),
        timeout,
    }))
}

/// Where collectors take spans.
const TRACES: &str = "/v1/traces";

const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(60);
