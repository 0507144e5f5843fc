//! Events that any request could cause.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Reports at most once a minute, because every request may fail the same way.
#[derive(Debug, Default)]
pub(crate) struct QuietLog(Mutex<Option<Instant>>);

impl QuietLog {
    const PAUSE: Duration = Duration::from_secs(60);

    pub(crate) fn report(&self, log: impl FnOnce()) {
        let mut logged = self.0.lock();
        if logged.is_none_or(|at| at.elapsed() >= Self::PAUSE) {
            *logged = Some(Instant::now());
            log();
        }
    }
}
