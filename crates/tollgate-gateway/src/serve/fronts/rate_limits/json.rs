//! The same decisions as JSON, at the path `/json` of envoyproxy/ratelimit: protobuf's JSON form of
//! the messages, with 429 if a limit is exceeded.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, rate_limit,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use envoy_types::pb::google::protobuf::UInt64Value;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use tonic::{Code as GrpcCode, Status};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Asked {
    domain: String,
    #[serde(default)]
    descriptors: Vec<Descriptor>,
    #[serde(default, alias = "hits_addend")]
    hits_addend: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    entries: Vec<KeyValue>,
    limit: Option<OwnLimit>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<u64>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct KeyValue {
    key: String,
    #[serde(default)]
    value: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct OwnLimit {
    #[serde(alias = "requests_per_unit")]
    requests_per_unit: u32,
    unit: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Decided {
    overall_code: &'static str,
    statuses: Vec<Decision>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    response_headers_to_add: Vec<KeyValue>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Decision {
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_limit: Option<CurrentLimit>,
    limit_remaining: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_until_reset: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CurrentLimit {
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    requests_per_unit: u32,
    unit: &'static str,
}

/// Reads a request. The error names the member.
pub(crate) fn read(body: &[u8]) -> Result<RateLimitRequest, String> {
    let asked: Asked = serde_json::from_slice(body).map_err(|error| format!("{error}"))?;
    let descriptors = asked.descriptors.into_iter().map(Descriptor::read);
    Ok(RateLimitRequest {
        domain: asked.domain,
        descriptors: descriptors.collect::<Result<_, _>>()?,
        hits_addend: asked.hits_addend,
    })
}

impl Descriptor {
    fn read(self) -> Result<RateLimitDescriptor, String> {
        let entry = |KeyValue { key, value }: KeyValue| Entry { key, value };
        let limit = self.limit.map(|OwnLimit { requests_per_unit, unit }| {
            let unit = RateLimitUnit::from_str_name(&unit).ok_or_else(|| {
                let unit = unit.escape_debug();
                format!("`{unit}` is no unit: write SECOND, MINUTE, HOUR, DAY, MONTH or YEAR")
            })?;
            Ok::<_, String>(RateLimitOverride { requests_per_unit, unit: unit as i32 })
        });
        Ok(RateLimitDescriptor {
            entries: self.entries.into_iter().map(entry).collect(),
            limit: limit.transpose()?,
            hits_addend: self.hits_addend.map(|value| UInt64Value { value }),
            ..Default::default()
        })
    }
}

/// The status for a request without a decision.
pub(crate) fn status_of(error: &Status) -> StatusCode {
    match error.code() {
        GrpcCode::InvalidArgument | GrpcCode::Unimplemented => StatusCode::BAD_REQUEST,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// The status and the body for a decision.
pub(crate) fn written(decided: &RateLimitResponse) -> (StatusCode, Vec<u8>) {
    let status = match decided.overall_code() {
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::OK,
    };
    let added = decided.response_headers_to_add.iter();
    let body = Decided {
        overall_code: decided.overall_code().as_str_name(),
        statuses: decided.statuses.iter().map(Decision::of).collect(),
        response_headers_to_add: added
            .map(|header| KeyValue { key: header.key.clone(), value: header.value.clone() })
            .collect(),
    };
    (status, serde_json::to_vec(&body).unwrap_or_default())
}

impl Decision {
    fn of(status: &DescriptorStatus) -> Self {
        let limit = status.current_limit.as_ref().map(|limit| CurrentLimit {
            name: limit.name.clone(),
            requests_per_unit: limit.requests_per_unit,
            unit: rate_limit::Unit::try_from(limit.unit).unwrap_or_default().as_str_name(),
        });
        Self {
            code: status.code().as_str_name(),
            current_limit: limit,
            limit_remaining: status.limit_remaining,
            duration_until_reset: status
                .duration_until_reset
                .as_ref()
                .map(|until| format!("{}s", until.seconds)),
        }
    }
}
