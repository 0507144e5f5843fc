//! One server's breaker, and the probes that close it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tollgate_core::{Micros, StoreError, Timestamp};

use crate::calls::failure::STORE;
use crate::client::breaker::{Breaker, BreakerState};

/// Fails requests early while a server does not answer, so they do not each wait for the timeout.
#[derive(Debug)]
pub(crate) struct NodeBreaker {
    /// `None` if calls are always sent.
    breaker: Option<Mutex<Breaker>>,
    /// The breaker's state without its lock, read for each request.
    is_open: AtomicBool,
    /// Time zero of the breaker.
    origin: Instant,
    lines: Mutex<LogLines>,
}

/// The number of log lines written and omitted since an instant.
#[derive(Debug, Default)]
struct LogLines {
    since: Option<Instant>,
    written: u32,
    left_out: u32,
}

/// The maximum number of log lines per interval, in case the server flaps.
const MOST_LINES: u32 = 4;
const INTERVAL: Duration = Duration::from_secs(60);

impl NodeBreaker {
    pub(crate) fn new(timeout: Duration, has_breaker: bool) -> Self {
        let breaker = has_breaker.then(|| Mutex::new(Breaker::new(micros(timeout))));
        let lines = Mutex::default();
        Self { breaker, is_open: AtomicBool::new(false), origin: Instant::now(), lines }
    }

    /// Logs a change, unless there were too many lines.
    fn log(&self, took: Option<Duration>, line: &str) {
        let mut lines = self.lines.lock();
        if lines.since.is_none_or(|since| since.elapsed() >= INTERVAL) {
            let left_out = lines.left_out;
            *lines = LogLines { since: Some(Instant::now()), written: 0, left_out };
        }
        if lines.written == MOST_LINES {
            lines.left_out += 1;
            return;
        }
        lines.written += 1;
        let left_out = std::mem::take(&mut lines.left_out);
        drop(lines);
        tracing::warn!(target: "tollgate", ?took, left_out, "{line}");
    }

    /// Whether requests fail without being sent.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    pub(crate) fn state(&self) -> BreakerState {
        self.breaker.as_ref().map_or(BreakerState::Closed, |breaker| breaker.lock().state())
    }

    /// Returns the error for requests that are not sent. `None` if they are sent.
    pub(crate) fn refusal(&self) -> Option<StoreError> {
        let breaker = self.breaker.as_ref()?.lock();
        let error = match breaker.state() {
            BreakerState::Closed => return None,
            BreakerState::Slow => StoreError::overloaded(STORE, "the server answers too late"),
            BreakerState::Down => StoreError::not_charged(STORE, "the server does not answer"),
        };
        Some(error.with_retry_after(breaker.next_probe(self.now())))
    }

    /// Records a call's outcome. Returns whether to start probing.
    pub(crate) fn learn(&self, is_answered: bool) -> bool {
        let Some(breaker) = &self.breaker else { return false };
        let mut breaker = breaker.lock();
        if is_answered {
            breaker.answered(self.now());
            return false;
        }
        let opens = breaker.lost(self.now());
        drop(breaker);
        if opens {
            self.is_open.store(true, Ordering::Relaxed);
            self.log(
                None,
                "redis does not answer, so requests fail immediately until it does (breaker open)",
            );
        }
        opens
    }

    /// Returns the time until the next probe, and how long to wait for its answer. `None` while the
    /// breaker is closed.
    pub(crate) fn next_probe(&self) -> Option<(Duration, Duration)> {
        let breaker = self.breaker.as_ref()?.lock();
        let span = |micros: Micros| Duration::from_micros(micros.get());
        let (wait, patience) = (breaker.next_probe(self.now()), breaker.patience());
        breaker.state().is_open().then(|| (span(wait), span(patience)))
    }

    pub(crate) fn probed(&self, took: Option<Duration>) {
        let Some(breaker) = &self.breaker else { return };
        let mut breaker = breaker.lock();
        let change = breaker.probed(took.map(micros), self.now());
        self.is_open.store(breaker.state().is_open(), Ordering::Relaxed);
        drop(breaker);
        let line = match change {
            Some(BreakerState::Closed) => "redis answers in time again (breaker closed)",
            Some(BreakerState::Slow) => {
                "redis answers, but after the timeout: requests are shed until it answers in time"
            }
            Some(BreakerState::Down) => "redis has stopped answering",
            None => return,
        };
        self.log(took, line);
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_micros(micros(self.origin.elapsed()).get())
    }
}

fn micros(span: Duration) -> Micros {
    Micros::new(u64::try_from(span.as_micros()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;
    use std::sync::Arc;

    use tokio::time::advance;
    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    /// The number of omitted lines in each log line.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u64>>>);

    impl Subscriber for Lines {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.is_event()
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn event(&self, event: &Event<'_>) {
            event.record(&mut self.clone());
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    impl Visit for Lines {
        fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}

        fn record_u64(&mut self, field: &Field, value: u64) {
            if field.name() == "left_out" {
                self.0.lock().push(value);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn flapping_server_logs_four_lines_a_minute() {
        let lines = Lines::default();
        let _logs = tracing::subscriber::set_default(lines.clone());
        let breaker = NodeBreaker::new(Duration::from_millis(50), true);
        // The breaker opens and closes, which are two changes.
        let flap = || {
            assert!((0..10).any(|_| breaker.learn(false)));
            breaker.probed(Some(Duration::ZERO));
            assert!(!breaker.is_open());
        };
        (0..5).for_each(|_| flap());
        assert_eq!(*lines.0.lock(), [0; 4]);
        advance(Duration::from_secs(59)).await;
        flap();
        assert_eq!(lines.0.lock().len(), 4);
        advance(Duration::from_secs(1)).await;
        flap();
        assert_eq!(*lines.0.lock(), [0, 0, 0, 0, 8, 0]);
    }
}
