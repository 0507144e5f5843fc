//! Logs upstream failures with few lines, no matter how many requests fail.

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Logs upstream failures. Clones share the state.
///
/// There is a line when an upstream starts to fail, another when it answers again, and with every
/// [`tell`](Self::tell) a count of the failures since the last line. A flapping upstream logs its
/// start at most once in ten seconds. Further failures are only counted.
#[derive(Clone, Debug, Default)]
pub struct Failures {
    upstreams: Arc<Mutex<HashMap<String, Arc<Health>>>>,
}

#[derive(Debug)]
pub(super) struct Health {
    upstream: String,
    /// Whether the last logged change is a failure. Each response reads this without the lock.
    fails: AtomicBool,
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Told {
    began: Option<Instant>,
    counts: BTreeMap<&'static str, u64>,
}

impl Failures {
    /// An upstream's state, which all its routes share.
    pub(super) fn of(&self, upstream: &str) -> Arc<Health> {
        let mut upstreams = self.upstreams.lock();
        let health = upstreams.entry(upstream.to_owned()).or_insert_with_key(|upstream| {
            let upstream = upstream.clone();
            Arc::new(Health { upstream, fails: AtomicBool::new(false), told: Mutex::default() })
        });
        Arc::clone(health)
    }

    pub fn tell(&self, passed: Duration) {
        self.upstreams.lock().retain(|upstream, health| {
            let counts = std::mem::take(&mut health.told.lock().counts);
            if !counts.is_empty() {
                let seconds = passed.as_secs_f64().round().max(1.0);
                tracing::warn!(%upstream, "{} failed in the last {seconds} s", Counts(&counts));
            }
            // The other upstreams have no routes any more.
            Arc::strong_count(health) > 1
        });
    }
}

impl Health {
    pub(super) fn failed(
        &self,
        code: &'static str,
        what: &dyn fmt::Display,
        error: Option<&(dyn Error + 'static)>,
    ) {
        let mut told = self.told.lock();
        let is_recent = told.began.is_some_and(|began| began.elapsed() < PERIOD);
        if is_recent || self.fails.load(Ordering::Relaxed) {
            *told.counts.entry(code).or_default() += 1;
            return;
        }
        told.began = Some(Instant::now());
        self.fails.store(true, Ordering::Relaxed);
        tracing::warn!(upstream = %self.upstream, code, error, "{what}");
    }

    pub(super) fn answered(&self) {
        if !self.fails.load(Ordering::Relaxed) {
            return;
        }
        let mut told = self.told.lock();
        if !self.fails.swap(false, Ordering::Relaxed) {
            return;
        }
        let counts = std::mem::take(&mut told.counts);
        let upstream = &self.upstream;
        if counts.is_empty() {
            tracing::info!(%upstream, "the upstream answers again");
        } else {
            tracing::info!(%upstream, "the upstream answers again; {} failed", Counts(&counts));
        }
    }
}

/// Formats as `9700 more requests (upstream-timeout 3, upstream-unreachable 9697)`.
struct Counts<'a>(&'a BTreeMap<&'static str, u64>);

impl fmt::Display for Counts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: u64 = self.0.values().sum();
        write!(f, "{all} more request{} (", if all == 1 { "" } else { "s" })?;
        for (index, (code, count)) in self.0.iter().enumerate() {
            write!(f, "{}{code} {count}", if index == 0 { "" } else { ", " })?;
        }
        f.write_str(")")
    }
}

const PERIOD: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::io;

    use tracing_subscriber::fmt::MakeWriter;

    use super::*;

    /// Collects the log.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Log {
        /// The lines since the last call.
        fn lines(&self) -> Vec<String> {
            let text = String::from_utf8(std::mem::take(&mut *self.0.lock())).unwrap();
            text.lines().map(|line| line.trim().to_owned()).collect()
        }
    }

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Log {
        type Writer = Self;

        fn make_writer(&self) -> Self {
            self.clone()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn flapping_upstream_logs_few_lines() {
        let log = Log::default();
        let lines = tracing_subscriber::fmt().without_time().with_target(false).with_ansi(false);
        let _log = tracing::subscriber::set_default(lines.with_writer(log.clone()).finish());
        let failures = Failures::default();
        let health = failures.of("a:1");
        let fail = |count: usize| (0..count).for_each(|_| health.failed("timeout", &"late", None));

        fail(3);
        assert_eq!(log.lines(), [r#"WARN late upstream=a:1 code="timeout""#]);
        health.answered();
        let again =
            "INFO the upstream answers again; 2 more requests (timeout 2) failed upstream=a:1";
        assert_eq!(log.lines(), [again]);
        for _ in 0..100 {
            fail(1);
            health.answered();
        }
        assert_eq!(log.lines(), Vec::<String>::new());
        let passed = Duration::from_secs(10);
        failures.tell(passed);
        let count = "WARN 100 more requests (timeout 100) failed in the last 10 s upstream=a:1";
        assert_eq!(log.lines(), [count]);
        failures.tell(passed);
        assert_eq!(log.lines(), Vec::<String>::new());

        tokio::time::advance(passed).await;
        fail(1);
        health.answered();
        let lines = log.lines();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].starts_with("WARN late") && lines[1].contains("again"), "{lines:?}");
    }

    #[test]
    fn unused_upstreams_are_forgotten() {
        let failures = Failures::default();
        let health = failures.of("a:1");
        let same = failures.of("a:1");
        assert!(Arc::ptr_eq(&health, &same));
        drop(health);
        failures.tell(PERIOD);
        assert_eq!(failures.upstreams.lock().len(), 1);
        drop(same);
        failures.tell(PERIOD);
        assert_eq!(failures.upstreams.lock().len(), 0);
    }
}
