//! The life of the Envoy rate limit service: its connections, its health, reloads and outages.

use std::fs;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use prost::Message as _;
use serde_json::json;
use tempfile::TempDir;
use tollgate_test_servers::Redis;
use tonic::transport::Channel;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::encryption::{authority, certificate, with_certificate};
use crate::rate_limits::{RULES, Service, over, request};
use crate::support::{Client, Gateway, Outcome, RawHttp2, frames};

const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

#[tokio::test(flavor = "multi_thread")]
async fn the_log_counts_denied_requests() {
    let service = Service::start("").await;
    for _ in 0..3 {
        for descriptor in ["visit=any", "user=watched", "user=banned"] {
            service.ask(descriptor).await;
        }
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

/// Clients of envoyproxy/ratelimit that use its `/json`, over both versions of HTTP.
#[tokio::test(flavor = "multi_thread")]
async fn json_has_the_same_decisions() {
    let service = Service::start("").await;
    let address = service.gateway.fronts["rateLimitService"];
    let (http1, http2) = (Client::new(address), Client::http2(address));
    let ask = |body: &'static str| {
        let client = if body.len().is_multiple_of(2) { http1.clone() } else { http2.clone() };
        async move { client.send("POST", "/json", &[], body).await.unwrap() }
    };
    let of_user = |client: &Client, hits: u32| {
        let entries = json!([{"key": "user", "value": "json"}]);
        let body =
            json!({"domain": "test", "descriptors": [{"entries": entries}], "hitsAddend": hits});
        let client = client.clone();
        async move { client.send("POST", "/json", &[], &body.to_string()).await.unwrap() }
    };
    let allowed = of_user(&http1, 2).await;
    assert_eq!(
        (allowed.status.as_u16(), allowed.header("content-type")),
        (200, "application/json")
    );
    let mut decided = allowed.json();
    let status = &mut decided["statuses"][0];
    let until_reset = status.as_object_mut().unwrap().remove("durationUntilReset").unwrap();
    assert!(until_reset.as_str().unwrap().ends_with('s'), "{until_reset}");
    let limit = json!({"name": "each", "requestsPerUnit": 3, "unit": "YEAR"});
    assert_eq!(*status, json!({"code": "OK", "currentLimit": limit, "limitRemaining": 1}));
    assert_eq!(decided["overallCode"], "OK");
    let denied = of_user(&http2, 2).await;
    assert_eq!(
        (denied.status.as_u16(), &denied.json()["overallCode"]),
        (429, &json!("OVER_LIMIT"))
    );
    service.check("user=json => A0").await;
    // As protobuf's writers print a wrapped 64-bit number, absent members, and an enum.
    let written = r#"{"domain": "test", "hitsAddend": null, "descriptors":
        [{"entries": [{"key": "user", "value": "text"}], "hitsAddend": "2", "isNegativeHits": false}]}"#;
    assert_eq!(ask(written).await.json()["statuses"][0]["limitRemaining"], 1);
    let own = r#"{"domain": "test", "descriptors":
        [{"entries": [{"key": "user", "value": "own"}], "limit": {"requestsPerUnit": 9, "unit": 4}}]}"#;
    let limit = &ask(own).await.json()["statuses"][0]["currentLimit"];
    assert_eq!((&limit["requestsPerUnit"], &limit["unit"]), (&json!(9), &json!("DAY")));
    for (body, says) in [
        ("{", "EOF"),
        (r#"{"domain": "test", "descriptor": []}"#, "unknown field `descriptor`"),
        (r#"{"domain": "", "descriptors": []}"#, "names no domain"),
        (
            r#"{"domain": "test", "descriptors": [{"limit": {"requests_per_unit": 3, "unit": "AGE"}}]}"#,
            "`AGE` is no unit",
        ),
    ] {
        let answer = ask(body).await;
        assert_eq!(answer.status, 400, "{body}");
        let text = String::from_utf8_lossy(&answer.body);
        assert!(text.contains(says), "{body}: {text}");
    }
    assert_eq!(http1.get("/json").await.status, 405);
}

/// Envoy shares a connection between all clients, and resets a stream when its client disconnects.
#[tokio::test(flavor = "multi_thread")]
async fn aborted_requests_keep_the_connection_open() {
    let service = Service::start("").await;
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
    let service = Service::start("timeouts: {response: 50ms}").await;
    let address = service.gateway.fronts["rateLimitService"];
    let outcome = tokio::task::spawn_blocking(move || {
        let mut client = RawHttp2::new(address);
        let head =
            [(":method", "POST"), (":scheme", "http"), (":path", METHOD), (":authority", "a")];
        let head =
            [&head[..], &[("content-type", "application/grpc"), ("te", "trailers")]].concat();
        client.headers(1, &head, false);
        client.outcome(1)
    });
    // The gRPC status is in the same frame.
    assert_eq!(outcome.await.unwrap(), Outcome::Status(200));
    // A client of `/json` would take this status for a permission.
    let outcome = tokio::task::spawn_blocking(move || {
        let mut client = RawHttp2::new(address);
        let head =
            [(":method", "POST"), (":scheme", "http"), (":path", "/json"), (":authority", "a")];
        client.headers(1, &head, false);
        client.outcome(1)
    });
    assert_eq!(outcome.await.unwrap(), Outcome::Status(504));
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_without_a_certificate_are_refused() {
    let folder = TempDir::new().unwrap();
    certificate(&folder, "tls");
    authority(&folder, "envoy");
    authority(&folder, "stranger");
    fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
    let tls = "{certificate: tls.pem, key: tls.key, clientCa: envoy-ca.pem}";
    let listen = format!("{{address: '127.0.0.1:0', tls: {tls}}}");
    let lines = format!("rateLimitService: {{listen: {listen}, config: rules.yaml}}");
    let mut gateway = Gateway::start_in(folder, &lines);
    gateway.address = gateway.fronts["rateLimitService"];
    for (client, status) in [(Some("envoy"), Some("200")), (Some("stranger"), None), (None, None)] {
        assert_eq!(with_certificate(&gateway, client).as_deref(), status, "{client:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_share_quotas_and_respect_deadlines() {
    let redis = Redis::start();
    let lines = over(&redis) + "onStoreError: closed\n";
    let [one, other] = [Service::start(&lines).await, Service::start(&lines).await];
    for (service, row) in [(&one, "A2"), (&other, "A1"), (&one, "A0"), (&other, "X0")] {
        service.check(&format!("user=ann => {row}")).await;
    }
    redis.stop();
    // A tonic client would enforce the deadline itself.
    let message = request("user=bob").encode_to_vec();
    let frame = [&[0, 0, 0, 0, u8::try_from(message.len()).unwrap()][..], &message].concat();
    let client = Client::http2(one.gateway.fronts["rateLimitService"]);
    let headers = [("content-type", "application/grpc"), ("grpc-timeout", "50m")];
    let body = String::from_utf8(frame).unwrap();
    let answer = client.send("POST", METHOD, &headers, &body).await.unwrap();
    assert_eq!(answer.header("grpc-status"), "4", "{answer:?}");
    redis.cont();
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_rules_are_reloaded() {
    let service = Service::start("").await;
    let mut health = HealthClient::new(service.channel.clone());
    for name in ["", "envoy.service.ratelimit.v3.RateLimitService", "ratelimit"] {
        let asked = HealthCheckRequest { service: name.into() };
        let status = health.check(asked).await.unwrap().into_inner().status();
        assert_eq!(status, ServingStatus::Serving, "{name}");
    }
    let unknown = HealthCheckRequest { service: "other".into() };
    assert_eq!(health.check(unknown).await.unwrap_err().code(), tonic::Code::NotFound);

    service.check("user=banned => X0").await;
    let rules = RULES.replace("banned", "pardoned");
    fs::write(service.gateway.file("new"), rules).unwrap();
    fs::rename(service.gateway.file("new"), service.gateway.file("rules.yaml")).unwrap();
    service.gateway.until_config(|config| config["version"] == 2).await;
    service.check("user=banned => A2").await;
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
    let service = Service::start("timeouts: {drain: 30s}").await;
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
        let lines = over(&redis).replace("20s", "300ms");
        let service = Service::start(&format!("{lines}onStoreError: {on_store_error}")).await;
        let mut health = watch(&service.channel).await;
        until(&mut health, ServingStatus::Serving).await;
        let asked = || service.send(request("user=ann"));
        assert_eq!(asked().await.unwrap().overall_code(), Code::Ok);
        redis.kill();
        if becomes == ServingStatus::NotServing {
            until(&mut health, becomes).await;
            assert_eq!(asked().await.unwrap_err().code(), tonic::Code::Unavailable);
            redis.restart();
            until(&mut health, ServingStatus::Serving).await;
        } else {
            assert_eq!(asked().await.unwrap().overall_code(), Code::Ok);
        }
        let metrics = service.gateway.metrics().await;
        let (outcome, count) = if on_store_error == "closed" { ("error", 1) } else { ("ok", 2) };
        let line = format!(
            "tollgate_gateway_rate_limit_service_total{{domain=\"test\",outcome=\"{outcome}\"}} {count}"
        );
        assert!(metrics.contains(&line), "{metrics}");
    }
}
