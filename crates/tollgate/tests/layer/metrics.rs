//! What is counted, and what never becomes a label.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request};
use metrics::LocalRecorderGuard;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use tollgate::failure::{Breaker, Fallback};
use tollgate::key::{ApiKey, ClientIp, KeySource, from_fn};
use tollgate::metrics::{ALL, MetricKind, table};
use tollgate::status::{Inspect, refresh};
use tollgate::{Head, Listed, Lists, SubjectList};
use tollgate::{
    Limit, MemoryStore, Observer, OnStoreError, Policy, Quota, RateLimitLayer, RoutePattern,
    Strikes,
};
use tower::Layer;

use crate::stage::{Fault, Staged};
use crate::support::*;

/// Counts in this thread for as long as it lives.
pub(crate) struct Meter {
    handle: PrometheusHandle,
    _guard: LocalRecorderGuard<'static>,
}

impl Meter {
    pub(crate) fn start() -> Self {
        // As long as the thread: a recorder is borrowed by its guard.
        let recorder: &'static PrometheusRecorder =
            Box::leak(Box::new(PrometheusBuilder::new().build_recorder()));
        let guard = metrics::set_default_local_recorder(recorder);
        Self { handle: recorder.handle(), _guard: guard }
    }

    /// The values of all series, by their names and labels.
    fn series(&self) -> BTreeMap<String, f64> {
        let text = self.handle.render();
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let series = lines.map(|line| {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            (series.to_owned(), value.parse().expect("a number"))
        });
        series.collect()
    }

    /// The sum over the series that have all of these labels.
    pub(crate) fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        let is_wanted = |series: &str| {
            series.split('{').next() == Some(name)
                && labels.iter().all(|label| series.contains(label))
        };
        self.series().iter().filter(|(series, _)| is_wanted(series)).map(|(_, value)| value).sum()
    }

    fn outcomes(&self, policy: &str) -> Vec<(String, f64)> {
        let all = ["allow", "deny", "shadow_deny", "failed_open", "failed_closed", "local"];
        let count = |outcome: &str| {
            let labels = [format!("policy=\"{policy}\""), format!("outcome=\"{outcome}\"")];
            self.sum("tollgate_decisions_total", &[&labels[0], &labels[1]])
        };
        let counts = all.map(|outcome| (outcome.to_owned(), count(outcome)));
        counts.into_iter().filter(|(_, count)| *count > 0.0).collect()
    }
}

fn counted(list: &[(&str, f64)]) -> Vec<(String, f64)> {
    list.iter().map(|(word, count)| ((*word).to_owned(), *count)).collect()
}

#[tokio::test]
async fn each_decision_counts_once_with_what_became_of_it() {
    let meter = Meter::start();
    let (_, store) = memory();
    let staged = Staged::new(store);
    let closed = log("closed", 50).with_on_store_error(OnStoreError::Closed);
    let limits = [
        Limit::global(log("first", 2)),
        Limit::global(log("trial", 1)).shadow(),
        Limit::global(closed).when(|head| head.method == Method::DELETE),
    ];
    let service = limited(&staged, limits);
    for expected in [200, 200, 429, 429, 429] {
        assert_eq!(status(&service).await, expected);
    }
    assert_eq!(meter.outcomes("first"), counted(&[("allow", 2.0), ("deny", 3.0)]));
    // What would have passed here and was denied there counts there alone.
    assert_eq!(meter.outcomes("trial"), counted(&[("allow", 1.0), ("shadow_deny", 4.0)]));
    assert_eq!(meter.sum("tollgate_units_charged_total", &["policy=\"first\""]), 2.0);
    assert_eq!(meter.sum("tollgate_decision_duration_seconds_count", &["policy=\"first\""]), 5.0);

    staged.fail(Fault::NotCharged);
    assert_eq!(status(&service).await, 200);
    assert_eq!(ask(&service, request(Method::DELETE, "/")).await.status(), 503);
    assert_eq!(meter.outcomes("closed"), counted(&[("failed_closed", 1.0)]));
    assert_eq!(meter.sum("tollgate_decisions_total", &["first", "failed_open"]), 1.0);
}

#[tokio::test]
async fn what_is_refused_did_not_fail_open() {
    let meter = Meter::start();
    let (_, store) = memory();
    let staged = Staged::new(store.clone());
    let open = || Limit::global(log("open", 9));
    let closed = log("closed", 9).with_on_store_error(OnStoreError::Closed);
    let service = limited(&staged, [open(), Limit::global(closed)]);
    staged.fail(Fault::NotCharged);
    assert_eq!(status(&service).await, 503);
    assert_eq!(meter.outcomes("closed"), counted(&[("failed_closed", 1.0)]));
    assert_eq!(meter.outcomes("open"), []);

    // Nor where the store in the process denies it.
    let local = log("local", 1).with_on_store_error(OnStoreError::Local);
    let service = limited(&Fallback::new(staged, store), [open(), Limit::global(local)]);
    for expected in [200, 429] {
        assert_eq!(status(&service).await, expected);
    }
    assert_eq!(meter.outcomes("local"), counted(&[("deny", 1.0), ("local", 1.0)]));
    assert_eq!(meter.outcomes("open"), counted(&[("failed_open", 1.0)]));
}

#[tokio::test]
async fn a_penalty_charges_no_units() {
    let meter = Meter::start();
    let (_, store) = memory();
    let minute = Duration::from_secs(60);
    let client = Limit::new(log("client", 2), ClientIp::peer());
    let banned = client.penalty("banned", Strikes::of_denials(9, minute).block(minute)).unwrap();
    let service = limited(&store, [client, banned]);
    for expected in [200, 200, 429] {
        assert_eq!(status(&service).await, expected);
    }
    assert_eq!(meter.outcomes("banned"), counted(&[("allow", 2.0)]));
    assert_eq!(meter.sum("tollgate_units_charged_total", &["policy=\"client\""]), 2.0);
    assert_eq!(meter.sum("tollgate_units_charged_total", &["policy=\"banned\""]), 0.0);
}

#[tokio::test]
async fn what_the_local_store_lets_pass_counts_as_local() {
    let meter = Meter::start();
    let (_, store) = memory();
    let staged = Staged::new(store.clone());
    staged.fail(Fault::NotCharged);
    let policy = log("shared", 4).with_on_store_error(OnStoreError::Local);
    let service = limited(&Fallback::new(staged, store), [Limit::global(policy)]);
    for expected in [200, 200, 429] {
        assert_eq!(status(&service).await, expected);
    }
    assert_eq!(meter.outcomes("shared"), counted(&[("deny", 1.0), ("local", 2.0)]));
    let of_local = ["policy=\"shared\"", "store=\"local\""];
    assert_eq!(meter.sum("tollgate_decision_duration_seconds_count", &of_local), 3.0);
}

#[tokio::test]
async fn clients_are_told_apart_by_kind_and_endpoints_by_route() {
    let meter = Meter::start();
    let (_, store) = memory();
    let chain = ApiKey::in_x_api_key().trust_unverified().or(ClientIp::peer());
    let service = limited(&store, [Limit::new(log("each", 99), chain)]);
    let routed = |path: &str, route: Option<&str>| {
        let mut request = request(Method::GET, path);
        if let Some(route) = route {
            request.extensions_mut().insert(RoutePattern::new(route));
        }
        request
    };
    ask(&service, routed("/users/7", Some("/users/{id}"))).await;
    ask(&service, routed("/users/8", Some("/users/{id}"))).await;
    let mut with_key = routed("/secret/path", None);
    with_key.headers_mut().insert("x-api-key", "sk_live_ossifrage".parse().unwrap());
    ask(&service, with_key).await;
    for (client, endpoint, expected) in
        [("ip", "/users/{id}", 2.0), ("api_key", "other", 1.0), ("ip", "other", 0.0)]
    {
        let labels = [format!("client=\"{client}\""), format!("endpoint=\"{endpoint}\"")];
        let count = meter.sum("tollgate_decisions_total", &[&labels[0], &labels[1]]);
        assert_eq!(count, expected, "{client} {endpoint}");
    }
    let named = builder(&store, [Limit::global(log("named", 9))]).endpoint("list-items");
    let named = named.build().unwrap().layer(hello());
    ask(&named, routed("/users/9", Some("/users/{id}"))).await;
    assert_eq!(meter.sum("tollgate_decisions_total", &["named", "list-items", "allow"]), 1.0);
}

#[tokio::test]
async fn a_flood_of_clients_adds_no_series() {
    let meter = Meter::start();
    let (_, store) = memory();
    let ip = from_fn(|head| head.extensions.get::<Ipv4Addr>().map(Ipv4Addr::octets));
    let limit = || {
        let limit = Limit::new(log("flood", 1), ip);
        limit.on_missing_key(tollgate::OnMissingKey::Deny)
    };
    let observer = Observer::with_endpoints(10);
    let layer = builder(&store, [limit()]).observer(&observer).build().unwrap();
    let service = layer.layer(hello());
    let mut series = BTreeSet::new();
    for n in 0..100_000_u32 {
        let mut request = request(Method::GET, &format!("/path/{n}"));
        request.extensions_mut().insert(Ipv4Addr::from_bits(n));
        // A router that is not careful, with a pattern for each path.
        request.extensions_mut().insert(RoutePattern::new(format!("/path/{n}")));
        ask(&service, request).await;
        if n == 1_000 || n == 99_999 {
            series.insert(meter.series().len());
        }
    }
    assert_eq!(meter.outcomes("flood"), counted(&[("allow", 100_000.0)]));
    // Ten endpoints and `other`, each with six outcomes and its units; the summary of the
    // times; no client among them.
    let count = series.pop_first().unwrap();
    assert!(series.is_empty() && (77..100).contains(&count), "{count} and {series:?}");
}

#[tokio::test(start_paused = true)]
async fn the_queue_is_measured_while_requests_wait_in_it() {
    let meter = Meter::start();
    let store = on_tokio_time();
    let queue = Policy::leaky_bucket("queue", Quota::per_second(1).burst(3)).unwrap();
    let service = limited(&store, [Limit::global(queue)]);
    assert_eq!(status(&service).await, 200);
    let waiting = tokio::spawn({
        let service = service.clone();
        async move { status(&service).await }
    });
    let leaving = tokio::spawn({
        let service = service.clone();
        async move { status(&service).await }
    });
    tokio::task::yield_now().await;
    assert_eq!(meter.sum("tollgate_waiting_requests", &["policy=\"queue\""]), 2.0);
    leaving.abort();
    assert!(leaving.await.is_err());
    assert_eq!(meter.sum("tollgate_waiting_requests", &[]), 1.0);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(waiting.await.unwrap(), 200);
    assert_eq!(meter.sum("tollgate_waiting_requests", &[]), 0.0);
    assert_eq!(meter.sum("tollgate_wait_seconds_count", &[]), 2.0);
}

#[tokio::test(start_paused = true)]
async fn an_excess_that_waits_is_measured_and_decided_once() {
    let meter = Meter::start();
    let quota = Quota::every(Duration::from_secs(10));
    let policy = Policy::sliding_window_log("patient", quota).unwrap();
    let excess = tollgate::Excess::Wait { max: Duration::from_secs(60) };
    let service = limited(&on_tokio_time(), [Limit::global(policy).excess(excess)]);
    let tasks: Vec<_> = (0..3)
        .map(|_| {
            let service = service.clone();
            tokio::spawn(async move { status(&service).await })
        })
        .collect();
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert_eq!(meter.sum("tollgate_waiting_requests", &["policy=\"patient\""]), 2.0);
    for task in tasks {
        assert_eq!(task.await.unwrap(), 200);
    }
    assert_eq!(meter.sum("tollgate_waiting_requests", &[]), 0.0);
    assert_eq!(meter.sum("tollgate_wait_seconds_count", &[]), 2.0);
    // The denials before were no decisions, and the waits are no time of the store.
    assert_eq!(meter.outcomes("patient"), counted(&[("allow", 3.0)]));
    assert_eq!(meter.sum("tollgate_decision_duration_seconds_count", &[]), 1.0);
}

#[tokio::test]
async fn gauges_are_true_when_nobody_asks() {
    let meter = Meter::start();
    let (clock, store) = memory();
    let staged = Staged::new(store.clone());
    let store =
        Fallback::new(Breaker::with(Watched(staged.clone()), 1, Duration::from_secs(3600)), store);
    let limits = [Limit::global(log("shared", 10)), Limit::new(log("ip", 9), ClientIp::peer())];
    let layer = layer(&store, limits);
    let service = layer.clone().layer(hello());
    ask(&service, get()).await;
    let remaining = || meter.sum("tollgate_remaining_units", &["policy=\"shared\""]);
    assert_eq!((remaining(), meter.sum("tollgate_limit_units", &[])), (9.0, 10.0));
    clock.advance(seconds(60));
    let handles = [layer.handle(), layer.handle()];
    refresh(&handles).await;
    assert_eq!(remaining(), 10.0);
    assert_eq!(meter.sum("tollgate_store_available", &["store=\"stage\""]), 1.0);
    assert_eq!(meter.sum("tollgate_breaker_open", &[]), 0.0);
    assert_eq!(meter.sum("tollgate_memory_keys", &["store=\"local\""]), 2.0);
    staged.fail(Fault::NotCharged);
    refresh(&handles).await;
    refresh(&handles).await;
    assert_eq!(meter.sum("tollgate_store_available", &["store=\"stage\""]), 0.0);
    assert_eq!(meter.sum("tollgate_breaker_open", &["store=\"stage\""]), 1.0);
    assert_eq!(remaining(), 10.0, "what nobody can tell stays");
}

/// A staged store that says what it is.
#[derive(Clone)]
struct Watched<S>(Staged<S>);

impl<S: tollgate::Store> tollgate::Store for Watched<S> {
    type Future<T: Send + 'static> = <Staged<S> as tollgate::Store>::Future<T>;

    fn decide(&self, charges: &[tollgate::Charge<'_>]) -> Self::Future<tollgate::Verdict> {
        self.0.decide(charges)
    }

    fn settle(
        &self,
        receipt: &tollgate::Receipt,
        actual: tollgate::Cost,
    ) -> Self::Future<tollgate::Settlement> {
        self.0.settle(receipt, actual)
    }

    fn renew(&self, receipt: &tollgate::Receipt) -> Self::Future<Option<tollgate::Receipt>> {
        self.0.renew(receipt)
    }

    fn reset(&self, policy: &Policy, key: &tollgate::Key) -> Self::Future<()> {
        self.0.reset(policy, key)
    }

    fn name(&self) -> &'static str {
        "stage"
    }
}

impl<S: tollgate::Store> Inspect for Watched<S> {
    fn inspect(&self) -> tollgate::status::StoreReport {
        tollgate::status::StoreReport::new("stage", 0)
    }
}

#[tokio::test]
async fn layers_that_share_an_observer_count_together() {
    let meter = Meter::start();
    let observer = Observer::new();
    let new = || {
        let layer = RateLimitLayer::builder(MemoryStore::new()).observer(&observer);
        layer.limit(Limit::global(log("same", 1))).build().unwrap().layer(hello())
    };
    for _ in 0..3 {
        assert_eq!(status(&new()).await, 200);
    }
    assert_eq!(meter.outcomes("same"), counted(&[("allow", 3.0)]));
    assert!(format!("{observer:?}").contains("same"));
    let _ = Arc::new(observer);
}

#[tokio::test(start_paused = true)]
async fn every_series_is_documented_with_its_labels() {
    let meter = Meter::start();
    let store = on_tokio_time();
    let queue = Policy::leaky_bucket("queue", Quota::per_second(9).burst(3)).unwrap();
    let store = Fallback::new(Breaker::new(store.clone()), store);
    let layer = layer(&store, [Limit::global(queue)]);
    let service = layer.clone().layer(hello());
    for _ in 0..3 {
        status(&service).await;
    }
    let lists = Lists::new().addresses_by(ClientIp::peer());
    lists.replace(&"192.0.2.1".parse().unwrap(), &SubjectList::new()).unwrap();
    assert_eq!(lists.find(&Head::of(&get())).unwrap(), Listed::Denied);
    refresh(&[layer.handle()]).await;
    let mut found = BTreeSet::new();
    for series in meter.series().into_keys() {
        let (name, labels) = series.split_once('{').unwrap_or((&series, ""));
        let documented = ALL.iter().find(|metric| match metric.kind {
            MetricKind::Histogram => {
                let rest = name.strip_prefix(metric.name);
                rest.is_some_and(|rest| ["", "_sum", "_count", "_bucket"].contains(&rest))
            }
            _ => name == metric.name,
        });
        let metric = documented.unwrap_or_else(|| panic!("{series} is not documented"));
        found.insert(metric.name);
        let labels = labels.trim_end_matches('}').split("\",");
        let labels = labels.filter_map(|label| Some(label.split_once('=')?.0));
        for label in labels.filter(|label| *label != "quantile" && *label != "le") {
            assert!(metric.labels.contains(&label), "{series}: {label}");
        }
    }
    // Those of Redis and of the gateway are tested where they are counted.
    let places = ["_redis_", "_config_", "_jwks_", "_gateway_", "_trace_"];
    let elsewhere = |name: &str| places.iter().any(|place| name.contains(place));
    for metric in ALL.iter().filter(|metric| !elsewhere(metric.name)) {
        assert!(found.contains(metric.name), "{} is never counted", metric.name);
    }
}

#[test]
fn names_follow_the_conventions_of_prometheus() {
    let mut names = BTreeSet::new();
    for metric in ALL {
        let name = metric.name;
        assert!(names.insert(name), "{name} twice");
        assert!(name.starts_with("tollgate_"), "{name}");
        assert_eq!(name.ends_with("_total"), metric.kind == MetricKind::Counter, "{name}");
        assert_eq!(metric.kind == MetricKind::Histogram, !metric.buckets.is_empty(), "{name}");
        assert!(metric.buckets.is_sorted_by(|a, b| a < b), "{name}");
        for label in metric.labels {
            assert!(!["key", "path", "user", "ip", "subject"].contains(label), "{name}: {label}");
        }
    }
}

/// To write it anew: `TOLLGATE_BLESS=1 cargo test -p tollgate --all-features metrics`.
#[test]
fn the_documentation_has_the_table_of_the_code() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
    let text = std::fs::read_to_string(file).unwrap();
    let start = text.find("| metric |").expect("a table");
    let end = start + text[start..].find("\n\n").map_or(text.len() - start, |end| end + 1);
    if std::env::var_os("TOLLGATE_BLESS").is_some_and(|bless| bless == "1") {
        std::fs::write(file, format!("{}{}{}", &text[..start], table(), &text[end..])).unwrap();
        return;
    }
    assert_eq!(&text[start..end], table(), "see the comment of this test");
}

#[tokio::test]
async fn requests_that_the_layer_lets_alone_count_nothing() {
    let meter = Meter::start();
    let (_, store) = memory();
    let service = limited(&store, [Limit::global(log("some", 1)).when(|_| false)]);
    assert_eq!(status(&service).await, 200);
    let preflight = Request::builder()
        .method("OPTIONS")
        .header("origin", "https://a.example")
        .header("access-control-request-method", "PUT");
    ask(&service, preflight.body(()).unwrap()).await;
    assert_eq!(meter.series().len(), 0);
}
