//! The Envoy rate limit service, called over gRPC with the published messages.

use std::collections::BTreeMap;
use std::fs;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, rate_limit};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, UInt64Value, Value};
use serde_json::json;
use tempfile::TempDir;
use tollgate_test_servers::Redis;
use tonic::Status;
use tonic::transport::Channel;

use crate::support::Gateway;

pub(crate) const RULES: &str = include_str!("rate_limits.yaml");

pub(crate) struct Service {
    pub(crate) gateway: Gateway,
    pub(crate) channel: Channel,
}

impl Service {
    pub(crate) async fn start(lines: &str) -> Self {
        Self::with("", RULES, lines).await
    }

    /// Starts a gateway whose service has these settings.
    async fn with(settings: &str, rules: &str, lines: &str) -> Self {
        let folder = TempDir::new().unwrap();
        fs::write(folder.path().join("rules.yaml"), rules).unwrap();
        let pairs = "domain: test\ndescriptors:\n- key: a\n  descriptors:\n  - {key: b, \
                     rate_limit: {unit: year, requests_per_unit: 1}}\n";
        fs::write(folder.path().join("pairs.yaml"), pairs).unwrap();
        let service = format!(
            "rateLimitService: {{listen: 127.0.0.1:0, config: [rules.yaml, pairs.yaml], \
             mergeDomains: true{settings}}}"
        );
        let gateway = Gateway::start_in(folder, &format!("{service}\n{lines}"));
        let address = gateway.fronts["rateLimitService"];
        let channel = Channel::from_shared(format!("http://{address}")).unwrap();
        Self { channel: channel.connect().await.unwrap(), gateway }
    }

    pub(crate) async fn send(
        &self,
        request: RateLimitRequest,
    ) -> Result<RateLimitResponse, Status> {
        let mut client = RateLimitServiceClient::new(self.channel.clone());
        Ok(client.should_rate_limit(request).await?.into_inner())
    }

    pub(crate) async fn ask(&self, text: &str) -> RateLimitResponse {
        self.send(request(text)).await.unwrap()
    }

    /// Sends the requests of each row, and compares their answers. `tokens log: K=a => A9` stands for
    /// two rows, and a single request is repeated for each answer.
    pub(crate) async fn check(&self, table: &str) {
        let mut wrong = String::new();
        for row in table.lines().filter(|row| !row.is_empty()) {
            let (keys, row) = row.split_once(": ").unwrap_or(("", row));
            for key in keys.split(' ') {
                let row = row.replace("K=", &format!("{key}="));
                let (requests, expected) = row.split_once(" => ").unwrap();
                let count = expected.split("; ").count();
                let mut answers = Vec::new();
                for request in requests.split("; ").cycle().take(count) {
                    answers.push(in_words(&self.ask(request).await));
                }
                let answers = answers.join("; ");
                if answers != expected {
                    wrong += &format!("\n{row}\n{answers}");
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong}");
    }
}

pub(crate) fn over(redis: &Redis) -> String {
    format!("store: {{redis: {{url: '{}', timeout: 20s}}}}\n", redis.url())
}

/// A request with descriptors such as `kind=a,user=b`. `*2` sets its hits, `+2` the hits of a
/// descriptor, `~2` refunds hits, and `@5y` sets the descriptor's own limit: 5 per year.
pub(crate) fn request(text: &str) -> RateLimitRequest {
    let mut hits_addend = 0;
    let descriptors = text.split(' ').map(|text| {
        let end = text.find(['*', '+', '~', '@']).unwrap_or(text.len());
        let value = |sign| {
            let value = text[end..].split_once(sign)?.1;
            Some(value.split(['*', '+', '~', '@']).next().unwrap())
        };
        let entry = |(key, value): (&str, &str)| Entry { key: key.into(), value: value.into() };
        hits_addend = value('*').map_or(hits_addend, |hits| hits.parse().unwrap());
        let hits = value('+').or_else(|| value('~')).and_then(|value| value.parse().ok());
        let limit = value('@').map(|limit| {
            let (requests, unit) = limit.split_at(limit.len() - 1);
            let unit = match unit {
                "d" => rate_limit::Unit::Day,
                "M" => rate_limit::Unit::Month,
                _ => rate_limit::Unit::Year,
            };
            let requests_per_unit = requests.parse().unwrap();
            RateLimitOverride { requests_per_unit, unit: unit as i32 }
        });
        RateLimitDescriptor {
            entries: text[..end].split(',').map(|it| entry(it.split_once('=').unwrap())).collect(),
            limit,
            hits_addend: hits.map(|value| UInt64Value { value }),
            is_negative_hits: text.contains('~'),
        }
    });
    let descriptors = descriptors.collect();
    RateLimitRequest { domain: "test".into(), descriptors, hits_addend }
}

/// For each descriptor, whether it is allowed (`A`) or over its limit (`X`), and how many hits remain.
/// If there are several, the overall code is before them.
fn in_words(response: &RateLimitResponse) -> String {
    let word = |code| if code == Code::Ok { "A" } else { "X" };
    let statuses = response.statuses.iter().map(|status| match &status.current_limit {
        Some(_) => format!("{}{}", word(status.code()), status.limit_remaining),
        None => word(status.code()).to_owned(),
    });
    let overall = (response.statuses.len() != 1).then(|| word(response.overall_code()).to_owned());
    overall.into_iter().chain(statuses).collect::<Vec<_>>().join(" ")
}

fn headers(answer: &RateLimitResponse) -> BTreeMap<String, String> {
    let headers = answer.response_headers_to_add.iter();
    headers.map(|it| (it.key.clone(), it.value.clone())).collect()
}

#[tokio::test]
async fn rules_apply_like_in_envoys_service() {
    let service = Service::start("").await;
    // Clients choose some of the values, and a value must not be confused with the next entry.
    let table = "
user=ann => A2; A1; A0; X0
user=bob => A2
user=root => A; A; A; A
user=banned => X0
user=watched => A0; A0; A0
file=shared-a; file=shared-b; file=shared-c => A1; A0; X0
file=own-a-end => A0; X0
file=own-b-end => A0; X0
file=own-b; free=a; unknown=a; kind=marketing => A; A; A; A
status=404 => A0; X0
kind=marketing,user=ann => A0; X0
kind=marketing,user=bob => A0; X0
kind=other,user=ann; user=eve,file=a => A; A
user=cid file=own.end => A A2 A0; X A2 X0; X A2 X0
user=cid; user=cid user=banned; user=cid => A1; X A1 X0; A0
user=dan kind=marketing,user=dan => A A A0; X A X0
user=flo*2; user=flo*2; user=flo*2+1 => A1; X1; A0
user=root@1d => A0; X0
user=ivy; user=ivy@5y; user=ivy; user=ivy@3y; user=ivy@5y; user=ivy@5M => A2; A3; A0; X0; A1; A4
user=ivy@6y user=ivy; user=ivy@6y => X X0 X0; A1
tokens=spent+11; tokens=spent+0 user=gus; tokens=spent+0 user=gus => X0; X X0 A3; X X0 A3
user=banned tokens=other+4; tokens=other+0 => X X0 A6; A6
pool=one pool=other => A A0 A1; A X0 A0; X X0 X0
pool=one; pool=one pool=other user=hal; pool=one pool=other user=hal => X0; X X0 X0 A3; X X0 X0 A3
a=x,b=y => A0; X0
a=x_b_y,b=y => A0; X0
a=x_b,b=y => A0; X0
a=,b=xy => A0; X0
a=xy,b= => A0; X0
a=x\0,b=y => A0; X0
a=x,b=\0y => A0; X0
";
    service.check(table).await;
    let mut elsewhere = request("user=banned");
    elsewhere.domain = "elsewhere".into();
    assert_eq!(in_words(&service.send(elsewhere).await.unwrap()), "A");
    let shadow = Service::start("shadow: true").await;
    shadow.check("status=404 => A0; A0; A0\nuser=banned => A0; A0").await;
}

/// Envoy with `apply_on_stream_done` sends a check before a request and a report after it. Like in
/// envoyproxy/ratelimit, a check passes until usage exceeds the limit.
#[tokio::test(flavor = "multi_thread")]
async fn reports_and_refunds_are_charged_beyond_the_limit() {
    let redis = Redis::start();
    for lines in ["", &over(&redis)] {
        let table = "
tokens=large+0; tokens=large+25; tokens=large+0; tokens=large+0; tokens=large => A10; X0; X0; X0; X0
tokens=twice+7; tokens=twice+0; tokens=twice+8; tokens=twice+0; tokens=twice => A3; A3; X0; X0; X0
tokens=huge+18446744073709551615; tokens=huge+0 => X0; X0
tokens=exact+10; tokens=exact+0; tokens=exact; tokens=exact+1; tokens=exact+0 => A0; A0; X0; X0; X0
tokens=both; tokens=both+8; tokens=both; tokens=both => A9; A1; A0; X0
log counter bucket: K=ann+0; K=ann+4; K=ann+0; K=ann+25; K=ann+0; K=ann => A10; A6; A6; X0; X0; X0
log counter: K=bob+0 K=bob+0@20d => A A10 A20
bucket: K=bob+0 K=bob+0@20d => A A10 A10
log counter bucket: K=eve; K=eve*9; K=eve; K=eve@20d => A9; A0; X0; A9
tokens counter bucket: K=cid*10; K=cid; K=cid~3; K=cid => A0; X0; A3; A2
tokens counter bucket: K=dan*10; K=dan~18446744073709551615; K=dan~5; K=dan*10; K=dan*2~ => A0; A10; A10; A0; A2
tokens counter bucket: K=flo+15; K=flo~4; K=flo~4 => X0; X0; A3
";
        Service::start(lines).await.check(table).await;
    }
}

/// Units charged during an outage are refunded in this process, because it charged them.
#[tokio::test(flavor = "multi_thread")]
async fn refunds_work_during_an_outage() {
    let redis = Redis::start();
    let service = Service::start(&over(&redis).replace("20s", "300ms")).await;
    service.check("tokens=ann => A9").await;
    redis.kill();
    let charged = service.ask("tokens=ann*4").await.statuses[0].limit_remaining;
    let refunded = service.ask("tokens=ann~3").await.statuses[0].limit_remaining;
    assert_eq!(refunded, charged + 3);
}

#[tokio::test]
async fn errors_say_what_is_wrong() {
    let service = Service::start("").await;
    let users: Vec<_> = (0..129).map(|number| format!("user=user-{number}")).collect();
    assert_eq!(service.ask(&users[..128].join(" ")).await.overall_code(), Code::Ok);
    let nowhere = RateLimitRequest { domain: String::new(), ..request("user=ann") };
    for (request, code, message) in [
        (nowhere, tonic::Code::InvalidArgument, ""),
        (
            request(&users.join(" ")),
            tonic::Code::InvalidArgument,
            "the request has 129 descriptors, and the most is 128",
        ),
        (request("log=ann~1"), tonic::Code::Unimplemented, "use fixed_window_counter"),
    ] {
        let error = service.send(request).await.unwrap_err();
        assert!(error.code() == code && error.message().contains(message), "{error}");
    }
}

const DAY: i64 = 86_400;

#[tokio::test]
async fn answers_have_the_limit_and_the_longest_wait() {
    let service = Service::start("").await;
    let answer = service.ask("status=404").await;
    let limit = answer.statuses[0].current_limit.as_ref().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit()), (1, rate_limit::Unit::Year));
    let each = service.ask("user=ann").await.statuses[0].current_limit.clone().unwrap();
    assert_eq!((each.requests_per_unit, &*each.name), (3, "each"));
    assert_eq!(headers(&service.ask("visit=any").await).get("retry-after"), None);
    let answer = service.ask("visit=any status=404").await;
    assert_eq!(answer.overall_code(), Code::OverLimit);
    let resets = answer.statuses.iter().map(|it| it.duration_until_reset.unwrap().seconds);
    let headers_of = headers(&answer);
    assert_eq!(headers_of["retry-after"], resets.max().unwrap().to_string());
    assert_eq!(headers_of["retry-after"], headers_of["ratelimit-reset"]);
    assert_eq!((&*headers_of["ratelimit-limit"], &*headers_of["ratelimit-remaining"]), ("1", "0"));
    // With a limit of zero, waiting does not help.
    let answer = service.ask("user=banned visit=any").await;
    assert_eq!(headers(&answer).get("retry-after"), None);
    // A log frees the unit after a day, a counter at the earliest on the next day, and a bucket
    // refills a unit in a tenth of a day.
    for (key, resets, waits) in [
        ("log", DAY - 60..=DAY, DAY - 60..=DAY),
        ("counter", DAY..=2 * DAY, 1..=2 * DAY),
        ("bucket", DAY / 10 - 60..=DAY / 10, DAY / 10 - 60..=DAY / 10),
    ] {
        let first = service.ask(&format!("{key}=ann")).await;
        let reset = first.statuses[0].duration_until_reset.unwrap().seconds;
        assert!(resets.contains(&reset), "{key}: {reset}");
        service.ask(&format!("{key}=ann*9")).await;
        let wait = headers(&service.ask(&format!("{key}=ann")).await)["retry-after"].parse();
        assert!(waits.contains(wait.as_ref().unwrap()), "{key}: {wait:?}");
    }
}

/// The store remembers the first denial, and then calls Redis for neither descriptor.
#[tokio::test(flavor = "multi_thread")]
async fn headers_describe_the_denying_descriptor() {
    let redis = Redis::start();
    let service = Service::start(&over(&redis)).await;
    service.check("user=ann status=404 => A A2 A0").await;
    for _ in 0..5 {
        let answer = service.ask("user=ann status=404").await;
        assert_eq!(headers(&answer)["ratelimit-limit"], "1");
        // Two of three units remain, or the status has no number.
        assert!(["X A2 X0", "X A X0"].contains(&&*in_words(&answer)), "{answer:?}");
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
    let service = Service::with("", rules, "").await;
    assert_eq!(service.ask("user=ann").await.dynamic_metadata, None);
    let service = Service::with(", dynamicMetadata: true", rules, "").await;
    let mut both = request("user=ann path=/a,x= path=/a");
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
    both = request("user=ann*1@1d path=/a,x= path=/a+0");
    let own = metadata(&both).await;
    assert_eq!(own["hitsAddend"], 1.0);
    assert_eq!(own["descriptors"][0]["limit"], "requests_per_unit:1 unit:DAY");
    assert_eq!(own["descriptors"][2]["hitsAddend"], 0.0);
}

#[tokio::test]
async fn response_headers_may_be_renamed_or_left_out() {
    for (keys, expected) in [
        ("{enabled: false}", ""),
        (
            "{limit: X-RateLimit-Limit, reset: X-Reset}",
            "ratelimit-remaining retry-after x-ratelimit-limit x-reset",
        ),
    ] {
        let service = Service::with(&format!(", responseHeaders: {keys}"), RULES, "").await;
        service.check("status=404 => A0").await;
        let headers = headers(&service.ask("status=404").await);
        assert_eq!(headers.keys().cloned().collect::<Vec<_>>().join(" "), expected);
        assert!(headers.get("x-ratelimit-limit").is_none_or(|limit| limit == "1"));
    }
}
