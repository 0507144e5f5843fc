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

/// Members may be absent or `null`, and numbers may be text.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Asked {
    domain: Option<String>,
    descriptors: Option<Vec<Descriptor>>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Number>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Descriptor {
    entries: Option<Vec<KeyValue>>,
    limit: Option<OwnLimit>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Number>,
    #[serde(alias = "is_negative_hits")]
    is_negative_hits: Option<bool>,
}

/// A number, which writers of 64-bit numbers put into text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Number(u64),
    Text(String),
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
    requests_per_unit: Option<Number>,
    unit: Option<Unit>,
}

/// An enum's value, by name or by number.
#[derive(Deserialize)]
#[serde(untagged)]
enum Unit {
    Number(i32),
    Name(String),
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
    let descriptors = asked.descriptors.into_iter().flatten().map(Descriptor::read);
    Ok(RateLimitRequest {
        domain: asked.domain.unwrap_or_default(),
        descriptors: descriptors.collect::<Result<_, _>>()?,
        hits_addend: Number::read(asked.hits_addend, "hitsAddend")?.unwrap_or_default(),
    })
}

impl Number {
    fn read<T: TryFrom<u64>>(number: Option<Self>, member: &str) -> Result<Option<T>, String> {
        let read = |number| match number {
            Self::Number(number) => T::try_from(number).ok(),
            Self::Text(text) => text.parse().ok().and_then(|number: u64| T::try_from(number).ok()),
        };
        let number = number.map(|number| read(number).ok_or(()));
        number.transpose().map_err(|()| format!("`{member}` is no number, or too large"))
    }
}

impl Descriptor {
    fn read(self) -> Result<RateLimitDescriptor, String> {
        let entry = |KeyValue { key, value }: KeyValue| Entry { key, value };
        let limit = self.limit.map(|OwnLimit { requests_per_unit, unit }| {
            let requests_per_unit = Number::read(requests_per_unit, "requestsPerUnit")?;
            let unit = match unit {
                None => 0,
                Some(Unit::Number(number)) => number,
                Some(Unit::Name(name)) => RateLimitUnit::from_str_name(&name).ok_or_else(|| {
                    let name = name.escape_debug();
                    format!("`{name}` is no unit: write SECOND, MINUTE, HOUR, DAY, MONTH or YEAR")
                })? as i32,
            };
            let requests_per_unit = requests_per_unit.unwrap_or_default();
            Ok::<_, String>(RateLimitOverride { requests_per_unit, unit })
        });
        let hits_addend = Number::read(self.hits_addend, "hitsAddend")?;
        Ok(RateLimitDescriptor {
            entries: self.entries.into_iter().flatten().map(entry).collect(),
            limit: limit.transpose()?,
            hits_addend: hits_addend.map(|value| UInt64Value { value }),
            is_negative_hits: self.is_negative_hits.unwrap_or_default(),
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
