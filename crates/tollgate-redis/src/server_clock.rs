//! The time of a server, estimated from its replies.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tollgate_core::Timestamp;

/// How far a server's clock is from this process'.
///
/// A reply carries the server's time of the call. That lies after the call was sent, so
/// time of the reply less time of sending is at least the offset, and the smallest of
/// many is closest. An offset that is too large makes deadlines too late by as much, and
/// never too early: no fresh request is refused for the difference of two clocks.
///
/// The clock here is that of timers, which stands still while the machine is suspended. To it a
/// sleep looks like a step of the server's clock. The first call after it is refused and sent
/// again.
#[derive(Debug)]
pub(crate) struct ServerClock {
    /// Where this process counts from.
    epoch: Instant,
    samples: Mutex<Samples>,
}

#[derive(Debug, Default)]
struct Samples {
    /// The smallest of this period and of the one before it.
    current: Option<i64>,
    previous: Option<i64>,
    began: Option<Instant>,
}

/// A measurement counts for one to two periods. The next reply shows a server's clock that runs
/// slower. If the server's clock runs faster, a reply is later than possible as soon as the error
/// exceeds a round trip, and replaces the measurement.
const PERIOD: Duration = Duration::from_secs(10);

impl ServerClock {
    pub(crate) fn new() -> Self {
        Self { epoch: Instant::now(), samples: Mutex::default() }
    }

    /// The server's time at `instant`, unless it never answered.
    pub(crate) fn at_server(&self, instant: Instant) -> Option<Timestamp> {
        let samples = self.samples.lock();
        let offset = match (samples.current, samples.previous) {
            (Some(current), Some(previous)) => current.min(previous),
            (one, other) => one.or(other)?,
        };
        let time = self.local(instant).saturating_add(offset);
        Some(Timestamp::from_micros(u64::try_from(time).unwrap_or(0)))
    }

    /// Learns from a reply that said `now` to a call sent at `sent`.
    pub(crate) fn learn(&self, now: Timestamp, sent: Instant) {
        let sample = self.sample(now, sent);
        let mut samples = self.samples.lock();
        match samples.began {
            Some(began) if sent.saturating_duration_since(began) < PERIOD => {}
            _ => {
                *samples = Samples { current: None, previous: samples.current, began: Some(sent) };
            }
        }
        samples.current = Some(samples.current.map_or(sample, |least| least.min(sample)));
    }

    /// Forgets all but a reply that is later than this clock allows: the server's clock has
    /// stepped forward, or this is another server.
    pub(crate) fn relearn(&self, now: Timestamp, sent: Instant) {
        let sample = self.sample(now, sent);
        *self.samples.lock() = Samples { current: Some(sample), previous: None, began: Some(sent) };
    }

    fn sample(&self, now: Timestamp, sent: Instant) -> i64 {
        i64::try_from(now.as_micros()).unwrap_or(i64::MAX).saturating_sub(self.local(sent))
    }

    fn local(&self, instant: Instant) -> i64 {
        let after = instant.saturating_duration_since(self.epoch).as_micros();
        i64::try_from(after).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn nothing_is_known_before_the_first_reply() {
        assert_eq!(ServerClock::new().at_server(Instant::now()), None);
    }

    #[test]
    fn the_quickest_reply_counts() {
        let offset = ServerClock::new();
        let start = offset.epoch;
        let server = |ms: u64| Timestamp::from_micros(1_000_000 + ms * 1000);
        offset.learn(server(30), start + ms(10));
        offset.learn(server(25), start + ms(20));
        offset.learn(server(90), start + ms(30));
        assert_eq!(offset.at_server(start + ms(100)), Some(server(105)));
    }

    #[test]
    fn a_step_back_is_learnt_at_once_and_a_step_forward_by_a_refusal_or_in_two_periods() {
        let offset = ServerClock::new();
        let start = offset.epoch;
        let server = |ms: u64| Timestamp::from_micros(ms * 1000);
        offset.learn(server(100_000), start);
        offset.learn(server(50_001), start + ms(1));
        assert_eq!(offset.at_server(start + ms(1)), Some(server(50_001)));
        offset.learn(server(200_002), start + ms(2));
        assert_eq!(offset.at_server(start + ms(2)), Some(server(50_002)));
        offset.relearn(server(200_003), start + ms(3));
        assert_eq!(offset.at_server(start + ms(3)), Some(server(200_003)));

        offset.learn(server(311_000), start + ms(11_000));
        assert_eq!(offset.at_server(start + ms(11_000)), Some(server(211_000)));
        offset.learn(server(322_000), start + ms(22_000));
        assert_eq!(offset.at_server(start + ms(22_000)), Some(server(322_000)));
    }
}
