//! A request in a queue.

use std::sync::Arc;
use std::time::Instant;

use super::ObservedPolicy;

/// Counts a request as waiting until it is dropped.
#[derive(Debug)]
pub(crate) struct Waiting {
    policy: Arc<ObservedPolicy>,
    since: Instant,
}

impl Waiting {
    pub(crate) fn new(policy: Arc<ObservedPolicy>) -> Self {
        policy.waits().requests.increment(1.0);
        Self { policy, since: Instant::now() }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let waits = self.policy.waits();
        waits.requests.decrement(1.0);
        waits.seconds.record(self.since.elapsed());
    }
}
