//! The dynamic metadata of a response, with the same members as in envoyproxy/ratelimit.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{ListValue, Struct, Value};
use serde_json::{Map, Value as Json, json};

use super::charges::{Met, limited};

pub(super) fn of(
    request: &RateLimitRequest,
    met: &[Option<Met<'_>>],
    statuses: &[DescriptorStatus],
) -> Struct {
    let mut passed = Map::new();
    for (limited, status) in limited(met).zip(statuses) {
        if let Some((met, _)) = limited
            && status.code == Code::Ok as i32
        {
            merge(&mut passed, &met.rule.metadata);
        }
    }
    let descriptors: Vec<_> = request.descriptors.iter().map(descriptor).collect();
    let mut all = Map::new();
    all.insert("domain".to_owned(), json!(request.domain));
    all.insert("descriptors".to_owned(), json!(descriptors));
    if request.hits_addend > 0 {
        all.insert("hitsAddend".to_owned(), json!(request.hits_addend));
    }
    if !passed.is_empty() {
        all.insert("metadata".to_owned(), Json::Object(passed));
    }
    section(&all)
}

fn descriptor(descriptor: &RateLimitDescriptor) -> Json {
    let entries = descriptor.entries.iter().map(|it| format!("{}={}", it.key, it.value));
    let mut all = json!({"entries": entries.collect::<Vec<_>>()});
    if let Some(limit) = &descriptor.limit {
        let unit = limit.unit().as_str_name();
        all["limit"] = json!(format!("requests_per_unit:{} unit:{unit}", limit.requests_per_unit));
    }
    if let Some(hits) = &descriptor.hits_addend {
        all["hitsAddend"] = json!(hits.value);
    }
    all
}

/// Sections are merged. Of other values with the same key, the first remains.
fn merge(into: &mut Map<String, Json>, from: &Map<String, Json>) {
    for (key, value) in from {
        match (into.get_mut(key), value) {
            (Some(Json::Object(into)), Json::Object(from)) => merge(into, from),
            (Some(_), _) => {}
            (None, _) => drop(into.insert(key.clone(), value.clone())),
        }
    }
}

fn section(section: &Map<String, Json>) -> Struct {
    Struct { fields: section.iter().map(|(key, it)| (key.clone(), value(it))).collect() }
}

fn value(json: &Json) -> Value {
    let kind = match json {
        Json::Null => Kind::NullValue(0),
        Json::Bool(flag) => Kind::BoolValue(*flag),
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Json::String(text) => Kind::StringValue(text.clone()),
        Json::Array(list) => {
            Kind::ListValue(ListValue { values: list.iter().map(value).collect() })
        }
        Json::Object(map) => Kind::StructValue(section(map)),
    };
    Value { kind: Some(kind) }
}
