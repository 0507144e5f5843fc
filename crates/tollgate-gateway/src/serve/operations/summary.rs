//! Denials and failures in the log: at most one line every ten seconds for each policy and each
//! upstream.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use metrics::counter;
use parking_lot::Mutex;
use tokio::time::{Instant, interval};
use tollgate_config::check::Count;

use tollgate::observe::{Denials, Observer};

use crate::serve::decide::token_limit;
use tollgate_proxy::Failures;

#[derive(Clone)]
pub(crate) struct Summary {
    observer: Observer,
    failures: Failures,
    unknown: Arc<AtomicU64>,
    not_verified: Arc<AtomicU64>,
    /// The number of invalid request heads, and what is wrong with the last.
    invalid_heads: Arc<Mutex<(u64, String)>>,
    /// Denied requests and requests that a shadow rule would have denied, for each policy of the
    /// Rate Limit Service.
    rate_limits: Arc<Mutex<BTreeMap<String, [u64; 2]>>>,
    told: Arc<Mutex<Told>>,
}

struct Told {
    at: Instant,
    denials: HashMap<String, Denials>,
}

pub(crate) const INVALID_HEADS: &str = "tollgate_gateway_invalid_heads_total";

impl Summary {
    pub(crate) fn new(observer: Observer, failures: Failures) -> Self {
        let told = Told { at: Instant::now(), denials: HashMap::new() };
        Self {
            observer,
            failures,
            unknown: Arc::default(),
            not_verified: Arc::default(),
            invalid_heads: Arc::default(),
            rate_limits: Arc::default(),
            told: Arc::new(Mutex::new(told)),
        }
    }

    pub(crate) fn unknown_client(&self) {
        self.unknown.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that a Rate Limit Service policy denied or would have denied.
    pub(crate) fn rate_limit(&self, policy: &str, is_enforced: bool) {
        let mut policies = self.rate_limits.lock();
        // Requests' own limits have the rules' names, so there are at most seven for each domain.
        let counts = match policies.get_mut(policy) {
            Some(counts) => counts,
            None => policies.entry(policy.to_owned()).or_default(),
        };
        counts[usize::from(!is_enforced)] += 1;
    }

    pub(crate) fn token_not_verified(&self) {
        self.not_verified.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn invalid_head(&self, client: IpAddr, reason: &hyper::Error) {
        counter!(INVALID_HEADS).increment(1);
        let mut heads = self.invalid_heads.lock();
        *heads = (heads.0 + 1, format!("{reason} from {}", client.to_canonical()));
    }

    pub(crate) async fn keep_telling(self) {
        let mut due = interval(PERIOD);
        loop {
            due.tick().await;
            self.tell();
        }
    }

    pub(crate) fn tell(&self) {
        let mut told = self.told.lock();
        let passed = told.at.elapsed();
        let unknown = self.unknown.swap(0, Ordering::Relaxed);
        if unknown > 0 {
            let seconds = seconds(passed);
            tracing::info!(
                target: "tollgate",
                "`identity` found no client in {} in the last {seconds} s", Count(unknown, "request")
            );
        }
        let not_verified = self.not_verified.swap(0, Ordering::Relaxed);
        if not_verified > 0 {
            let seconds = seconds(passed);
            tracing::info!(
                target: "tollgate",
                "denied {} under `{}` in the last {seconds} s: their addresses sent too many \
                 tokens that were refused",
                Count(not_verified, "request"), token_limit::NAME
            );
        }
        let (invalid, last) = std::mem::take(&mut *self.invalid_heads.lock());
        if invalid > 0 {
            let seconds = seconds(passed);
            tracing::info!(
                target: "tollgate",
                "rejected {} in the last {seconds} s; the last: {last}",
                Count(invalid, "invalid request head")
            );
        }
        for line in told.news(self.observer.denials(), passed) {
            tracing::info!(target: "tollgate", "{line}");
        }
        for (policy, counts) in std::mem::take(&mut *self.rate_limits.lock()) {
            let seconds = seconds(passed);
            for (what, count) in ["denied", "would have denied"].into_iter().zip(counts) {
                if count > 0 {
                    let requests = Count(count, "request");
                    tracing::info!(
                        target: "tollgate",
                        "{what} {requests} under `{policy}` of the Rate Limit Service in the last \
                         {seconds} s"
                    );
                }
            }
        }
        self.failures.tell(passed);
        told.at = Instant::now();
    }
}

impl Told {
    fn news(&mut self, now: Vec<Denials>, passed: Duration) -> Vec<String> {
        let seconds = seconds(passed);
        let mut lines = Vec::new();
        for denials in now {
            let policy = denials.policy.clone();
            let before = self.denials.insert(policy.clone(), denials.clone());
            let before = before.map(|it| [it.denied, it.shadow, it.failed_closed]);
            let before = before.unwrap_or_default();
            for (what, now, before) in [
                ("denied", denials.denied, before[0]),
                ("would have denied", denials.shadow, before[1]),
                ("could not decide and denied", denials.failed_closed, before[2]),
            ] {
                let count = now.saturating_sub(before);
                if count > 0 {
                    let requests = Count(count, "request");
                    lines.push(format!(
                        "{what} {requests} under `{policy}` in the last {seconds} s"
                    ));
                }
            }
        }
        lines
    }
}

fn seconds(passed: Duration) -> f64 {
    passed.as_secs_f64().round().max(1.0)
}

/// Short enough for an operator watching the log, and long enough to keep the log small.
const PERIOD: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::{Ready, ready};
    use std::task::{Context, Poll};

    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::Full;
    use tollgate::{Limit, MemoryStore, Policy, Quota, RateLimitLayer};
    use tower_layer::Layer;
    use tower_service::Service;

    use super::*;

    #[derive(Clone)]
    struct Hello;

    impl Service<Request<()>> for Hello {
        type Response = Response<Full<Bytes>>;
        type Error = Infallible;
        type Future = Ready<Result<Self::Response, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<()>) -> Self::Future {
            ready(Ok(Response::new(Full::default())))
        }
    }

    #[tokio::test]
    async fn only_changes_are_logged() {
        let observer = Observer::new();
        let policy =
            |name, limit| Policy::sliding_window_log(name, Quota::per_hour(limit)).unwrap();
        let layer = RateLimitLayer::builder(MemoryStore::new())
            .observer(&observer)
            .limit(Limit::global(policy("all", 2)))
            .limit(Limit::global(policy("trial", 1)).shadow())
            .build()
            .unwrap();
        let ask = async |count: usize| {
            for _ in 0..count {
                let mut service = layer.layer(Hello);
                std::future::poll_fn(|cx| service.poll_ready(cx)).await.unwrap();
                service.call(Request::new(())).await.unwrap();
            }
        };
        let mut told = Told { at: Instant::now(), denials: HashMap::new() };
        let mut news = || told.news(observer.denials(), Duration::from_millis(9_998));
        assert_eq!(news(), Vec::<String>::new());
        ask(5).await;
        assert_eq!(
            news(),
            [
                "denied 3 requests under `all` in the last 10 s",
                "would have denied 4 requests under `trial` in the last 10 s",
            ]
        );
        assert_eq!(news(), Vec::<String>::new());
    }
}
