//! What a store has done so far.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use crate::failure::Failure;

/// What a [`RedisStore`](crate::RedisStore) has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedisStats {
    /// Calls to Redis.
    pub calls: u64,
    /// Requests in those calls: divided by `calls` it is how many share one.
    pub requests: u64,
    /// Calls that Redis refused: nothing was charged. Those that a Cluster sent to another
    /// node are among them.
    pub refused: u64,
    /// Calls whose answer was lost: they may have charged.
    pub lost: u64,
    /// Requests that Redis refused because their caller had given up by then.
    pub late: u64,
    /// Requests denied without asking, as they had just been.
    pub deny_cache_hits: u64,
    /// Requests that wait for a call at this moment.
    pub queued: u64,
    /// Times that a connection was made.
    pub connections: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    calls: AtomicU64,
    requests: AtomicU64,
    refused: AtomicU64,
    lost: AtomicU64,
    late: AtomicU64,
    deny_cache_hits: AtomicU64,
    connections: AtomicU64,
}

impl Counters {
    pub(crate) fn count_call(&self, requests: usize, outcome: &Result<Bytes, Failure>) {
        add(&self.calls, 1);
        add(&self.requests, requests as u64);
        match outcome {
            Ok(_) => {}
            Err(Failure::Refused(_)) => add(&self.refused, 1),
            Err(Failure::Lost(_)) => add(&self.lost, 1),
        }
    }

    pub(crate) fn count_late(&self) {
        add(&self.late, 1);
    }

    pub(crate) fn count_deny_cache_hit(&self) {
        add(&self.deny_cache_hits, 1);
    }

    pub(crate) fn count_connection(&self) {
        add(&self.connections, 1);
    }

    pub(crate) fn read(&self, queued: usize) -> RedisStats {
        RedisStats {
            calls: self.calls.load(Ordering::Relaxed),
            requests: self.requests.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
            late: self.late.load(Ordering::Relaxed),
            deny_cache_hits: self.deny_cache_hits.load(Ordering::Relaxed),
            queued: queued as u64,
            connections: self.connections.load(Ordering::Relaxed),
        }
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}
