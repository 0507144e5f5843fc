//! Logs store failures: few lines for any number of requests.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tollgate_core::StoreError;

/// Counts requests that the store could not decide.
///
/// It logs the first failure, then after every [`INTERVAL`] the number of requests that were
/// allowed without a limit, and then the first [`INTERVAL`] without a failure.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    is_on: AtomicBool,
    state: Mutex<Option<State>>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    logged_at: Instant,
    failed_at: Instant,
    passed: u64,
    refused: u64,
}

const INTERVAL: Duration = Duration::from_secs(10);

impl Outage {
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    #[cold]
    pub(crate) fn failed(&self, error: &StoreError, passes: bool) {
        let now = Instant::now();
        let mut outage = self.state.lock();
        let is_new = outage.is_none();
        let state =
            outage.get_or_insert(State { logged_at: now, failed_at: now, passed: 0, refused: 0 });
        state.failed_at = now;
        state.passed += u64::from(passes);
        state.refused += u64::from(!passes);
        let State { logged_at, passed, refused, .. } = *state;
        let is_due = now.duration_since(logged_at) >= INTERVAL;
        if is_due {
            state.logged_at = now;
        }
        drop(outage);
        self.is_on.store(true, Ordering::Relaxed);
        if is_new {
            tracing::warn!(target: "tollgate", %error, "the store cannot decide, policies fail");
        } else if is_due {
            tracing::warn!(
                target: "tollgate",
                %error,
                passed_unlimited = passed,
                refused,
                "the store still cannot decide some requests",
            );
        }
    }

    #[cold]
    pub(crate) fn decided(&self) {
        let now = Instant::now();
        let mut outage = self.state.lock();
        let is_over = |state: &mut State| now.duration_since(state.failed_at) >= INTERVAL;
        let Some(State { passed, refused, .. }) = outage.take_if(is_over) else { return };
        self.is_on.store(false, Ordering::Relaxed);
        drop(outage);
        tracing::warn!(
            target: "tollgate",
            passed_unlimited = passed,
            refused,
            "the store decides all requests again",
        );
    }
}
