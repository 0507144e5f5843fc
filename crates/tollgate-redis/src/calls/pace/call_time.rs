//! How long calls take, and how many should be in flight.

use std::time::Duration;

use tokio::time::Instant;

use super::Bounds;

/// A call in flight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Call {
    pub(super) begun: Instant,
    pub(super) requests: usize,
    /// The number of requests answered before it started.
    pub(super) answered: usize,
    /// Whether more requests waited than the call has room for.
    pub(super) is_full: bool,
    /// Whether no other call was in flight when it started.
    pub(super) is_alone: bool,
}

/// An estimate from past calls.
///
/// * *The time of a call* is smoothed like TCP's round-trip time, and so is the deviation of calls
///   that took longer. Few calls take longer than the longest recent call.
/// * *The number of calls* follows TCP Vegas. Among the calls in flight, `calls × (1 − base /
///   time)` wait for the server or keep it busy, where `base` is the time for a small call to an
///   idle server. Between one and two are enough. `base` includes the network time, so a distant
///   server gets more calls.
/// * *While requests wait here*, calls may wait at the server for as long. If other clients keep it
///   busy, this increases the throughput, and if these calls do, it does not reduce it. Calls that
///   take a third of the timeout leave no room for this.
/// * *The call size* is the number of requests that the server answers in an eighth of the timeout.
#[derive(Debug)]
pub(super) struct CallTime {
    bounds: Bounds,
    /// In seconds, like the fields below.
    smoothed: Option<f64>,
    deviation: f64,
    /// The longest recent call. Each shorter call reduces it by 1/32 of the difference.
    longest: f64,
    base: f64,
    /// When `base` was last measured from scratch.
    base_since: Option<Instant>,
    calls: f64,
    /// Whether the number of calls still grows exponentially, until a call has had to wait.
    is_starting: bool,
    /// Requests per second.
    rate: Option<f64>,
    /// The number of requests in the last full call.
    full: usize,
}

/// How often `base` is measured again, because the network path may have become longer. For this, a
/// single call is sent alone.
const BASE_LASTS: Duration = Duration::from_secs(10);
/// The initial number of calls, and the minimum unless calls are late: the server has the next call
/// while the last call's answers are handled.
const FIRST_CALLS: f64 = 2.0;

/// Calls with fewer requests hardly take longer when they grow.
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

    /// Returns how long a call is expected to take.
    pub(super) fn expected(&self) -> Duration {
        let Some(smoothed) = self.smoothed else { return Duration::ZERO };
        seconds((smoothed + 2.0 * self.deviation).min(1.25 * self.longest))
    }

    /// Returns the time until calls with `waiting` requests have been sent.
    pub(super) fn to_send(&self, waiting: usize) -> Duration {
        let calls = number(waiting) / number(self.batch().min(self.full) * self.calls());
        seconds(self.smoothed.unwrap_or_default() * calls)
    }

    /// Returns the time between evenly spread calls.
    pub(super) fn interval(&self) -> Duration {
        seconds(self.smoothed.unwrap_or_default() / self.calls)
    }

    /// Returns how many calls may be in flight.
    pub(super) fn calls(&self) -> usize {
        floor(self.calls).clamp(1, self.bounds.calls)
    }

    /// Returns the maximum number of requests per call.
    pub(super) fn batch(&self) -> usize {
        let Some(rate) = self.rate else { return self.bounds.batch };
        floor(rate * self.bounds.timeout.as_secs_f64() / 8.0).clamp(1, self.bounds.batch)
    }

    /// Whether the next call should measure `base`.
    pub(super) fn is_next_alone(&self, now: Instant) -> bool {
        self.base_since.is_some_and(|since| now - since >= BASE_LASTS)
    }

    /// Discards the call times, after a pause that does not reflect the server's speed.
    pub(super) const fn forget(&mut self) {
        self.smoothed = None;
        self.deviation = 0.0;
        self.longest = 0.0;
    }

    /// Restarts with few concurrent calls after an idle time, to avoid a burst.
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

    /// Counts a call that was answered or lost. `answered` is the number of requests answered while
    /// it was in flight.
    pub(super) fn learn(&mut self, call: &Call, took: Duration, answered: usize, queued: usize) {
        if answered == 0 {
            // The server stalled, so this measures the stall and not the usual call time. But the
            // call itself may have been too large.
            if 2 * call.requests > self.batch() {
                self.learn_rate(call, 0, took.as_secs_f64(), 0.0);
            }
            return;
        }
        // A single stalled call says little about the next one, and its age counts while it is in
        // flight. If calls remain slow, a few raise the estimate.
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
        // of the time was network time, or `base` was measured by a stalled call.
        let own = Some(took - self.base).filter(|own| *own > took / 8.0);
        // For calls that are not full, the time depends on how many requests arrived, not on how
        // many the server can answer.
        let is_late = took > self.bounds.timeout.as_secs_f64() * 0.6 && own.is_some();
        if call.is_full && took <= usual * 1.02 && self.batch() < SMALL {
            // The size does not determine the time: another client keeps the server busy.
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
