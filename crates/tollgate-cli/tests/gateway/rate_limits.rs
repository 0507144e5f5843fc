//! The Envoy rate limit service, called over gRPC with the published messages.

use std::collections::HashMap;
use std::fs;
use std::process::Command;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, rate_limit};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, UInt64Value, Value};
use prost::Message as _;
use serde_json::json;
use tempfile::TempDir;
use tollgate_test_servers::Redis;
use tonic::transport::Channel;
use tonic::{IntoRequest, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::encryption::{authority, certificate};
use crate::support::{Client, Gateway, Outcome, RawHttp2, frames};

/// Most units are years, so no window expires during a test.
const RULES: &str = "domain: test
descriptors:
  - key: user
    rate_limit: {name: each, unit: YEAR, requests_per_unit: 3}
  - key: user
    value: root
    rate_limit: {unlimited: true}
  - key: user
    value: banned
    rate_limit: {unit: year, requests_per_unit: 0}
  - key: user
    value: watched
    rate_limit: {unit: year, requests_per_unit: 1}
    shadow_mode: true
  - key: file
    value: shared*
    share_threshold: true
    rate_limit: {unit: year, requests_per_unit: 2}
  - key: file
    value: own*end
    rate_limit: {unit: year, requests_per_unit: 1}
  - key: status
    value: 404
    rate_limit: {unit: year, requests_per_unit: 1}
  - key: visit
    rate_limit: {unit: month, requests_per_unit: 1}
  - key: tokens
    rate_limit: {unit: year, requests_per_unit: 10}
  - key: log
    rate_limit: {unit: day, requests_per_unit: 10, algorithm: sliding_window_log}
  - key: counter
    rate_limit: {unit: day, requests_per_unit: 10, algorithm: sliding_window_counter}
  - key: bucket
    rate_limit: {unit: day, requests_per_unit: 10, algorithm: token_bucket}
  - key: free
  - key: pool
    value: one
    quota_mode: true
    rate_limit: {unit: year, requests_per_unit: 1}
  - key: pool
    value: other
    quota_mode: true
    rate_limit: {unit: year, requests_per_unit: 2}
  - key: kind
    value: marketing
    descriptors:
      - key: user
        rate_limit: {unit: year, requests_per_unit: 1, replaces: [{name: each}]}
";

struct Service {
    gateway: Gateway,
    channel: Channel,
}

impl Service {
    async fn start(lines: &str, rules: &str) -> Self {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("ratelimit.yaml"), rules).unwrap();
        let service = "rateLimitService: {listen: 127.0.0.1:0, config: ratelimit.yaml}";
        Self::of(Gateway::start_in(folder, &format!("{service}\n{lines}"))).await
    }

    async fn of(gateway: Gateway) -> Self {
        let address = gateway.fronts["rateLimitService"];
        let channel = Channel::from_shared(format!("http://{address}")).unwrap();
        let channel = channel.connect().await.unwrap();
        Self { gateway, channel }
    }

    async fn send(&self, request: impl IntoRequest<RateLimitRequest>) -> Answer {
        let mut client = RateLimitServiceClient::new(self.channel.clone());
        Ok(client.should_rate_limit(request).await?.into_inner())
    }

    /// The overall code for these descriptors, followed by their individual codes.
    async fn codes(&self, descriptors: &[&[(&str, &str)]]) -> Vec<Code> {
        codes(&self.send(request(descriptors)).await.unwrap())
    }
}

type Answer = Result<RateLimitResponse, Status>;

fn request(descriptors: &[&[(&str, &str)]]) -> RateLimitRequest {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
    let descriptor = |entries: &&[(&str, &str)]| RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    };
    let descriptors = descriptors.iter().map(descriptor).collect();
    RateLimitRequest { domain: "test".into(), descriptors, hits_addend: 0 }
}

fn codes(response: &RateLimitResponse) -> Vec<Code> {
    let of_descriptors = response.statuses.iter().map(|status| status.code());
    std::iter::once(response.overall_code()).chain(of_descriptors).collect()
}

use Code::{Ok as Allowed, OverLimit};

#[tokio::test]
async fn response_has_limit_remaining_and_reset() {
    let service = Service::start("", RULES).await;
    for remaining in [2, 1, 0] {
        let answer = service.send(request(&[&[("user", "ann")]])).await.unwrap();
        assert_eq!(codes(&answer), [Allowed, Allowed]);
        assert_eq!(answer.statuses[0].limit_remaining, remaining);
    }
    let answer = service.send(request(&[&[("user", "ann")]])).await.unwrap();
    assert_eq!(codes(&answer), [OverLimit, OverLimit]);
    let status = &answer.statuses[0];
    let limit = status.current_limit.as_ref().unwrap();
    assert_eq!(
        (limit.requests_per_unit, limit.unit(), &*limit.name),
        (3, rate_limit::Unit::Year, "each")
    );
    let reset = status.duration_until_reset.unwrap().seconds;
    assert!((1..=365 * 86_400).contains(&reset), "{reset}");
    let header = |name: &str| {
        let header = answer.response_headers_to_add.iter().find(|it| it.key == name);
        header.unwrap_or_else(|| panic!("no {name}")).value.clone()
    };
    assert_eq!((&*header("ratelimit-limit"), &*header("ratelimit-remaining")), ("3", "0"));
    assert_eq!(header("retry-after"), header("ratelimit-reset"));
    // Another value has its own quota.
    assert_eq!(service.codes(&[&[("user", "bob")]]).await, [Allowed, Allowed]);
}

#[tokio::test]
async fn retry_after_is_the_longest_reset() {
    let service = Service::start("", RULES).await;
    let retry_after = |answer: &RateLimitResponse| {
        let header = answer.response_headers_to_add.iter().find(|it| it.key == "retry-after");
        header.map(|it| it.value.parse::<i64>().unwrap())
    };
    let both = request(&[&[("visit", "any")], &[("status", "404")]]);
    let answer = service.send(both.clone()).await.unwrap();
    assert_eq!((codes(&answer), retry_after(&answer)), (vec![Allowed; 3], None));
    let answer = service.send(both).await.unwrap();
    assert_eq!(codes(&answer), [OverLimit; 3]);
    let resets = answer.statuses.iter().map(|it| it.duration_until_reset.unwrap().seconds);
    assert_eq!(retry_after(&answer), resets.max());
    // With a limit of zero, waiting does not help.
    let answer = service.send(request(&[&[("user", "banned")], &[("visit", "any")]])).await;
    assert_eq!(retry_after(&answer.unwrap()), None);
}

#[tokio::test]
async fn most_specific_rule_applies() {
    let service = Service::start("", RULES).await;
    for (descriptor, expected) in [
        (&[("user", "root")][..], &[Allowed, Allowed, Allowed, Allowed][..]),
        (&[("user", "banned")], &[OverLimit]),
        (&[("user", "watched")], &[Allowed, Allowed, Allowed]),
        (&[("file", "shared-a")], &[Allowed]),
        (&[("file", "shared-b")], &[Allowed]),
        (&[("file", "shared-c")], &[OverLimit]),
        (&[("file", "own-a-end")], &[Allowed, OverLimit]),
        (&[("file", "own-b-end")], &[Allowed, OverLimit]),
        (&[("file", "own-b")], &[Allowed, Allowed]),
        (&[("status", "404")], &[Allowed, OverLimit]),
        (&[("free", "a")], &[Allowed, Allowed]),
        (&[("unknown", "a")], &[Allowed, Allowed]),
        (&[("kind", "marketing")], &[Allowed, Allowed]),
        (&[("kind", "marketing"), ("user", "ann")], &[Allowed, OverLimit]),
        (&[("kind", "marketing"), ("user", "bob")], &[Allowed, OverLimit]),
        (&[("kind", "other"), ("user", "ann")], &[Allowed, Allowed]),
        (&[("user", "eve"), ("file", "a")], &[Allowed, Allowed, Allowed, Allowed]),
    ] {
        for code in expected {
            assert_eq!(service.codes(&[descriptor]).await, [*code; 2], "{descriptor:?}");
        }
    }
    let unlimited = service.send(request(&[&[("user", "root")]])).await.unwrap();
    assert_eq!(unlimited.statuses[0].limit_remaining, u32::MAX);
    let mut elsewhere = request(&[&[("user", "banned")]]);
    elsewhere.domain = "elsewhere".into();
    assert_eq!(codes(&service.send(elsewhere).await.unwrap()), [Allowed, Allowed]);
}

#[tokio::test]
async fn descriptors_are_decided_together() {
    let service = Service::start("", RULES).await;
    let both: [&[(&str, &str)]; 2] = [&[("user", "ann")], &[("file", "own.end")]];
    assert_eq!(service.codes(&both).await, [Allowed; 3]);
    for _ in 0..5 {
        assert_eq!(service.codes(&both).await, [OverLimit, Allowed, OverLimit]);
    }
    // The denied requests were not charged to the other quota.
    let answer = service.send(request(&[&[("user", "ann")]])).await.unwrap();
    assert_eq!(answer.statuses[0].limit_remaining, 1);
    let banned: [&[(&str, &str)]; 2] = [&[("user", "ann")], &[("user", "banned")]];
    assert_eq!(service.codes(&banned).await, [OverLimit, Allowed, OverLimit]);
    let answer = service.send(request(&[&[("user", "ann")]])).await.unwrap();
    assert_eq!(answer.statuses[0].limit_remaining, 0);

    let replacing: [&[(&str, &str)]; 2] =
        [&[("user", "ann")], &[("kind", "marketing"), ("user", "ann")]];
    assert_eq!(service.codes(&replacing).await, [Allowed; 3], "the specific rule applies");
    assert_eq!(service.codes(&replacing).await, [OverLimit, Allowed, OverLimit]);
}

#[tokio::test]
async fn request_may_set_hits_and_limits() {
    let service = Service::start("", RULES).await;
    let mut three = request(&[&[("user", "ann")]]);
    three.hits_addend = 2;
    assert_eq!(codes(&service.send(three.clone()).await.unwrap()), [Allowed; 2]);
    assert_eq!(codes(&service.send(three.clone()).await.unwrap()), [OverLimit; 2]);
    three.descriptors[0].hits_addend = Some(UInt64Value { value: 1 });
    assert_eq!(codes(&service.send(three.clone()).await.unwrap()), [Allowed; 2]);

    let mut own = request(&[&[("user", "root")]]);
    let unit = rate_limit::Unit::Day as i32;
    own.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 1, unit });
    assert_eq!(codes(&service.send(own.clone()).await.unwrap()), [Allowed; 2]);
    assert_eq!(codes(&service.send(own).await.unwrap()), [OverLimit; 2]);
    let nowhere = RateLimitRequest { domain: String::new(), ..request(&[]) };
    assert_eq!(service.send(nowhere).await.unwrap_err().code(), tonic::Code::InvalidArgument);
}

/// A request whose only descriptor has these hits: 0 to check, more to report.
fn hits(descriptor: &[(&str, &str)], value: u64) -> RateLimitRequest {
    let mut request = request(&[descriptor]);
    request.descriptors[0].hits_addend = Some(UInt64Value { value });
    request
}

/// Envoy with `apply_on_stream_done` sends a check before a request and a report after it. Like in
/// envoyproxy/ratelimit, a check passes until usage exceeds the limit.
#[tokio::test(flavor = "multi_thread")]
async fn reports_are_charged_beyond_the_limit() {
    let redis = Redis::start();
    let over_redis = format!("store: {{redis: {{url: '{}', timeout: 20s}}}}", redis.url());
    for lines in ["", &over_redis] {
        let service = Service::start(lines, RULES).await;
        let send = async |hits: RateLimitRequest| {
            let answer = service.send(hits).await.unwrap();
            (answer.overall_code(), answer.statuses[0].limit_remaining)
        };
        for (user, reports, remaining) in
            [("large", &[25][..], 0), ("twice", &[7, 8], 0), ("huge", &[u64::MAX], 0)]
        {
            let tokens = [("tokens", user)];
            assert_eq!(send(hits(&tokens, 0)).await, (Allowed, 10), "{user}");
            for (index, report) in reports.iter().enumerate() {
                assert_eq!(send(hits(&tokens, 0)).await.0, Allowed, "{user}");
                let is_last = index + 1 == reports.len();
                let code = if is_last { OverLimit } else { Allowed };
                assert_eq!(send(hits(&tokens, *report)).await.0, code, "{user}");
            }
            for _ in 0..3 {
                assert_eq!(send(hits(&tokens, 0)).await, (OverLimit, remaining), "{user}");
            }
            assert_eq!(send(request(&[&tokens])).await.0, OverLimit, "{user}");
        }
        // Usage equal to the limit does not exceed it.
        let tokens = [("tokens", "exact")];
        assert_eq!(send(hits(&tokens, 10)).await, (Allowed, 0));
        assert_eq!(send(hits(&tokens, 0)).await, (Allowed, 0));
        assert_eq!(send(request(&[&tokens])).await, (OverLimit, 0));
        assert_eq!(send(hits(&tokens, 1)).await, (OverLimit, 0));
        assert_eq!(send(hits(&tokens, 0)).await, (OverLimit, 0));
        // Requests and reports share a count.
        let tokens = [("tokens", "both")];
        assert_eq!(send(request(&[&tokens])).await, (Allowed, 9));
        assert_eq!(send(hits(&tokens, 8)).await, (Allowed, 1));
        assert_eq!(send(request(&[&tokens])).await, (Allowed, 0));
        let denied = service.send(request(&[&tokens])).await.unwrap();
        let headers = headers(&denied);
        assert_eq!((&*headers["ratelimit-limit"], &*headers["ratelimit-remaining"]), ("10", "0"));
        assert_eq!(headers["retry-after"], headers["ratelimit-reset"]);
    }
}

const DAY: i64 = 86_400;

/// The waits differ: a log frees the unit after a day, a counter at the earliest on the next day,
/// and a bucket refills a unit in a tenth of a day.
#[tokio::test]
async fn rules_may_choose_an_algorithm() {
    let service = Service::start("", RULES).await;
    for (key, resets, waits) in [
        ("log", DAY - 60..=DAY, DAY - 60..=DAY),
        ("counter", DAY..=2 * DAY, 1..=2 * DAY),
        ("bucket", DAY / 10 - 60..=DAY / 10, DAY / 10 - 60..=DAY / 10),
    ] {
        let first = service.send(request(&[&[(key, "ann")]])).await.unwrap();
        assert_eq!((codes(&first), first.statuses[0].limit_remaining), (vec![Allowed; 2], 9));
        let reset = first.statuses[0].duration_until_reset.unwrap().seconds;
        assert!(resets.contains(&reset), "{key}: {reset}");
        let mut rest = request(&[&[(key, "ann")]]);
        rest.hits_addend = 9;
        assert_eq!(codes(&service.send(rest).await.unwrap()), [Allowed; 2], "{key}");
        let denied = service.send(request(&[&[(key, "ann")]])).await.unwrap();
        assert_eq!(codes(&denied), [OverLimit; 2], "{key}");
        let wait = headers(&denied)["retry-after"].parse().unwrap();
        assert!(waits.contains(&wait), "{key}: {wait}");
        // A request's own limit uses the rule's algorithm and continues its count.
        let mut own = request(&[&[(key, "ann")]]);
        let unit = rate_limit::Unit::Day as i32;
        own.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 20, unit });
        let own = service.send(own).await.unwrap();
        assert_eq!((codes(&own), own.statuses[0].limit_remaining), (vec![Allowed; 2], 9), "{key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_algorithm_takes_reports() {
    let redis = Redis::start();
    let over_redis = format!("store: {{redis: {{url: '{}', timeout: 20s}}}}", redis.url());
    for lines in ["", &over_redis] {
        let service = Service::start(lines, RULES).await;
        for key in ["log", "counter", "bucket"] {
            let send = async |value: u64| {
                let answer = service.send(hits(&[(key, "ann")], value)).await.unwrap();
                (answer.overall_code(), answer.statuses[0].limit_remaining)
            };
            assert_eq!(send(0).await, (Allowed, 10), "{key}");
            assert_eq!(send(4).await, (Allowed, 6), "{key}");
            assert_eq!(send(0).await, (Allowed, 6), "{key}");
            assert_eq!(send(25).await, (OverLimit, 0), "{key}");
            assert_eq!(send(0).await, (OverLimit, 0), "{key}");
            assert_eq!(service.codes(&[&[(key, "ann")]]).await, [OverLimit; 2], "{key}");
            // A request may contain two limits for a key.
            let mut both = hits(&[(key, "bob")], 0);
            both.descriptors.push(both.descriptors[0].clone());
            let unit = rate_limit::Unit::Day as i32;
            both.descriptors[1].limit = Some(RateLimitOverride { requests_per_unit: 20, unit });
            let both = service.send(both).await.unwrap();
            assert_eq!((codes(&both), both.statuses[0].limit_remaining), (vec![Allowed; 3], 10));
        }
    }
}

/// A request whose only descriptor returns these hits.
fn refund(descriptor: &[(&str, &str)], value: u64) -> RateLimitRequest {
    let mut request = hits(descriptor, value);
    request.descriptors[0].is_negative_hits = true;
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn negative_hits_are_refunded_up_to_the_limit() {
    let redis = Redis::start();
    let over_redis = format!("store: {{redis: {{url: '{}', timeout: 20s}}}}", redis.url());
    for lines in ["", &over_redis] {
        let service = Service::start(lines, RULES).await;
        let send = async |request: RateLimitRequest| {
            let answer = service.send(request).await.unwrap();
            (answer.overall_code(), answer.statuses[0].limit_remaining)
        };
        for key in ["tokens", "counter", "bucket"] {
            let ann = [(key, "ann")];
            let mut ten = request(&[&ann]);
            ten.hits_addend = 10;
            assert_eq!(send(ten.clone()).await, (Allowed, 0), "{key}");
            assert_eq!(send(request(&[&ann])).await, (OverLimit, 0), "{key}");
            assert_eq!(send(refund(&ann, 3)).await, (Allowed, 3), "{key}");
            assert_eq!(send(request(&[&ann])).await, (Allowed, 2), "{key}");
            // Unused units are not refunded.
            assert_eq!(send(refund(&ann, u64::MAX)).await, (Allowed, 10), "{key}");
            assert_eq!(send(refund(&ann, 5)).await, (Allowed, 10), "{key}");
            assert_eq!(send(ten.clone()).await, (Allowed, 0), "{key}");
            // The refund may also be in the request.
            ten.hits_addend = 2;
            ten.descriptors[0].is_negative_hits = true;
            assert_eq!(send(ten).await, (Allowed, 2), "{key}");

            // A refund first reduces the debt that a report left.
            let bob = [(key, "bob")];
            assert_eq!(send(hits(&bob, 15)).await, (OverLimit, 0), "{key}");
            assert_eq!(send(refund(&bob, 4)).await, (OverLimit, 0), "{key}");
            assert_eq!(send(refund(&bob, 4)).await, (Allowed, 3), "{key}");
        }
        let error = service.send(refund(&[("log", "ann")], 1)).await.unwrap_err();
        assert_eq!(error.code(), tonic::Code::Unimplemented);
        assert!(error.message().contains("use fixed_window_counter"), "{error}");
    }
}

/// Units charged during an outage are refunded in this process, because it charged them.
#[tokio::test(flavor = "multi_thread")]
async fn negative_hits_are_refunded_during_an_outage() {
    let redis = Redis::start();
    let lines = format!("store: {{redis: {{url: '{}', timeout: 300ms}}}}", redis.url());
    let service = Service::start(&lines, RULES).await;
    let remaining = async |request: RateLimitRequest| {
        service.send(request).await.unwrap().statuses[0].limit_remaining
    };
    let ann = [("tokens", "ann")];
    assert_eq!(remaining(request(&[&ann])).await, 9);
    redis.kill();
    let mut four = request(&[&ann]);
    four.hits_addend = 4;
    let charged = remaining(four).await;
    assert_eq!(remaining(refund(&ann, 3)).await, charged + 3);
}

#[tokio::test]
async fn denied_checks_charge_nothing_else() {
    let service = Service::start("", RULES).await;
    let spent = [("tokens", "spent")];
    service.send(hits(&spent, 11)).await.unwrap();
    let mut both = request(&[&spent, &[("user", "ann")]]);
    both.descriptors[0].hits_addend = Some(UInt64Value { value: 0 });
    for _ in 0..2 {
        let answer = service.send(both.clone()).await.unwrap();
        assert_eq!(codes(&answer), [OverLimit, OverLimit, Allowed]);
        assert_eq!(answer.statuses[1].limit_remaining, 3);
        assert_eq!(headers(&answer)["ratelimit-limit"], "10");
    }
    // A report is charged even if another descriptor is denied.
    let mut both = request(&[&[("user", "banned")], &[("tokens", "other")]]);
    both.descriptors[1].hits_addend = Some(UInt64Value { value: 4 });
    assert_eq!(codes(&service.send(both).await.unwrap()), [OverLimit, OverLimit, Allowed]);
    let check = service.send(hits(&[("tokens", "other")], 0)).await.unwrap();
    assert_eq!(check.statuses[0].limit_remaining, 6);
}

#[tokio::test]
async fn quota_mode_denies_only_if_all_are_exceeded() {
    let service = Service::start("", RULES).await;
    let pools: [&[(&str, &str)]; 2] = [&[("pool", "one")], &[("pool", "other")]];
    assert_eq!(service.codes(&pools).await, [Allowed; 3]);
    assert_eq!(service.codes(&pools).await, [Allowed, OverLimit, Allowed]);
    assert_eq!(service.codes(&pools).await, [OverLimit; 3]);
    assert_eq!(service.codes(&[&[("pool", "one")]]).await, [OverLimit; 2]);
    // A denied request charges no other descriptor.
    let with_user = [pools[0], pools[1], &[("user", "ann")]];
    for _ in 0..2 {
        let answer = service.send(request(&with_user)).await.unwrap();
        assert_eq!(codes(&answer), [OverLimit, OverLimit, OverLimit, Allowed]);
        assert_eq!(answer.statuses[2].limit_remaining, 3);
    }
}

fn headers(answer: &RateLimitResponse) -> HashMap<String, String> {
    let headers = answer.response_headers_to_add.iter();
    headers.map(|it| (it.key.clone(), it.value.clone())).collect()
}

/// The store remembers the first denial, and then calls Redis for neither descriptor.
#[tokio::test(flavor = "multi_thread")]
async fn headers_describe_the_denying_descriptor() {
    let redis = Redis::start();
    let lines = format!("store: {{redis: {{url: '{}', timeout: 20s}}}}", redis.url());
    let service = Service::start(&lines, RULES).await;
    let both: [&[(&str, &str)]; 2] = [&[("user", "ann")], &[("status", "404")]];
    assert_eq!(service.codes(&both).await, [Allowed; 3]);
    for _ in 0..5 {
        let answer = service.send(request(&both)).await.unwrap();
        assert_eq!(codes(&answer), [OverLimit, Allowed, OverLimit]);
        assert_eq!(headers(&answer)["ratelimit-limit"], "1");
        // Two of three units remain, or the status has no number.
        let other = &answer.statuses[0];
        assert!(other.current_limit.is_none() || other.limit_remaining == 2, "{other:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_descriptors_are_invalid() {
    let redis = Redis::start();
    let over_redis = format!("store: {{redis: {{url: '{}', timeout: 20s}}}}", redis.url());
    for lines in ["", &over_redis] {
        let service = Service::start(lines, RULES).await;
        let users: Vec<_> = (0..129).map(|number| format!("user-{number}")).collect();
        let descriptors: Vec<_> = users.iter().map(|user| [("user", &**user)]).collect();
        let descriptors: Vec<&[(&str, &str)]> = descriptors.iter().map(|it| &it[..]).collect();
        assert_eq!(service.codes(&descriptors[..128]).await, [Allowed; 129]);
        let error = service.send(request(&descriptors)).await.unwrap_err();
        assert_eq!(error.code(), tonic::Code::InvalidArgument);
        let message = "the request has 129 descriptors, and the most is 128";
        assert_eq!(error.message(), message);
    }
}

#[tokio::test]
async fn overrides_continue_the_count_of_the_rule() {
    let service = Service::start("", RULES).await;
    let ann: &[(&str, &str)] = &[("user", "ann")];
    let with = |requests_per_unit, unit: rate_limit::Unit| {
        let mut request = request(&[ann]);
        let unit = unit as i32;
        request.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit, unit });
        request
    };
    let remaining = async |request| {
        let answer = service.send(request).await.unwrap();
        (answer.overall_code(), answer.statuses[0].limit_remaining)
    };
    let year = rate_limit::Unit::Year;
    assert_eq!(remaining(request(&[ann])).await, (Allowed, 2));
    assert_eq!(remaining(with(5, year)).await, (Allowed, 3));
    assert_eq!(remaining(request(&[ann])).await, (Allowed, 0));
    assert_eq!(remaining(with(3, year)).await, (OverLimit, 0));
    assert_eq!(remaining(with(5, year)).await, (Allowed, 1));
    assert_eq!(remaining(with(5, rate_limit::Unit::Month)).await, (Allowed, 4));
    // If both limits are in a request, the smaller limit applies.
    let mut both = with(6, year);
    both.descriptors.push(request(&[ann]).descriptors.remove(0));
    assert_eq!(codes(&service.send(both).await.unwrap()), [OverLimit; 3]);
    assert_eq!(remaining(with(6, year)).await, (Allowed, 1));
}

#[tokio::test]
async fn shadow_applies_to_all_rules() {
    let service = Service::start("shadow: true", RULES).await;
    for _ in 0..3 {
        assert_eq!(service.codes(&[&[("status", "404")]]).await, [Allowed; 2]);
        assert_eq!(service.codes(&[&[("user", "banned")]]).await, [Allowed; 2]);
    }
    let answer = service.send(request(&[&[("status", "404")]])).await.unwrap();
    assert_eq!(answer.statuses[0].limit_remaining, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_counts_denied_requests() {
    let service = Service::start("", RULES).await;
    for _ in 0..3 {
        service.codes(&[&[("visit", "any")]]).await;
        service.codes(&[&[("user", "watched")]]).await;
        service.codes(&[&[("user", "banned")]]).await;
    }
    let Service { mut gateway, channel } = service;
    drop(channel);
    gateway.signal("TERM");
    assert!(gateway.wait().success());
    // The count is split over two lines if a period expires in between.
    for line in ["tollgate: denied ", "tollgate: would have denied "] {
        let of = |policy: &str| -> u64 {
            let log = gateway.log();
            let lines = log.lines().filter_map(|it| it.split_once(line)?.1.split_once(" request"));
            let ours = lines.filter(|(_, rest)| rest.contains(policy));
            ours.filter_map(|(count, _)| count.parse::<u64>().ok()).sum()
        };
        let service = "of the Rate Limit Service in the last";
        gateway.until_logged(service);
        let expected = if line == "tollgate: denied " { [2, 3] } else { [0, 2] };
        assert_eq!([of("`test/month`"), of("`test/year`")], expected, "{}", gateway.log());
    }
}

/// Envoy shares a connection between all clients, and resets a stream when its client disconnects.
#[tokio::test(flavor = "multi_thread")]
async fn aborted_requests_keep_the_connection_open() {
    let service = Service::start("", RULES).await;
    let address = service.gateway.fronts["rateLimitService"];
    let head = [(":method", "POST"), (":scheme", "http"), (":path", "/a"), (":authority", "a")];
    let outcome = tokio::task::spawn_blocking(move || {
        let mut envoy = RawHttp2::new(address);
        for number in 0..2_000 {
            let stream = 2 * number + 1;
            envoy.headers(stream, &head, false);
            envoy.frame(frames::RST_STREAM, 0, stream, &8_u32.to_be_bytes());
        }
        envoy.headers(4_001, &head, true);
        envoy.outcome(4_001)
    });
    assert_eq!(outcome.await.unwrap(), Outcome::Status(200));
}

/// The client sets no deadline.
#[tokio::test(flavor = "multi_thread")]
async fn unfinished_requests_are_answered() {
    let service = Service::start("timeouts: {response: 50ms}", RULES).await;
    let address = service.gateway.fronts["rateLimitService"];
    let outcome = tokio::task::spawn_blocking(move || {
        let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        let mut client = RawHttp2::new(address);
        let head = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "a")];
        let head =
            [&head[..], &[("content-type", "application/grpc"), ("te", "trailers")]].concat();
        client.headers(1, &head, false);
        client.outcome(1)
    });
    // The gRPC status is in the same frame.
    assert_eq!(outcome.await.unwrap(), Outcome::Status(200));
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_without_a_certificate_are_refused() {
    let folder = TempDir::new().unwrap();
    certificate(&folder, "tls");
    authority(&folder, "envoy");
    authority(&folder, "stranger");
    fs::write(folder.path().join("ratelimit.yaml"), RULES).unwrap();
    let tls = "{certificate: tls.pem, key: tls.key, clientCa: envoy-ca.pem}";
    let listen = format!("{{address: '127.0.0.1:0', tls: {tls}}}");
    let gateway = Gateway::start_in(
        folder,
        &format!("rateLimitService: {{listen: {listen}, config: ratelimit.yaml}}"),
    );
    let address = gateway.fronts["rateLimitService"];
    let curl = |client: Option<&str>| {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--http2", "--max-time", "20", "-w", "%{http_code}", "--cacert"]);
        curl.arg(gateway.file("tls.pem"));
        if let Some(name) = client {
            curl.arg("--cert").arg(gateway.file(&format!("{name}.pem")));
            curl.arg("--key").arg(gateway.file(&format!("{name}.key")));
        }
        let output = curl.arg(format!("https://localhost:{}/a", address.port())).output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    assert_eq!(curl(Some("envoy")), (true, "200".to_owned()));
    assert!(!curl(Some("stranger")).0);
    assert!(!curl(None).0);
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_share_quotas_and_respect_deadlines() {
    let redis = Redis::start();
    let lines = format!(
        "store: {{redis: {{url: '{}', timeout: 20s}}}}\nonStoreError: closed\n",
        redis.url()
    );
    let [one, other] = [Service::start(&lines, RULES).await, Service::start(&lines, RULES).await];
    let ann: [&[(&str, &str)]; 1] = [&[("user", "ann")]];
    for service in [&one, &other, &one] {
        assert_eq!(service.codes(&ann).await, [Allowed; 2]);
    }
    assert_eq!(other.codes(&ann).await, [OverLimit; 2]);
    redis.stop();
    // A tonic client would enforce the deadline itself.
    let message = request(&[&[("user", "bob")]]).encode_to_vec();
    let frame = [&[0, 0, 0, 0, u8::try_from(message.len()).unwrap()][..], &message].concat();
    let client = Client::http2(one.gateway.fronts["rateLimitService"]);
    let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let headers = [("content-type", "application/grpc"), ("grpc-timeout", "50m")];
    let body = String::from_utf8(frame).unwrap();
    let answer = client.send("POST", path, &headers, &body).await.unwrap();
    assert_eq!(answer.header("grpc-status"), "4", "{answer:?}");
    redis.cont();
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_rules_are_reloaded() {
    let service = Service::start("", RULES).await;
    let mut health = HealthClient::new(service.channel.clone());
    for name in ["", "envoy.service.ratelimit.v3.RateLimitService", "ratelimit"] {
        let asked = HealthCheckRequest { service: name.into() };
        let status = health.check(asked).await.unwrap().into_inner().status();
        assert_eq!(status, ServingStatus::Serving, "{name}");
    }
    let unknown = HealthCheckRequest { service: "other".into() };
    assert_eq!(health.check(unknown).await.unwrap_err().code(), tonic::Code::NotFound);

    assert_eq!(service.codes(&[&[("user", "banned")]]).await, [OverLimit; 2]);
    let rules = RULES.replace("banned", "pardoned");
    fs::write(service.gateway.file("new"), rules).unwrap();
    fs::rename(service.gateway.file("new"), service.gateway.file("ratelimit.yaml")).unwrap();
    service.gateway.until_config(|config| config["version"] == 2).await;
    assert_eq!(service.codes(&[&[("user", "banned")]]).await, [Allowed; 2]);
}

/// Watches the health of the service.
async fn watch(channel: &Channel) -> tonic::Streaming<HealthCheckResponse> {
    let service = "envoy.service.ratelimit.v3.RateLimitService".to_owned();
    let mut health = HealthClient::new(channel.clone());
    health.watch(HealthCheckRequest { service }).await.unwrap().into_inner()
}

async fn until(health: &mut tonic::Streaming<HealthCheckResponse>, status: ServingStatus) {
    while health.message().await.unwrap().expect("the stream ended").status() != status {}
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_gateway_is_not_serving() {
    let service = Service::start("timeouts: {drain: 30s}", RULES).await;
    let mut health = watch(&service.channel).await;
    until(&mut health, ServingStatus::Serving).await;
    service.gateway.signal("TERM");
    // The gateway cannot finish draining while this stream is open.
    until(&mut health, ServingStatus::NotServing).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_store_is_not_serving() {
    for (on_store_error, becomes) in
        [("closed", ServingStatus::NotServing), ("open", ServingStatus::Serving)]
    {
        let redis = Redis::start();
        let lines = format!(
            "onStoreError: {on_store_error}\nstore: {{redis: {{url: '{}', timeout: 300ms}}}}",
            redis.url()
        );
        let service = Service::start(&lines, RULES).await;
        let mut health = watch(&service.channel).await;
        until(&mut health, ServingStatus::Serving).await;
        let asked = || service.send(request(&[&[("user", "ann")]]));
        assert_eq!(codes(&asked().await.unwrap())[0], Allowed);
        redis.kill();
        if becomes == ServingStatus::NotServing {
            until(&mut health, becomes).await;
            assert_eq!(asked().await.unwrap_err().code(), tonic::Code::Unavailable);
            redis.restart();
            until(&mut health, ServingStatus::Serving).await;
        } else {
            assert_eq!(codes(&asked().await.unwrap())[0], Allowed);
        }
        let metrics = service.gateway.metrics().await;
        let outcome = if on_store_error == "closed" { "error" } else { "ok" };
        let count = if on_store_error == "closed" { 1 } else { 2 };
        let line = format!(
            "tollgate_gateway_rate_limit_service_total{{domain=\"test\",outcome=\"{outcome}\"}} {count}"
        );
        assert!(metrics.contains(&line), "{metrics}");
    }
}

/// Dynamic metadata as JSON.
fn json(value: &Value) -> serde_json::Value {
    match value.kind.as_ref().unwrap() {
        Kind::NullValue(_) => serde_json::Value::Null,
        Kind::NumberValue(number) => json!(number),
        Kind::StringValue(text) => json!(text),
        Kind::BoolValue(flag) => json!(flag),
        Kind::StructValue(section) => object(section),
        Kind::ListValue(list) => list.values.iter().map(json).collect(),
    }
}

fn object(section: &Struct) -> serde_json::Value {
    section.fields.iter().map(|(key, value)| (key.clone(), json(value))).collect()
}

/// The same members as in envoyproxy/ratelimit.
#[tokio::test]
async fn metadata_of_rules_within_their_limits_is_returned() {
    let rules = "domain: test
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 1}
    metadata: {plan: {name: free, seats: 2}, tags: [a, 1.5, true], code: '7'}
  - key: path
    rate_limit: {unit: year, requests_per_unit: 5}
    metadata: {plan: {name: other, region: eu}, tags: none}
";
    let service = Service::start("", rules).await;
    let answer = service.send(request(&[&[("user", "ann")]])).await.unwrap();
    assert_eq!(answer.dynamic_metadata, None);

    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("a.yaml"), rules).unwrap();
    let lines = "rateLimitService: {listen: 127.0.0.1:0, config: a.yaml, dynamicMetadata: true}";
    let service = Service::of(Gateway::start_in(folder, lines)).await;
    let mut both = request(&[&[("user", "ann")], &[("path", "/a"), ("x", "")], &[("path", "/a")]]);
    let metadata = async |request: &RateLimitRequest| {
        object(&service.send(request.clone()).await.unwrap().dynamic_metadata.unwrap())
    };
    let descriptors = json!([
        {"entries": ["user=ann"]},
        {"entries": ["path=/a", "x="]},
        {"entries": ["path=/a"]},
    ]);
    let expected = json!({
        "domain": "test",
        "descriptors": descriptors,
        "metadata": {
            "plan": {"name": "free", "seats": 2.0, "region": "eu"},
            "tags": ["a", 1.5, true],
            "code": "7",
        },
    });
    assert_eq!(metadata(&both).await, expected);
    // The user is over the limit now.
    let region = json!({"plan": {"name": "other", "region": "eu"}, "tags": "none"});
    assert_eq!(metadata(&both).await["metadata"], region);
    both.descriptors[2].hits_addend = Some(UInt64Value { value: 0 });
    let unit = rate_limit::Unit::Day as i32;
    both.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: 1, unit });
    both.hits_addend = 1;
    let own = metadata(&both).await;
    assert_eq!(own["hitsAddend"], 1.0);
    assert_eq!(own["descriptors"][0]["limit"], "requests_per_unit:1 unit:DAY");
    assert_eq!(own["descriptors"][2]["hitsAddend"], 0.0);
}

#[tokio::test]
async fn response_headers_may_be_renamed_or_left_out() {
    for (keys, expected) in [
        ("{enabled: false}", vec![]),
        (
            "{limit: X-RateLimit-Limit, reset: X-Reset}",
            vec![
                ("ratelimit-remaining", "0"),
                ("retry-after", ""),
                ("x-ratelimit-limit", "1"),
                ("x-reset", ""),
            ],
        ),
    ] {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("a.yaml"), RULES).unwrap();
        let lines = format!(
            "rateLimitService: {{listen: 127.0.0.1:0, config: a.yaml, responseHeaders: {keys}}}"
        );
        let service = Service::of(Gateway::start_in(folder, &lines)).await;
        service.codes(&[&[("status", "404")]]).await;
        let answer = service.send(request(&[&[("status", "404")]])).await.unwrap();
        assert_eq!(codes(&answer), [OverLimit; 2]);
        let mut headers: Vec<_> = headers(&answer).into_iter().collect();
        headers.sort();
        assert_eq!(headers.len(), expected.len(), "{headers:?}");
        for ((name, value), (expected, text)) in headers.iter().zip(expected) {
            assert!(name == expected && value.contains(text), "{name}: {value}");
        }
    }
}

#[tokio::test]
async fn files_of_a_domain_are_merged() {
    let folder = TempDir::new().unwrap();
    let limit = "rate_limit: {unit: year, requests_per_unit: 1}";
    for (file, key) in [("one.yaml", "user"), ("other.yaml", "path")] {
        let rules = format!("domain: test\ndescriptors: [{{key: {key}, {limit}}}]\n");
        fs::write(folder.path().join(file), rules).unwrap();
    }
    let lines = "rateLimitService: {listen: 127.0.0.1:0, config: [one.yaml, other.yaml], \
                 mergeDomains: true}";
    let service = Service::of(Gateway::start_in(folder, lines)).await;
    for descriptor in [[("user", "ann")], [("path", "/")]] {
        assert_eq!(service.codes(&[&descriptor]).await, [Allowed; 2]);
        assert_eq!(service.codes(&[&descriptor]).await, [OverLimit; 2]);
    }
}

/// Clients choose some of the values, and a value must not be confused with the next entry.
#[tokio::test]
async fn similar_descriptors_have_separate_quotas() {
    let rules = "domain: test
descriptors:
  - key: a
    descriptors:
      - key: b
        rate_limit: {unit: year, requests_per_unit: 1}
";
    let service = Service::start("", rules).await;
    for (first, second) in [
        ("x", "y"),
        ("x_b_y", "y"),
        ("x_b", "y"),
        ("", "xy"),
        ("xy", ""),
        ("x\0", "y"),
        ("x", "\0y"),
    ] {
        let descriptor: &[(&str, &str)] = &[("a", first), ("b", second)];
        assert_eq!(service.codes(&[descriptor]).await, [Allowed, Allowed], "{first:?} {second:?}");
        assert_eq!(service.codes(&[descriptor]).await, [OverLimit, OverLimit]);
    }
}
