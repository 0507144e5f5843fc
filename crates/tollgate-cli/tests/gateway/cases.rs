//! Tables of configurations, requests and expected responses: the files in `cases/`.
//!
//! A case has a name after `##`, the keys under `rateLimiter`, and after `---` its requests in
//! order. In the keys, `TARGET` is the upstream's address, and
//! `sha256(text)` is the hash of an API key.
//!
//! ```text
//! ## quota_is_enforced
//! client: {limit: 2, windowSeconds: 3600}
//! ---
//! GET /a -> 200 200 429
//!   > x-sent: with each request
//!   < x-ratelimit-remaining: 0
//!   code: quota-exceeded
//! ```
//!
//! The indented lines describe the last of these responses. `entries NAME` counts the elements of a
//! header, `minutes` is the response's `Retry-After`, rounded up, and `type` is the fragment of the
//! body's `type`. `received` and `forwarded NAME` show the last request that reached the upstream,
//! and `count` is the number of these requests. A header with no expected value must be absent.

use serde_json::Value;

use crate::support::{Gateway, Upstream, exchange, sha256};

macro_rules! tables {
    ($($name:ident)*) => { $(
        #[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            check(include_str!(concat!("cases/", stringify!($name), ".txt"))).await;
        }
    )* };
}

tables! { limits paths requests routes }

async fn check(table: &str) {
    for case in table.split("## ").skip(1) {
        let (name, case) = case.split_once('\n').unwrap();
        let (keys, requests) = case.split_once("---\n").expect(name);
        let upstream = Upstream::new().await;
        let gateway = Gateway::start(&expanded(keys, &upstream));
        let requests = requests.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let requests: Vec<_> = requests.collect();
        assert!(!requests.is_empty(), "{name} has no requests");
        for request in requests.chunk_by(|_, next| next.starts_with(' ')) {
            check_request(name, request, &gateway, &upstream);
        }
    }
}

fn expanded(keys: &str, upstream: &Upstream) -> String {
    let target = if keys.contains("TARGET") { String::new() } else { upstream.target() };
    let mut keys = target + &keys.replace("TARGET", &upstream.address.to_string());
    while let Some((before, rest)) = keys.split_once("sha256(") {
        let (text, after) = rest.split_once(')').unwrap();
        keys = format!("{before}{}{after}", sha256(text));
    }
    keys
}

/// Sends a request once for each status, and checks the last response.
fn check_request(name: &str, lines: &[&str], gateway: &Gateway, upstream: &Upstream) {
    let (request, statuses) = lines[0].rsplit_once(" -> ").expect(name);
    let (sent, expected): (Vec<_>, Vec<_>) =
        lines[1..].iter().map(|line| line.trim()).partition(|line| line.starts_with("> "));
    let sent: String = sent.iter().map(|line| format!("{}\r\n", &line[2..])).collect();
    let host = if sent.contains("host: ") { "" } else { "Host: a\r\n" };
    let bytes = format!("{request} HTTP/1.1\r\n{host}Connection: close\r\n{sent}\r\n");
    let mut answer = String::new();
    for status in statuses.split(' ') {
        answer = exchange(gateway.address, &bytes);
        assert_eq!(answer.get(9..12), Some(status), "{name}: {request}: {answer}");
    }
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let values = |name: &str| {
        shown(head.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(": ")))
    };
    let json = || serde_json::from_str::<Value>(body).expect(body);
    for line in expected {
        let (what, expected) = line.split_once(':').expect(name);
        let found = match what.split_once(' ') {
            Some(("<", header)) => values(header),
            Some(("forwarded", header)) => {
                let seen = upstream.last();
                shown(seen.headers.get_all(header).iter().map(|value| value.to_str().unwrap()))
            }
            Some(("entries", header)) => values(header).split(',').count().to_string(),
            _ => match what {
                "code" => json()["code"].as_str().unwrap_or_default().to_owned(),
                "status" => json()["status"].to_string(),
                "minutes" => values("retry-after").parse::<u64>().unwrap().div_ceil(60).to_string(),
                "type" => {
                    let json = json();
                    let (_, fragment) = json["type"].as_str().unwrap().rsplit_once('#').unwrap();
                    format!("#{fragment}")
                }
                "policies" => json()["violated-policies"].to_string(),
                "count" => upstream.seen().len().to_string(),
                "received" => format!("{} {}", upstream.last().method, upstream.last().uri),
                _ => panic!("{name}: {what}"),
            },
        };
        let expected = expected.trim().replace("TARGET", &upstream.address.to_string());
        assert_eq!(found, expected, "{name}: {request}: {what}: {answer}");
    }
}

/// A header's lines. An empty header differs from an absent header.
fn shown<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    let lines: Vec<_> = lines.map(|line| if line.is_empty() { "(empty)" } else { line }).collect();
    lines.join(", ")
}
