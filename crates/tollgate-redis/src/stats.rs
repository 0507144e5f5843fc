//! A store's counters.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;

use crate::calls::failure::Failure;

/// The counters of a [`RedisStore`](crate::RedisStore) since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedisStats {
    /// The calls to Redis.
    pub calls: u64,
    /// The requests in those calls. Divided by `calls`, this is the average number of requests per
    /// call.
    pub requests: u64,
    /// The calls that Redis rejected without charging. They include calls that a Cluster redirected
    /// to another node.
    pub refused: u64,
    /// The calls with a lost answer, which may have charged.
    pub lost: u64,
    /// The requests that Redis did not execute because their deadline had passed.
    pub late: u64,
    /// The requests that the store rejected before sending them, because they could not have been
    /// answered before their deadline.
    pub shed: u64,
    /// The requests that the store denied from its deny cache.
    pub deny_cache_hits: u64,
    /// The requests that the store answered from leased units, without a call.
    pub leased: u64,
    /// The requests that currently wait for a call.
    pub queued: u64,
    /// The number of connections made.
    pub connections: u64,
    /// The number of stores that share the quotas and have a local fallback, including this store.
    /// Zero before Redis has counted them, and without a fallback.
    pub replicas: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    calls: AtomicU64,
    requests: AtomicU64,
    refused: AtomicU64,
    lost: AtomicU64,
    late: AtomicU64,
    shed: AtomicU64,
    deny_cache_hits: AtomicU64,
    leased: AtomicU64,
    connections: AtomicU64,
}

impl Counters {
    /// Counts a call, and reports its size and duration to the metrics recorder.
    pub(crate) fn count_call(
        &self,
        requests: usize,
        took: Duration,
        outcome: &Result<Bytes, Failure>,
    ) {
        add(&self.calls, 1);
        add(&self.requests, requests as u64);
        let word = match outcome {
            Ok(_) => "answered",
            Err(Failure::Refused(_)) => {
                add(&self.refused, 1);
                "refused"
            }
            Err(Failure::Lost(_)) => {
                add(&self.lost, 1);
                "lost"
            }
        };
        #[cfg(feature = "metrics")]
        {
            metrics::counter!(CALLS, "outcome" => word).increment(1);
            #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
            metrics::histogram!("tollgate_redis_batch_requests").record(requests as f64);
            metrics::histogram!("tollgate_redis_call_duration_seconds").record(took);
        }
        #[cfg(not(feature = "metrics"))]
        let _ = (word, took);
    }

    pub(crate) fn count_late(&self) {
        add(&self.late, 1);
        report(LATE, 1);
    }

    pub(crate) fn count_shed(&self) {
        add(&self.shed, 1);
        report(SHED, 1);
    }

    pub(crate) fn count_deny_cache_hit(&self) {
        add(&self.deny_cache_hits, 1);
        // With a literal, the recorder's key is static.
        #[cfg(feature = "metrics")]
        metrics::counter!("tollgate_redis_deny_cache_hits_total").increment(1);
    }

    pub(crate) fn count_leased(&self) {
        add(&self.leased, 1);
    }

    /// Also registers all counters at zero, because a counter that first appears at its first event
    /// has no rate for that event.
    pub(crate) fn count_connection(&self) {
        add(&self.connections, 1);
        report("tollgate_redis_connections_total", 1);
        #[cfg(feature = "metrics")]
        for outcome in ["answered", "refused", "lost"] {
            metrics::counter!(CALLS, "outcome" => outcome).increment(0);
        }
        for counter in [LATE, SHED, "tollgate_redis_deny_cache_hits_total"] {
            report(counter, 0);
        }
    }

    pub(crate) fn read(&self, queued: usize, replicas: Option<NonZeroU32>) -> RedisStats {
        RedisStats {
            calls: self.calls.load(Ordering::Relaxed),
            requests: self.requests.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
            late: self.late.load(Ordering::Relaxed),
            shed: self.shed.load(Ordering::Relaxed),
            deny_cache_hits: self.deny_cache_hits.load(Ordering::Relaxed),
            leased: self.leased.load(Ordering::Relaxed),
            queued: queued as u64,
            connections: self.connections.load(Ordering::Relaxed),
            replicas: replicas.map_or(0, NonZeroU32::get).into(),
        }
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// Reports to the process's metrics recorder, which sums over all stores.
#[cfg_attr(not(feature = "metrics"), expect(unused_variables, reason = "nothing is reported"))]
fn report(counter: &'static str, count: u64) {
    #[cfg(feature = "metrics")]
    metrics::counter!(counter).increment(count);
}

#[cfg(feature = "metrics")]
const CALLS: &str = "tollgate_redis_calls_total";
const LATE: &str = "tollgate_redis_late_requests_total";
const SHED: &str = "tollgate_redis_shed_requests_total";
