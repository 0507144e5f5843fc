//! A limiter under measurement, and the loop that measures it.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::rounds::{Peer, shuffled};

/// A key as a request brings it: 13 bytes in the shape of an IPv4 address.
pub(crate) type Text = String;

/// A limiter under measurement.
pub(crate) trait Side: Sync {
    /// A buffer for the key, which a thread reuses for each decision.
    type Buffer: Default;

    /// Makes a key as the limiter's API wants it and decides: whether the request may pass.
    fn decide(&self, text: &Text, buffer: &mut Self::Buffer) -> bool;
}

/// The text of key number `number`, below a hundred million.
pub(crate) fn text(number: u32) -> Text {
    let mut text = Text::new();
    write_text(number, &mut text);
    text
}

/// Writes that text over another.
pub(crate) fn write_text(number: u32, text: &mut Text) {
    text.clear();
    text.push_str("10.");
    for (place, unit) in (0_u32..8).map(|place| (place, 10_u32.pow(7 - place))) {
        if matches!(place, 3 | 6) {
            text.push('.');
        }
        text.push(char::from_digit(number / unit % 10, 10).unwrap_or('0'));
    }
}

/// Which keys are asked for, and in which order.
pub(crate) struct Keys {
    order: Vec<u32>,
    next: AtomicUsize,
}

/// The expected result of every measured decision.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expect {
    Allowed,
    Denied,
}

/// Decisions between two looks at the clock. Their keys stand ready in memory that the
/// nearest cache holds, as a request does that has just been read.
const BATCH: usize = 256;

impl Keys {
    /// `count` keys in random order, which is not that of their insertion.
    pub(crate) fn new(count: u32) -> Self {
        Self { order: shuffled(count, 0x9e37_79b9_7f4a_7c15), next: AtomicUsize::new(0) }
    }

    /// Asks once for every key, in another random order than afterwards.
    pub(crate) fn insert<S: Side>(&self, side: &S) {
        let count = u32::try_from(self.order.len()).unwrap_or(u32::MAX);
        let (mut key, mut buffer) = (Text::new(), S::Buffer::default());
        for number in shuffled(count, 0xd1b5_4a32_d192_ed03) {
            write_text(number, &mut key);
            side.decide(&key, &mut buffer);
        }
    }

    /// The next keys, from where the last call ended.
    fn fill(&self, batch: &mut [Text]) {
        let begin = self.next.fetch_add(BATCH, Ordering::Relaxed);
        for (n, text) in batch.iter_mut().enumerate() {
            write_text(self.order[(begin + n) % self.order.len()], text);
        }
    }
}

/// A peer that decides for `span` on `threads` threads; it measures nanoseconds a decision
/// and thread.
pub(crate) fn peer<'a, S: Side>(
    side: &'a S,
    keys: &'a Keys,
    threads: usize,
    span: Duration,
    expect: Expect,
) -> Peer<'a> {
    let mut rounds = 0;
    // With one thread the fastest slice counts, because no other process interrupted it. With two
    // threads the fastest slice would be one in which only one thread ran.
    let slices = if threads == 1 { 10 } else { 1 };
    Box::new(move || {
        let slice = |_| {
            let work = decide_on(side, keys, threads, span / slices);
            let expected = match expect {
                Expect::Allowed => work.allowed,
                Expect::Denied => work.decided - work.allowed,
            };
            // The first round is there to warm up, and to use up what is to be denied.
            assert!(rounds == 0 || expected == work.decided, "{} were allowed", work.allowed);
            work.nanos / work.decided
        };
        let nanos = (0..slices).map(slice).fold(f64::INFINITY, f64::min);
        rounds += 1;
        nanos
    })
}

/// The work of all threads together.
fn decide_on<S: Side>(side: &S, keys: &Keys, threads: usize, span: Duration) -> Work {
    let barrier = Barrier::new(threads);
    let results: Vec<Work> = thread::scope(|scope| {
        let spawn = |_| scope.spawn(|| decide_for(side, keys, span, &barrier));
        let workers: Vec<_> = (0..threads).map(spawn).collect();
        workers.into_iter().map(|worker| worker.join().expect("no worker panics")).collect()
    });
    let sum = |part: fn(&Work) -> f64| results.iter().map(part).sum();
    Work {
        decided: sum(|work| work.decided),
        allowed: sum(|work| work.allowed),
        nanos: sum(|work| work.nanos),
    }
}

/// Ten million decisions on one key, and how many of them were allowed.
pub(crate) fn spin<S: Side>(side: &S) -> f64 {
    let (key, mut buffer) = (text(0), S::Buffer::default());
    let mut decide = || side.decide(black_box(&key), &mut buffer);
    (0..10_000_000).map(|_| f64::from(u8::from(decide()))).sum()
}

/// The work of one thread.
#[derive(Default)]
struct Work {
    decided: f64,
    allowed: f64,
    nanos: f64,
}

fn decide_for<S: Side>(side: &S, keys: &Keys, span: Duration, barrier: &Barrier) -> Work {
    let (mut work, mut buffer) = (Work::default(), S::Buffer::default());
    let mut batch = vec![Text::new(); BATCH];
    keys.fill(&mut batch);
    barrier.wait();
    let started = Instant::now();
    while started.elapsed() < span {
        // With one key there is nothing to prepare anew, and two threads never part.
        if keys.order.len() > 1 {
            keys.fill(&mut batch);
        }
        let begin = Instant::now();
        let mut allowed = 0_u32;
        for text in &batch {
            allowed += u32::from(side.decide(black_box(text), &mut buffer));
        }
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let nanos = begin.elapsed().as_nanos() as f64;
        work.nanos += nanos;
        work.allowed += f64::from(allowed);
        work.decided += BATCH as f64;
    }
    work
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_its_text() {
        assert_eq!(text(0), "10.000.000.00");
        assert_eq!(text(12_345_678), "10.123.456.78");
    }
}
