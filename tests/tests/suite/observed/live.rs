//! A real Prometheus scrapes real processes, and all queries of dashboard and alerts have data.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use axum::Router;
use axum::routing::get;
use http::{HeaderMap, StatusCode};
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::Value;
use tokio::net::TcpListener;
use tollgate::feedback::Feedback;
use tollgate::key::Key;
use tollgate::{Limiter, MemoryStore, Policy, Quota};
use tollgate_test_servers::until_async;
use tollgate_test_servers::{Plan, Process, Redis, Replica};

use super::files::{file, queries};
use super::prometheus::Prometheus;
use crate::gateway;
use tollgate_test_servers::http::Client;

#[tokio::test(flavor = "multi_thread")]
async fn panels_and_alerts_have_data() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let redis = Redis::start();
    let url = format!("redis://{}", redis.address());
    let shared = ["--store", &url, "--limit", "20", "--window", "1s", "--on-store-error", "local"];
    let shared = replica("shared", &shared, folder);
    let queue = ["--algorithm", "leaky_bucket", "--limit", "20", "--window", "1s", "--burst", "5"];
    let queue = replica("queue", &[&queue[..], &["--costs", "one"]].concat(), folder);
    let gateway = start_gateway(shared.plan.listen, key_set().await, folder);
    let [shared_admin, queue_admin, gateway_admin] = [&shared.process, &queue.process, &gateway]
        .map(|process| gateway::address(process, "admin"));
    let addresses = [shared_admin, queue_admin, gateway_admin, paused_client().await];
    let prometheus = Prometheus::start(folder, &addresses).await;

    let working = Arc::new(AtomicBool::new(true));
    let public = [shared.plan.listen, queue.plan.listen, gateway::address(&gateway, "listening")];
    // Four clients per server, because some requests must wait in the queue.
    let clients: Vec<_> = (0..12)
        .map(|n| tokio::spawn(keep_asking(Client::new(public[n % 3]), Arc::clone(&working))))
        .collect();

    let mut missing = Vec::new();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(60) {
        missing.clear();
        for (what, query) in asked(&prometheus).await {
            if prometheus.query(&query).await.is_empty() {
                missing.push(format!("{what}: {query}"));
            }
        }
        if missing.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    working.store(false, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    assert!(missing.is_empty(), "no data after {:?}:\n{}", start.elapsed(), missing.join("\n"));

    // Some values are known.
    for (query, at_least) in [
        ("sum(tollgate_decisions_total{policy=\"global\",outcome=\"deny\"})", 1.0),
        ("sum(tollgate_redis_calls_total{outcome=\"answered\"})", 1.0),
        ("sum(tollgate_wait_seconds_count)", 1.0),
        ("sum(tollgate_config_version)", 1.0),
        ("count(tollgate_store_available == 1)", 4.0),
    ] {
        let value = prometheus.query(query).await.iter().sum::<f64>();
        assert!(value >= at_least, "{query}: {value}");
    }
    let targets = prometheus.get("/api/v1/targets").await;
    for target in targets["activeTargets"].as_array().unwrap() {
        assert_eq!(target["health"], "up", "{target}");
    }
}

/// A client whose service denies some calls and names its numbers. Returns where its metrics are.
async fn paused_client() -> SocketAddr {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).unwrap();
    let policy = Policy::token_bucket("partner", Quota::per_second(100)).unwrap();
    let limiter = Limiter::builder(MemoryStore::new()).policy(policy);
    let limiter = limiter.pausable(Duration::from_secs(1)).build().unwrap();
    let headers =
        [("retry-after", "1"), ("x-ratelimit-limit", "9"), ("x-ratelimit-remaining", "0")];
    let headers = headers.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
    let headers = HeaderMap::from_iter(headers);
    tokio::spawn(async move {
        loop {
            if let Ok(permit) = limiter.acquire(&Key::GLOBAL, 1).await {
                let status = StatusCode::TOO_MANY_REQUESTS;
                let denial = Feedback::read(status, &headers, SystemTime::now());
                permit.learn(&denial).await.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    });
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let render = get(move || {
        let text = handle.render();
        async move { text }
    });
    let app = Router::new().route("/metrics", render);
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn compose_files_run_in_prometheus() {
    let folder = tempfile::tempdir().unwrap();
    let config = file("prometheus/prometheus.yml").canonicalize().unwrap();
    let prometheus = Prometheus::start_with(folder.path(), &config).await;
    let rules = prometheus.get("/api/v1/rules").await;
    let groups = rules["groups"].as_array().unwrap();
    let loaded = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
    assert!(loaded.filter(|rule| rule["type"] == "alerting").count() >= 9, "{rules}");
    // Prometheus scrapes the admin port of each compose replica, once it has discovered these.
    let url = |target: &Value| target["scrapeUrl"].as_str().unwrap().to_owned();
    let mut urls = until_async("Prometheus finds replicas", Duration::from_secs(30), async || {
        let targets = prometheus.get("/api/v1/targets").await;
        let urls: Vec<_> = targets["activeTargets"].as_array().unwrap().iter().map(url).collect();
        (!urls.is_empty()).then_some(urls)
    })
    .await;
    urls.sort();
    let compose = fs::read_to_string(file("../docker-compose.yml")).unwrap();
    let setting = |name: &str| {
        let line = compose.lines().find_map(|line| line.trim().strip_prefix(name)).unwrap();
        line.trim_start_matches(':').trim().to_owned()
    };
    let (_, port) = setting("TOLLGATE_ADMIN:").rsplit_once(':').map(owned).unwrap();
    let hosts = setting("TOLLGATE_ADMIN_HOSTS:");
    let names = hosts.split(',').filter(|name| compose.contains(&format!("\n  {name}:\n")));
    let expected: Vec<_> = names.map(|name| format!("http://{name}:{port}/metrics")).collect();
    assert_eq!((urls.len(), &urls), (3, &expected));
    // A replica's admin address accepts these hosts.
    let replica = replica("api1", &["--admin-hosts", &hosts], folder.path());
    let client = Client::new(gateway::address(&replica.process, "admin"));
    for name in hosts.split(',') {
        let host = format!("{name}:{port}");
        let answer = client.get_with("/metrics", &[("host", &host)]).await;
        assert_eq!(answer.status, 200, "{name}");
        assert!(std::str::from_utf8(&answer.body).unwrap().contains("tollgate_"), "{name}");
    }
    assert_ne!(client.get_with("/metrics", &[("host", "elsewhere:9100")]).await.status, 200);
}

fn owned((left, right): (&str, &str)) -> (String, String) {
    (left.to_owned(), right.to_owned())
}

/// The queries of panels and alerts, with values for the dashboard's variables.
async fn asked(prometheus: &Prometheus) -> Vec<(String, String)> {
    let rules = prometheus.get("/api/v1/rules").await;
    let mut asked = queries();
    for group in rules["groups"].as_array().unwrap() {
        for rule in group["rules"].as_array().unwrap() {
            let name = rule["name"].as_str().unwrap().to_owned();
            assert_ne!(rule["health"], "err", "{name}: {rule}");
            let query = rule["query"].as_str().unwrap();
            // Only the left side of an alert's comparison, because the comparison returns no series
            // unless the alert fires.
            let (left, _) = match rule["type"].as_str() {
                Some("alerting") => query.rsplit_once([' ']).unwrap(),
                _ => (query, ""),
            };
            asked.push((name, left.trim_end_matches([' ', '<', '>']).to_owned()));
        }
    }
    for (_, query) in &mut asked {
        *query = query.replace("$policy", ".*").replace("$__rate_interval", "20s");
    }
    asked
}

async fn keep_asking(client: Client, working: Arc<AtomicBool>) {
    while working.load(Ordering::Relaxed) {
        client.get("/items").await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const TOKEN: &str = "0123456789abcdef";

fn replica(name: &str, flags: &[&str], folder: &Path) -> Replica {
    let admin = ["--admin", "127.0.0.1:0", "--admin-token", TOKEN];
    let plan = Plan {
        program: env!("CARGO_BIN_EXE_replica").into(),
        name: name.to_owned(),
        listen: LOCAL,
        flags: admin.iter().chain(flags).map(|flag| (*flag).to_owned()).collect(),
        variables: vec![("RUST_LOG".to_owned(), "error".to_owned())],
        folder: folder.to_owned(),
    };
    Replica::start(plan).unwrap()
}

/// Serves an issuer's keys, from an example in RFC 8037.
async fn key_set() -> SocketAddr {
    let set = r#"{"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "one", "alg": "EdDSA",
        "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
    let router = Router::new().route("/keys", get(move || async move { set }));
    let listener = TcpListener::bind(LOCAL).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// A gateway that records every metric: with a blocklist, and with token keys served at a URL.
fn start_gateway(target: SocketAddr, keys: SocketAddr, folder: &Path) -> Process {
    let lines = format!(
        "  target: http://{target}\n  \
         strategy: sliding_window_log\n  global: {{limit: 10, windowSeconds: 1}}\n  \
         identity: [user, ip]\n  jwt: {{jwksUrl: 'http://{keys}/keys'}}\n  \
         deny: {{addresses: [192.0.2.1]}}\n  \
         rateLimitService: {{listen: 127.0.0.1:0, config: rules.yaml}}\n"
    );
    fs::write(
        folder.join("rules.yaml"),
        "domain: a\ndescriptors: [{key: b, rate_limit: {unlimited: true}}]\n",
    )
    .unwrap();
    gateway::start(&lines, folder)
}
