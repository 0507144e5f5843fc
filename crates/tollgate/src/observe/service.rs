use std::time::{Duration, Instant};

use metrics::{Counter, Gauge, Label, counter, gauge};
use parking_lot::Mutex;

use super::metric::name;
use super::outcome::PauseSource;

/// The most recent numbers that a limiter's called service has sent about a policy's quota.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ServiceNumbers {
    /// The units that the service grants, if its response contains the number.
    pub limit: Option<u64>,
    /// The units that remained.
    pub remaining: u64,
    /// How long ago the response arrived.
    pub age: Duration,
}

/// A pause that this process has started.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CurrentPause {
    /// The remaining time.
    pub left: Duration,
    /// The header that named it. `None` if the service named no wait, or the program paused the key.
    pub header: Option<String>,
}

#[derive(Debug)]
pub(super) struct Service {
    limit: Gauge,
    remaining: Gauge,
    numbers: Mutex<Option<(Option<u64>, u64, Instant)>>,
}

impl Service {
    pub(super) fn new(policy: &Label) -> Self {
        Self {
            limit: gauge!(name::SERVICE_LIMIT, vec![policy.clone()]),
            remaining: gauge!(name::SERVICE_REMAINING, vec![policy.clone()]),
            numbers: Mutex::default(),
        }
    }

    pub(super) fn said(&self, limit: Option<u64>, remaining: u64) {
        #[expect(clippy::cast_precision_loss, reason = "limits are below 2^53")]
        let [shown_limit, shown] = [limit.unwrap_or_default(), remaining].map(|units| units as f64);
        if limit.is_some() {
            self.limit.set(shown_limit);
        }
        self.remaining.set(shown);
        *self.numbers.lock() = Some((limit, remaining, Instant::now()));
    }

    pub(super) fn numbers(&self) -> Option<ServiceNumbers> {
        let (limit, remaining, at) = (*self.numbers.lock())?;
        Some(ServiceNumbers { limit, remaining, age: at.elapsed() })
    }
}

/// A policy's pauses, for all keys.
#[derive(Debug)]
pub(super) struct Pauses {
    /// By their [source](PauseSource).
    started: [Counter; 3],
    /// The latest end, and this pause's header.
    longest: Mutex<Option<(Instant, Option<String>)>>,
}

impl Pauses {
    pub(super) fn new(policy: &Label) -> Self {
        let started = ["header", "unnamed", "program"].map(|source| {
            let labels = vec![policy.clone(), Label::from_static_parts("source", source)];
            counter!(name::PAUSES, labels)
        });
        Self { started, longest: Mutex::default() }
    }

    pub(super) fn start(&self, length: Duration, source: PauseSource<'_>) {
        let (source, header) = match source {
            PauseSource::Header(header) => (0, Some(header.to_owned())),
            PauseSource::Unnamed => (1, None),
            PauseSource::Program => (2, None),
        };
        self.started[source].increment(1);
        let Some(until) = Instant::now().checked_add(length) else { return };
        let mut longest = self.longest.lock();
        if longest.as_ref().is_none_or(|(known, _)| *known < until) {
            *longest = Some((until, header));
        }
    }

    pub(super) fn current(&self) -> Option<CurrentPause> {
        let (until, header) = self.longest.lock().clone()?;
        let left = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
        Some(CurrentPause { left, header })
    }
}
