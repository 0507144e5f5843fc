//! The message with the decisions.

use std::collections::HashSet;

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit, rate_limit,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::Duration as Seconds;
use http::HeaderName;
use tollgate_config::plan::{Allowed, RateLimitsPlan, ResponseHeaders, Unit};

use super::charges::{Decided, Met, denials, limited};
use super::metadata;
use crate::serve::operations::summary::Summary;

pub(super) fn of(
    plan: &RateLimitsPlan,
    summary: &Summary,
    request: &RateLimitRequest,
    all: &[Option<Met<'_>>],
    decided: &[Option<Decided>],
) -> RateLimitResponse {
    let denying: HashSet<_> = denials(all, decided).collect();
    let overall = if denying.is_empty() { Code::Ok } else { Code::OverLimit };
    // The descriptor in the headers: if some descriptors deny, the denying descriptor with the
    // longest wait, and otherwise the descriptor with the fewest remaining units.
    let mut shown: Option<(&Allowed, &Decided)> = None;
    let mut statuses = Vec::with_capacity(all.len());
    for (index, (limited, decided)) in limited(all).zip(decided).enumerate() {
        let (Some((met, allowed)), Some(decided)) = (limited, decided) else {
            // There is no rule, no limit, or no decision.
            statuses.push(ok(None, if all[index].is_some() { u32::MAX } else { 0 }));
            continue;
        };
        let remaining = u32::try_from(decided.remaining).unwrap_or(u32::MAX);
        let limit = RateLimit {
            name: met.rule.name.clone(),
            requests_per_unit: allowed.requests,
            unit: wire(allowed.unit) as i32,
        };
        let mut status = ok(Some(limit), remaining);
        let seconds = i64::try_from(decided.reset).unwrap_or(i64::MAX);
        status.duration_until_reset = Some(Seconds { seconds, nanos: 0 });
        if met.shadow {
            if decided.is_over {
                summary.rate_limit(allowed.name(), false);
            }
            statuses.push(status);
            continue;
        }
        if decided.is_over {
            status.code = Code::OverLimit as i32;
        }
        let is_shown = match shown {
            _ if !denying.is_empty() && !denying.contains(&index) => false,
            None => true,
            Some((_, shown)) if denying.is_empty() => decided.remaining < shown.remaining,
            Some((_, shown)) => {
                shown.wait.is_some_and(|other| decided.wait.is_none_or(|it| it > other))
            }
        };
        if is_shown {
            shown = Some((allowed, decided));
        }
        statuses.push(status);
    }
    let mut headers = Vec::new();
    if let Some((allowed, Decided { remaining, reset, wait, .. })) = shown {
        let wait = wait.filter(|_| overall == Code::OverLimit);
        let ResponseHeaders { enabled, limit, remaining: left, reset: until } =
            &plan.response_headers;
        if *enabled {
            let values = [allowed.requests.into(), *remaining, *reset];
            let named = [limit, left, until].map(HeaderName::as_str).into_iter().zip(values);
            headers.extend(named.chain(wait.map(|wait| ("retry-after", wait))).map(header));
        }
        if overall == Code::OverLimit {
            summary.rate_limit(allowed.name(), true);
        }
    }
    let dynamic_metadata = plan.dynamic_metadata.then(|| metadata::of(request, all, &statuses));
    RateLimitResponse { dynamic_metadata, ..with(overall, statuses, headers) }
}

pub(super) fn with(
    overall: Code,
    statuses: Vec<DescriptorStatus>,
    response_headers_to_add: Vec<HeaderValue>,
) -> RateLimitResponse {
    let overall_code = overall as i32;
    RateLimitResponse { overall_code, statuses, response_headers_to_add, ..Default::default() }
}

pub(super) fn ok(current_limit: Option<RateLimit>, limit_remaining: u32) -> DescriptorStatus {
    let code = Code::Ok as i32;
    DescriptorStatus { code, current_limit, limit_remaining, ..DescriptorStatus::default() }
}

fn header((key, value): (&str, u64)) -> HeaderValue {
    HeaderValue { key: key.to_owned(), value: value.to_string(), ..HeaderValue::default() }
}

/// A unit in messages. The unit of limits in requests has the same numbers.
pub(super) const fn wire(unit: Unit) -> rate_limit::Unit {
    match unit {
        Unit::Second => rate_limit::Unit::Second,
        Unit::Minute => rate_limit::Unit::Minute,
        Unit::Hour => rate_limit::Unit::Hour,
        Unit::Day => rate_limit::Unit::Day,
        Unit::Week => rate_limit::Unit::Week,
        Unit::Month => rate_limit::Unit::Month,
        Unit::Year => rate_limit::Unit::Year,
    }
}
