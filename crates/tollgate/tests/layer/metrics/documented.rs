//! Compares the metrics with their descriptions.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderValue, StatusCode};
use tollgate::access::{AccessLists, Listed, SubjectList};
use tollgate::feedback::Feedback;
use tollgate::key::{ClientIp, Key, RequestHead};
use tollgate::observe::{METRICS, MetricKind, refresh};
use tollgate::{Limit, Limiter, Policy, Quota, StoreExt};
use tower::Layer;

use super::Meter;
use crate::support::*;

#[tokio::test(start_paused = true)]
async fn every_series_is_documented_with_its_labels() {
    let meter = Meter::start();
    let store = on_tokio_time();
    let queue = Policy::leaky_bucket("queue", Quota::per_second(9).burst(3)).unwrap();
    let store = store.clone().or_local(store);
    let layer = layer(&store, [Limit::global(queue)]);
    let service = layer.clone().layer(hello());
    for _ in 0..3 {
        status(&service).await;
    }
    let lists = AccessLists::new().addresses_by(ClientIp::peer());
    lists.replace(&"192.0.2.1".parse().unwrap(), &SubjectList::new()).unwrap();
    assert_eq!(lists.find(&RequestHead::of(&get())).unwrap(), Listed::Blocked);
    let minute = Duration::from_secs(60);
    let policy = Policy::token_bucket("partner", Quota::per_minute(9)).unwrap();
    let limiter =
        Limiter::builder(on_tokio_time()).policy(policy).pausable(minute).build().unwrap();
    let permit = limiter.acquire(&Key::from("account"), 1).await.unwrap();
    let headers = [("x-ratelimit-limit", "9"), ("x-ratelimit-remaining", "0")];
    let headers =
        headers.map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)));
    let headers = HeaderMap::from_iter(headers);
    let denial = Feedback::read(StatusCode::TOO_MANY_REQUESTS, &headers, SystemTime::UNIX_EPOCH);
    permit.learn(&denial).await.unwrap();
    refresh(&[layer.handle(), limiter.handle()]).await;
    let mut found = BTreeSet::new();
    for series in meter.series().into_keys() {
        let (name, labels) = series.split_once('{').unwrap_or((&series, ""));
        let documented = METRICS.iter().find(|metric| match metric.kind {
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
    // The Redis store's own tests cover its metrics.
    let places = ["_redis_", "_breaker_"];
    let elsewhere = |name: &str| places.iter().any(|place| name.contains(place));
    for metric in METRICS.iter().filter(|metric| !elsewhere(metric.name)) {
        assert!(found.contains(metric.name), "{} is never counted", metric.name);
    }
}
