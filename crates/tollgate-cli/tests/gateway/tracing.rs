//! Spans for requests and decisions, from the caller's trace to a collector.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use tokio::net::TcpListener;

use crate::support::{Client, Collector, Gateway, Sent, Upstream};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

/// A configuration that sends spans to this address.
fn to(address: std::net::SocketAddr, more: &str) -> String {
    format!("tracing: {{endpoint: 'http://{address}', {more}}}\n")
}

fn named<'a>(sent: &'a [Sent], name: &str) -> Vec<&'a Sent> {
    sent.iter().filter(|sent| sent.span.name == name).collect()
}

/// The trace, span and flags in a `traceparent` header.
fn parts(traceparent: &str) -> (String, String, String) {
    let parts: Vec<_> = traceparent.split('-').collect();
    assert_eq!((parts.len(), parts[0]), (4, "00"), "{traceparent:?}");
    (parts[1].to_owned(), parts[2].to_owned(), parts[3].to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_join_the_caller_trace() {
    let (upstream, collector) = (Upstream::new().await, Collector::new().await);
    let lines = format!(
        "{}{}global: {{limit: 100, window: 60s}}\nclient: {{limit: 4, window: 60s, costs: {{GET: 3}}}}\n",
        upstream.target(),
        to(collector.address, "serviceName: shop, headers: 'authorization=Bearer%20k-7f3a'"),
    );
    let gateway = Gateway::start_logging_denials(&lines);
    let client = Client::new(gateway.address);
    let parent = format!("00-{TRACE}-{SPAN}-01");
    let headers = [("traceparent", parent.as_str()), ("tracestate", "a=1,b=2")];
    assert_eq!(client.send("GET", "/items?q=secret", &headers, "").await.unwrap().status, 200);
    assert_eq!(client.send("GET", "/items", &headers, "").await.unwrap().status, 429);

    let sent = collector.until_sent(6).await;
    assert_eq!(sent.len(), 6, "{sent:#?}");
    assert!(sent.iter().all(|sent| sent.trace() == TRACE && sent.service == "shop"));
    assert_eq!(collector.header("authorization"), "Bearer k-7f3a");
    let requests = named(&sent, "GET");
    let status = |sent: &&Sent| sent.attribute("http.response.status_code");
    assert_eq!(requests.iter().map(status).collect::<Vec<_>>(), ["200", "429"]);
    for request in &requests {
        assert_eq!(request.parent(), SPAN);
        assert_eq!(request.span.kind(), SpanKind::Server);
        assert_eq!(request.attribute("url.path"), "/items");
        let status =
            request.span.attributes.iter().find(|it| it.key == "http.response.status_code");
        let status = status.and_then(|it| it.value.as_ref()?.value.as_ref());
        assert!(matches!(status, Some(Value::IntValue(_))), "{status:?}");
        assert_eq!(request.attribute("http.request.method"), "GET");
        assert!(!request.attribute("tollgate.route").is_empty());
        assert_eq!(request.span.trace_state, "a=1,b=2");
        // A denial is not a server error.
        let status = request.span.status.clone().unwrap_or_default();
        assert_eq!(status.code(), StatusCode::Unset);
    }
    // The upstream's parent must be the gateway's span.
    let (trace, span, flags) = parts(upstream.last().header("traceparent"));
    assert_eq!((trace.as_str(), span, flags.as_str()), (TRACE, requests[0].id(), "01"));
    assert_eq!(upstream.last().header("tracestate"), "a=1,b=2");

    let decisions = named(&sent, "decision");
    let line = |sent: &&Sent| {
        assert!(sent.attribute("store_latency_us").parse::<u64>().is_ok(), "{sent:?}");
        let place = requests.iter().position(|request| request.id() == sent.parent()).unwrap();
        let words = ["policy", "client", "cost", "outcome", "remaining", "store"];
        format!("{place} {}", words.map(|word| sent.attribute(word)).join(" "))
    };
    let mut lines: Vec<_> = decisions.iter().map(line).collect();
    lines.sort();
    assert_eq!(
        lines,
        [
            "0 client ip 3 allow 1 memory",
            "0 global global 1 allow 99 memory",
            "1 client ip 3 deny 1 memory",
            "1 global global 1 pass 99 memory",
        ]
    );
    let all = format!("{sent:?}{}", gateway.log());
    assert!(!all.contains("secret") && !all.contains("k-7f3a") && !all.contains("127.0.0.1:"));
    assert!(gateway.log().contains(TRACE), "{}", gateway.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_trace_context_is_replaced() {
    let (upstream, collector) = (Upstream::new().await, Collector::new().await);
    let lines = format!("{}{}", upstream.target(), to(collector.address, ""));
    let (_gateway, client) = Gateway::with_client(&lines);
    let mut traces = BTreeSet::new();
    // Two `traceparent` headers are invalid, and a request without the header starts a new trace.
    for headers in [
        &[("traceparent", "hello"), ("tracestate", "a=1")][..],
        &[("traceparent", GOOD), ("traceparent", GOOD), ("tracestate", "a=1")],
        &[],
    ] {
        client.send("GET", "/", headers, "").await.unwrap();
        let seen = upstream.last();
        assert_eq!(seen.headers.get_all("traceparent").iter().count(), 1);
        let (trace, _, flags) = parts(seen.header("traceparent"));
        assert_eq!(flags, "01");
        assert!(trace != TRACE && traces.insert(trace), "{headers:?}");
        assert!(!seen.headers.contains_key("tracestate"), "{headers:?}");
    }
    let sent = collector.until_sent(3).await;
    assert!(sent.iter().all(|sent| sent.parent().is_empty()));
    assert_eq!(sent.iter().map(Sent::trace).collect::<BTreeSet<_>>(), traces);
}

const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// `Connection` must not remove headers that the gateway adds, or any client could cut off the
/// trace.
#[tokio::test(flavor = "multi_thread")]
async fn connection_cannot_remove_trace_context() {
    let (upstream, collector) = (Upstream::new().await, Collector::new().await);
    let lines = format!("{}{}", upstream.target(), to(collector.address, ""));
    let (_gateway, client) = Gateway::with_client(&lines);
    let headers =
        [("connection", "traceparent, tracestate"), ("traceparent", GOOD), ("tracestate", "a=1")];
    assert_eq!(client.send("GET", "/", &headers, "").await.unwrap().status, 200);
    let (trace, ..) = parts(upstream.last().header("traceparent"));
    assert_eq!((trace.as_str(), upstream.last().header("tracestate")), (TRACE, "a=1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn caller_decides_sampling() {
    let (upstream, collector) = (Upstream::new().await, Collector::new().await);
    let lines = format!(
        "{}{}client: {{limit: 100, window: 60s}}\n",
        upstream.target(),
        to(collector.address, "sample: 0")
    );
    let never = Gateway::start(&lines);
    let always = Gateway::start(&lines.replace("sample: 0", "sample: 1"));
    let trace = |n: u32| format!("{n:032x}");
    let ask = async |gateway: &Gateway, n: u32, flags: &str| {
        let parent = format!("00-{}-{SPAN}-{flags}", trace(n));
        let headers = [("traceparent", parent.as_str())];
        Client::new(gateway.address).send("GET", "/", &headers, "").await.unwrap();
        parts(upstream.last().header("traceparent"))
    };
    for (gateway, n, flags) in [(&always, 1, "00"), (&never, 2, "00"), (&never, 3, "01")] {
        let (seen, _, sampled) = ask(gateway, n, flags).await;
        assert_eq!((seen, sampled.as_str()), (trace(n), flags));
    }
    // If the trace starts at the gateway, the ratio decides and the upstream receives the decision.
    Client::new(never.address).get("/").await;
    assert_eq!(parts(upstream.last().header("traceparent")).2, "00");
    ask(&never, 4, "01").await;
    ask(&always, 5, "01").await;
    // Spans are exported in completion order, so any earlier spans would have arrived by now.
    let sent = collector.until_sent(6).await;
    let traces: BTreeSet<_> = sent.iter().map(Sent::trace).collect();
    assert_eq!(traces, [3, 4, 5].map(trace).into());
    assert_eq!((named(&sent, "GET").len(), named(&sent, "decision").len()), (3, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn sample_ratio_applies_to_new_traces() {
    let (upstream, collector) = (Upstream::new().await, Collector::new().await);
    let lines = format!("{}{}", upstream.target(), to(collector.address, "sample: 1/2"));
    let (mut gateway, client) = Gateway::with_client(&lines);
    for _ in 0..400 {
        client.get("/").await;
    }
    let told = upstream.seen();
    let told = told.iter().filter(|seen| seen.header("traceparent").ends_with("-01")).count();
    gateway.signal("TERM");
    assert!(gateway.wait().success());
    assert_eq!(collector.sent().len(), told);
    // The bounds are six standard deviations from the mean.
    assert!((140..=260).contains(&told), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_flushes_spans() {
    let (upstream, collector) = (Upstream::new().await, Collector::new().await);
    let lines = format!("{}{}", upstream.target(), to(collector.address, "timeout: 20s"));
    let mut gateway = Gateway::start(&lines);
    Client::new(gateway.address).get("/").await;
    gateway.signal("TERM");
    assert!(gateway.wait().success());
    assert_eq!(collector.sent().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn hanging_collector_does_not_delay_requests() {
    let upstream = Upstream::new().await;
    // The kernel accepts connections, but the test never reads from them.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let lines = format!(
        "{}{}client: {{limit: 1000000, window: 60s}}\n",
        upstream.target(),
        to(silent.local_addr().unwrap(), "timeout: 60s")
    );
    let gateway = Gateway::start(&lines);
    // With two spans per request, these spans overflow the buffer. A request that waited for the
    // collector would wait for its timeout, which is a minute.
    let (started, mut asking) = (Instant::now(), tokio::task::JoinSet::new());
    for _ in 0..8 {
        let client = Client::new(gateway.address);
        asking.spawn(async move {
            for _ in 0..300 {
                assert_eq!(client.get("/").await.status, 200);
            }
        });
    }
    asking.join_all().await;
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
    let metrics = gateway.metrics().await;
    let spans = |outcome: &str| {
        let name = format!("tollgate_trace_spans_total{{outcome=\"{outcome}\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
        line.unwrap_or_else(|| panic!("{outcome}: {metrics}")).parse::<u64>().unwrap()
    };
    assert_eq!((spans("exported"), spans("failed")), (0, 0));
    assert_eq!(spans("dropped"), 2 * 8 * 300 - 4_096);
}

#[tokio::test(flavor = "multi_thread")]
async fn hanging_collector_barely_delays_shutdown() {
    let upstream = Upstream::new().await;
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let lines = |address| format!("{}{}", upstream.target(), to(address, "timeout: 200ms"));
    let (mut gateway, client) = Gateway::with_client(&lines(silent.local_addr().unwrap()));
    for _ in 0..3 {
        client.get("/").await;
        gateway.until_logged("the collector does not accept spans");
    }
    client.get("/").await;
    let started = Instant::now();
    gateway.signal("TERM");
    assert!(gateway.wait().success());
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert_eq!(gateway.log().matches("the collector does not accept spans").count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_upstream_sets_the_span_status() {
    let collector = Collector::new().await;
    let lines = format!("target: http://127.0.0.1:1\n{}", to(collector.address, ""));
    let gateway = Gateway::start(&lines);
    assert_eq!(Client::new(gateway.address).get("/").await.status, 502);
    let sent = collector.until_sent(1).await;
    assert_eq!(sent[0].span.status.clone().unwrap_or_default().code(), StatusCode::Error);
    assert_eq!(sent[0].attribute("error.type"), "502");
    // The log line with the reason includes the trace.
    let log = gateway.log();
    let line = log.lines().find(|line| line.contains("cannot be reached"));
    assert!(line.is_some_and(|line| line.contains(&sent[0].trace())), "{log}");
}
