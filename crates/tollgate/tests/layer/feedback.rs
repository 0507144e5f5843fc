//! What other services' responses mean. `feedback.http` contains real responses; each row fixes a
//! value that a likely mistake would change.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use proptest::prelude::*;
use tollgate::denial::{OwnDenial, Reason};
use tollgate::feedback::{Feedback, ServerQuota};
use tollgate::{MemoryStore, Policy, Quota, RateLimitLayer};
use tower::{ServiceBuilder, ServiceExt};

/// 2026-11-28T00:00:00Z
fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_824_000)
}

fn shown(feedback: &Feedback) -> String {
    let mut parts = Vec::new();
    if feedback.is_denial() {
        parts.push("denial".to_owned());
    }
    if let Some(pause) = feedback.pause() {
        let requested = if pause.is_capped() {
            format!(" of {:?}", pause.requested())
        } else {
            assert_eq!(pause.requested(), pause.duration());
            String::new()
        };
        parts.push(format!("pause {:?}{requested} by {}", pause.duration(), pause.header()));
    }
    parts.extend(feedback.quotas().iter().map(quota));
    parts.extend(feedback.should_retry().map(|retry| format!("retry {retry}")));
    parts.extend(feedback.reason().map(|reason| format!("reason {reason}")));
    if parts.is_empty() { "nothing".to_owned() } else { parts.join("; ") }
}

fn quota(quota: &ServerQuota) -> String {
    let number =
        |number: Option<u64>| number.map_or_else(|| "?".to_owned(), |number| number.to_string());
    let mut shown =
        format!("{} {}/{}", quota.name(), number(quota.remaining()), number(quota.limit()));
    let times = [("per", quota.window()), ("resets", quota.resets_after())];
    for (word, time) in times.into_iter().filter_map(|(word, time)| Some((word, time?))) {
        shown.push_str(&format!(" {word} {time:?}"));
    }
    if quota.refills() { shown + " refilling" } else { shown }
}

#[test]
fn services_are_read() {
    let mut wrong = Vec::new();
    let rows = include_str!("feedback.http").split("### ").skip(1);
    for row in rows.clone() {
        let mut lines = row.lines();
        let title = lines.next().unwrap();
        let status = StatusCode::from_bytes(lines.next().unwrap().as_bytes()).unwrap();
        let mut headers = HeaderMap::new();
        let mut expected = None;
        for line in lines.filter(|line| !line.is_empty()) {
            if let Some(reading) = line.strip_prefix("=> ") {
                expected = Some(reading);
                continue;
            }
            let (name, value) = line.split_once(':').unwrap();
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, value.trim().parse().unwrap());
        }
        let read = shown(&Feedback::read(status, &headers, now()));
        if Some(read.as_str()) != expected {
            wrong.push(format!("{title}\n  expected {}\n  read     {read}", expected.unwrap()));
        }
    }
    assert!(rows.count() > 60, "not all rows were read");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn caller_sets_longest_pause() {
    let headers = HeaderMap::from_iter([(http::header::RETRY_AFTER, HeaderValue::from(3600))]);
    let feedback = Feedback::read(StatusCode::TOO_MANY_REQUESTS, &headers, now());
    let at_most = |seconds| {
        let pause = feedback.pause_at_most(Duration::from_secs(seconds)).unwrap();
        (pause.duration().as_secs(), pause.is_capped())
    };
    assert_eq!(at_most(3600), (3600, false));
    assert_eq!(at_most(3599), (3599, true));
    assert_eq!(feedback.pause().unwrap().duration(), Feedback::MAX_PAUSE);
}

#[test]
fn quotas_are_bounded_in_number_and_name() {
    let mut headers = HeaderMap::new();
    for length in (60..70).chain(1..20) {
        let name = format!("x-ratelimit-remaining-{}", "q".repeat(length));
        headers.insert(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from(1));
    }
    let feedback = Feedback::read(StatusCode::OK, &headers, now());
    let longest = feedback.quotas().iter().map(|quota| quota.name().len()).max();
    assert_eq!((feedback.quotas().len(), longest), (16, Some(64)));
}

/// The layer denies the second request itself, and the service denies the first request.
#[tokio::test]
async fn own_denial_is_not_feedback() {
    let policy = Policy::token_bucket("client", Quota::per_hour(1)).unwrap();
    let layer =
        RateLimitLayer::for_client(MemoryStore::new(), policy, Duration::from_millis(1)).unwrap();
    let deny = |_: http::Request<()>| async {
        let mut response = Response::new(String::new());
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        response.headers_mut().insert(http::header::RETRY_AFTER, HeaderValue::from(7));
        Ok::<_, std::convert::Infallible>(response)
    };
    let service = ServiceBuilder::new().layer(layer.any_body()).service(tower::service_fn(deny));

    let theirs = service.clone().oneshot(http::Request::new(())).await.unwrap();
    let pause = Feedback::of(&theirs, now()).unwrap().pause().unwrap();
    assert_eq!(pause.duration(), Duration::from_secs(7));

    let ours = service.oneshot(http::Request::new(())).await.unwrap();
    assert_eq!(ours.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(ours.headers().contains_key(http::header::RETRY_AFTER));
    assert_eq!(Feedback::of(&ours, now()), None);
    let marker = ours.extensions().get::<OwnDenial>().unwrap();
    assert_eq!(marker.reason(), Reason::QuotaExceeded);
}

/// Values near the bounds, and in almost the right form.
const VALUES: &str = r#"
.
0
-1
-0
+1
1e30
NaN
inf
0x10
1_000
999999999
1000000000
99999999999
100000000000
99999999999999
18446744073709551615
1000000000000000000000000000000
18446744073709551615s
18446744073709551615s1000ms
584542046090y
0.0000000001s
1.5
6m0s
-6m0s
1969-12-31T23:59:59Z
9999-12-31T23:59:59Z
2026-13-41T25:61Z
Fri, 31 Dec 9999 23:59:59 GMT
Thu, 01 Jan 1970 00:00:00 GMT
/
/40
41/40
1/2/3
"a";r=0;t=1
"a";q=999999999999999;w=999999999999999
"";r=1
("a" "b");r=0
limit=(1 2)
100;w=60, 100;w=30
rejected
allowed"#;

/// Headers that are read, with any value that HTTP permits, and mostly with values near the bounds.
fn any_headers() -> impl Strategy<Value = HeaderMap> {
    let names = include_str!("feedback.http").lines().filter_map(|line| {
        let name = line.split_once(':').filter(|_| !line.starts_with(['#', '=']))?.0;
        HeaderName::from_bytes(name.as_bytes()).ok()
    });
    let other = |length| format!("x-ratelimit-remaining-{}", "q".repeat(length));
    let name = prop_oneof![
        3 => proptest::sample::select(names.collect::<Vec<_>>()),
        1 => (1..99_usize).prop_map(move |it| HeaderName::from_bytes(other(it).as_bytes()).unwrap()),
    ];
    let value = prop_oneof![
        4 => proptest::sample::select(VALUES.lines().collect::<Vec<_>>())
            .prop_map(HeaderValue::from_static),
        1 => any::<u64>().prop_map(HeaderValue::from),
        1 => "[0-9.smhT:Z -]{0,40}".prop_map(|text| HeaderValue::from_str(&text).unwrap()),
        1 => "[ -~]{0,40}".prop_map(|text| HeaderValue::from_str(&text).unwrap()),
        1 => proptest::collection::vec(128_u8.., 0..9)
            .prop_map(|bytes| HeaderValue::from_bytes(&bytes).unwrap()),
    ];
    proptest::collection::vec((name, value), 0..24).prop_map(|lines| {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(name, value);
        }
        headers
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn any_headers_are_read_within_bounds(
        headers in any_headers(),
        status in proptest::sample::select(vec![200_u16, 301, 400, 403, 429, 503, 529]),
        seconds in prop_oneof![Just(0), Just(1_795_824_000), 0..i64::MAX as u64],
    ) {
        let status = StatusCode::from_u16(status).unwrap();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let feedback = Feedback::read(status, &headers, now);
        if let Some(pause) = feedback.pause() {
            prop_assert!(!pause.duration().is_zero() && pause.duration() <= Feedback::MAX_PAUSE);
            prop_assert_eq!(pause.is_capped(), pause.requested() > Feedback::MAX_PAUSE);
            let is_used_up = feedback.quotas().iter().any(ServerQuota::is_used_up);
            prop_assert!(feedback.is_denial() || is_used_up);
        }
        prop_assert!(feedback.quotas().len() <= 16);
        prop_assert!(feedback.quotas().iter().all(|it| (1..=64).contains(&it.name().len())));
        prop_assert!(feedback.quotas().is_sorted_by(|a, b| a.name() < b.name()));
    }

    /// Other headers cannot shorten the wait that `Retry-After` requests, or replace its source.
    #[test]
    fn retry_after_is_obeyed(mut headers in any_headers(), seconds in 1..300_u64) {
        for name in [
            "retry-after-ms", "x-ms-retry-after-ms", "x-amz-retry-after", "grpc-retry-pushback-ms",
            "x-ratelimit-retry-after", "x-rate-limit-time-reset-ms",
        ] {
            headers.remove(name);
        }
        headers.insert(http::header::RETRY_AFTER, HeaderValue::from(seconds));
        let feedback = Feedback::read(StatusCode::TOO_MANY_REQUESTS, &headers, now());
        let pause = feedback.pause().unwrap();
        prop_assert_eq!(pause.duration(), Duration::from_secs(seconds));
        prop_assert_eq!(pause.header(), http::header::RETRY_AFTER);
    }
}
