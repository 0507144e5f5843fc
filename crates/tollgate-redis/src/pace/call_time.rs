//! How long calls take, and how many of them should be under way.

use std::time::Duration;

use tokio::time::Instant;

use super::{Bounds, Call};

/// An estimate from the calls so far.
///
/// * *The time of a call* is smoothed as TCP smooths the time of a round trip, and so is the
///   deviation, of calls that took longer. Hardly a call takes longer than the longest of late.
/// * *The number of calls* follows TCP Vegas. Among the calls under way, `calls × (1 − base /
///   time)` wait for the server or keep it busy, where `base` is the time of a small call to an
///   idle server. Between one and two are enough. The time in the network is part of `base`, so a
///   distant server gets more calls.
/// * *While requests wait here*, calls may wait at the server for as long. If other clients keep it
///   busy, more is answered then, and if these calls do, no less. Calls that take a third of the
///   timeout leave no room for this.
/// * *The size of a call* is what the server answers in an eighth of the timeout.
#[derive(Debug)]
pub(super) struct CallTime {
    bounds: Bounds,
    /// In seconds, as are those below.
    smoothed: Option<f64>,
    deviation: f64,
    /// The longest call of late: it comes nearer to each shorter call by a part of 32.
    longest: f64,
    base: f64,
    /// When `base` began anew.
    base_since: Option<Instant>,
    calls: f64,
    /// The number of calls grows by doubling until a call has had to wait.
    is_starting: bool,
    /// Requests a second.
    rate: Option<f64>,
    /// Requests in the last call that was full.
    full: usize,
}

/// The interval at which `base` is measured again, because the way to the server may have become
/// longer. For this, one call is sent alone.
const BASE_LASTS: Duration = Duration::from_secs(10);
/// The number of calls of a new store, and the fewest while they are in time: the server has the
/// next call while the answers of the last call are handed out.
const FIRST_CALLS: f64 = 2.0;

/// Calls with fewer requests hardly take longer if they are larger.
const SMALL: usize = 64;

impl CallTime {
    pub(super) const fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            smoothed: None,
            deviation: 0.0,
            longest: 0.0,
            base: f64::INFINITY,
            base_since: None,
            calls: FIRST_CALLS,
            is_starting: true,
            rate: None,
            full: bounds.batch,
        }
    }

    /// The time that a call is expected to take.
    pub(super) fn expected(&self) -> Duration {
        let Some(smoothed) = self.smoothed else { return Duration::ZERO };
        seconds((smoothed + 2.0 * self.deviation).min(1.25 * self.longest))
    }

    /// The time until calls with `waiting` requests have been sent.
    pub(super) fn to_send(&self, waiting: usize) -> Duration {
        let calls = number(waiting) / number(self.batch().min(self.full) * self.calls());
        seconds(self.smoothed.unwrap_or_default() * calls)
    }

    /// The time between calls that are spread evenly.
    pub(super) fn interval(&self) -> Duration {
        seconds(self.smoothed.unwrap_or_default() / self.calls)
    }

    /// The number of calls that may be under way.
    pub(super) fn calls(&self) -> usize {
        floor(self.calls).clamp(1, self.bounds.calls)
    }

    /// The most requests of a call.
    pub(super) fn batch(&self) -> usize {
        let Some(rate) = self.rate else { return self.bounds.batch };
        floor(rate * self.bounds.timeout.as_secs_f64() / 8.0).clamp(1, self.bounds.batch)
    }

    /// Whether the next call is to measure `base`.
    pub(super) fn is_next_alone(&self, now: Instant) -> bool {
        self.base_since.is_some_and(|since| now - since >= BASE_LASTS)
    }

    /// Forgets how long calls took: after a pause that says nothing about the server.
    pub(super) const fn forget(&mut self) {
        self.smoothed = None;
        self.deviation = 0.0;
        self.longest = 0.0;
    }

    /// Begins again with few calls at a time, after no call was under way. Many at once would be a
    /// burst.
    pub(super) const fn restart(&mut self) {
        self.calls = FIRST_CALLS;
        self.is_starting = true;
    }

    /// Counts an answered call. `is_base` means that the call was small and the server was idle.
    pub(super) fn learn_base(&mut self, took: Duration, is_base: bool, now: Instant) {
        let took = took.as_secs_f64();
        if is_base && self.is_next_alone(now) {
            self.base = took;
            self.base_since = Some(now);
            self.restart();
        } else if is_base && took > self.base {
            self.base += (took - self.base) / 4.0;
        }
        self.base = self.base.min(took);
        self.base_since.get_or_insert(now);
    }

    /// A call was answered or lost. While it was under way, `answered` requests were answered.
    pub(super) fn learn(&mut self, call: &Call, took: Duration, answered: usize, queued: usize) {
        if answered == 0 {
            // The server stood still, which says how long that took, and not how long calls
            // take. But it may have been the call that was too large.
            if 2 * call.requests > self.batch() {
                self.learn_rate(call, 0, took.as_secs_f64(), 0.0);
            }
            return;
        }
        // One call that stood still says little about the next one: while it is under way, its age
        // counts. If calls stay as long, a few of them are enough.
        let timeout = self.bounds.timeout.as_secs_f64();
        let most = self.smoothed.map_or(timeout / 4.0, |before| (4.0 * before).max(timeout / 16.0));
        let took = took.as_secs_f64().min(most);
        let before = self.smoothed.unwrap_or(took);
        let smoothed = before + (took - before) / 4.0;
        self.smoothed = Some(smoothed);
        let later = (took - before).max(0.0) - self.deviation;
        self.longest = took.max(self.longest + (took - self.longest) / 32.0);
        self.deviation += later / if later > 0.0 { 4.0 } else { 32.0 };
        self.learn_rate(call, answered, took, before);
        self.learn_calls(smoothed, queued);
    }

    fn learn_rate(&mut self, call: &Call, answered: usize, took: f64, usual: f64) {
        if call.is_full {
            self.full = call.requests;
        }
        // A call that took little longer than `base` does not show how long the server worked: most
        // of its time was network, or `base` comes from a call that stood still.
        let own = Some(took - self.base).filter(|own| *own > took / 8.0);
        // The time of the other calls depends on how many requests came, not on how many the
        // server can answer.
        let is_late = took > self.bounds.timeout.as_secs_f64() * 0.6 && own.is_some();
        if call.is_full && took <= usual * 1.02 && self.batch() < SMALL {
            // Its size is not what takes the time: another client keeps the server busy.
            self.rate = self.rate.map(|rate| rate * 1.125);
        } else if call.is_full || is_late {
            let alone = own.map_or(0.0, |own| number(call.requests) / own);
            let rate = alone.max(number(answered) / took);
            let before = self.rate.unwrap_or(rate);
            self.rate = Some(before + (rate - before) / 4.0);
        }
    }

    fn learn_calls(&mut self, smoothed: f64, queued: usize) {
        let timeout = self.bounds.timeout;
        let beyond = |time: f64| self.calls * (1.0 - time.min(smoothed) / smoothed);
        let waiting = beyond(self.base);
        let waits_here = self.to_send(queued).min(timeout / 4).as_secs_f64();
        let surplus = beyond(self.base.max(waits_here));
        let is_late = smoothed > f64::midpoint(self.base, timeout.as_secs_f64());
        let is_early = self.expected() < timeout / 3;
        self.is_starting &= surplus < 1.0 && !is_late;
        if surplus > 2.0 || is_late {
            self.calls -= (surplus - 1.0).max(1.0) / self.calls;
        } else if queued > 0 && surplus < 1.0 && (waiting < 1.0 || is_early) {
            self.calls += if self.is_starting { 0.5 } else { 1.0 / self.calls };
        }
        let fewest = if is_late { 1.0 } else { FIRST_CALLS.min(number(self.bounds.calls)) };
        self.calls = self.calls.clamp(fewest, number(self.bounds.calls));
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
const fn number(count: usize) -> f64 {
    count as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float that is too large becomes the largest number, and a negative one zero"
)]
const fn floor(number: f64) -> usize {
    number as usize
}
