//! A server's time, estimated from its replies.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tollgate_core::Timestamp;

/// The offset between a server's clock and this process's clock.
///
/// A reply carries the server's time of the call. Because the call ran after it was sent, that time
/// minus the send time is at least the offset, and the smallest of many samples is the closest. An
/// offset that is too large makes deadlines too late by the same amount, but never too early, so no
/// fresh request is rejected because of a clock difference.
///
/// The local clock is the timers' clock, which stops while the machine is suspended. A suspension
/// therefore looks as if the server's clock had stepped. The first call after it is rejected and
/// sent again.
#[derive(Debug)]
pub(crate) struct ServerClock {
    /// This process's time zero.
    epoch: Instant,
    samples: Mutex<Samples>,
}

#[derive(Debug, Default)]
struct Samples {
    /// The smallest sample in this period, and in the previous period.
    current: Option<i64>,
    previous: Option<i64>,
    began: Option<Instant>,
}

/// A sample is valid for one to two periods. If the server's clock runs slower than ours, the next
/// reply corrects the offset. If it runs faster, a reply replaces the offset when the error exceeds
/// a round trip.
const PERIOD: Duration = Duration::from_secs(10);

impl ServerClock {
    pub(crate) fn new() -> Self {
        Self { epoch: Instant::now(), samples: Mutex::default() }
    }

    /// Returns the server's time at `instant`, or `None` before the first reply.
    pub(crate) fn at_server(&self, instant: Instant) -> Option<Timestamp> {
        let samples = self.samples.lock();
        let offset = match (samples.current, samples.previous) {
            (Some(current), Some(previous)) => current.min(previous),
            (one, other) => one.or(other)?,
        };
        let time = self.local(instant).saturating_add(offset);
        Some(Timestamp::from_micros(u64::try_from(time).unwrap_or(0)))
    }

    /// Records a reply with the server's time `now` to a call sent at `sent`.
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

    /// Discards all samples except this one, which this clock considers impossible: the server's
    /// clock has stepped forward, or this is another server.
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
    fn time_is_unknown_before_first_reply() {
        assert_eq!(ServerClock::new().at_server(Instant::now()), None);
    }

    #[test]
    fn quickest_reply_counts() {
        let offset = ServerClock::new();
        let start = offset.epoch;
        let server = |ms: u64| Timestamp::from_micros(1_000_000 + ms * 1000);
        offset.learn(server(30), start + ms(10));
        offset.learn(server(25), start + ms(20));
        offset.learn(server(90), start + ms(30));
        assert_eq!(offset.at_server(start + ms(100)), Some(server(105)));
    }

    #[test]
    fn clock_steps_are_learned() {
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
