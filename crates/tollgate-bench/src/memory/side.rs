//! A limiter under measurement, and the loop that measures it.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::rounds::{Peer, shuffled};

/// A key as a request contains it: 13 bytes that look like an IPv4 address.
pub(crate) type Text = String;

/// A limiter under measurement.
pub(crate) trait Side: Sync {
    /// A buffer for the key, which a thread reuses for each decision.
    type Buffer: Default;

    /// Builds the key that the limiter's API requires, and returns whether the request is allowed.
    fn decide(&self, text: &Text, buffer: &mut Self::Buffer) -> bool;
}

/// The text for key number `number`, which is below a hundred million.
pub(crate) fn text(number: u32) -> Text {
    let mut text = Text::new();
    write_text(number, &mut text);
    text
}

/// Overwrites `text` with the text for a key number.
pub(crate) fn write_text(number: u32, text: &mut Text) {
    text.clear();
    text.push_str("10.");
    for (index, unit) in (0_u32..8).map(|index| (index, 10_u32.pow(7 - index))) {
        if matches!(index, 3 | 6) {
            text.push('.');
        }
        text.push(char::from_digit(number / unit % 10, 10).unwrap_or('0'));
    }
}

/// The requested keys, in order.
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

/// Decisions between two clock readings. Their keys fit into the nearest cache, like a request that
/// has just been read.
const BATCH: usize = 256;

impl Keys {
    /// `count` keys in a random order, which differs from the insertion order.
    pub(crate) fn new(count: u32) -> Self {
        Self { order: shuffled(count, 0x9e37_79b9_7f4a_7c15), next: AtomicUsize::new(0) }
    }

    /// Requests every key one time, in a different random order.
    pub(crate) fn insert<S: Side>(&self, side: &S) {
        let count = u32::try_from(self.order.len()).unwrap_or(u32::MAX);
        let (mut key, mut buffer) = (Text::new(), S::Buffer::default());
        for number in shuffled(count, 0xd1b5_4a32_d192_ed03) {
            write_text(number, &mut key);
            side.decide(&key, &mut buffer);
        }
    }

    /// Writes the next keys, continuing after the previous call.
    fn fill(&self, batch: &mut [Text]) {
        let begin = self.next.fetch_add(BATCH, Ordering::Relaxed);
        for (n, text) in batch.iter_mut().enumerate() {
            write_text(self.order[(begin + n) % self.order.len()], text);
        }
    }
}

/// A peer that decides for `span` on `threads` threads. It measures nanoseconds per decision and
/// thread.
pub(crate) fn peer<'a, S: Side>(
    side: &'a S,
    keys: &'a Keys,
    threads: usize,
    span: Duration,
    expect: Expect,
) -> Peer<'a> {
    let mut rounds = 0;
    // With one thread the fastest slice counts, because no other process interrupted it. With two
    // threads, only one thread might have run in the fastest slice.
    let slices = if threads == 1 { 10 } else { 1 };
    Box::new(move || {
        let slice = |_| {
            let work = decide_on(side, keys, threads, span / slices);
            let expected = match expect {
                Expect::Allowed => work.allowed,
                Expect::Denied => work.decided - work.allowed,
            };
            // The first round warms up, and uses up the quota of limiters that must deny.
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

/// Makes ten million decisions on one key, and returns the number of allowed requests.
pub(crate) fn spin<S: Side>(side: &S) -> f64 {
    let (key, mut buffer) = (text(0), S::Buffer::default());
    let mut decide = || side.decide(black_box(&key), &mut buffer);
    (0..10_000_000).map(|_| f64::from(u8::from(decide()))).sum()
}

/// A thread's work.
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
        // A single key is already prepared, and threads without preparation contend all the time.
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
    fn keys_look_like_addresses() {
        assert_eq!(text(0), "10.000.000.00");
        assert_eq!(text(12_345_678), "10.123.456.78");
    }
}
