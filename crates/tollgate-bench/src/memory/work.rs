//! The loop that measures a limiter in memory.

use std::array;
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::limiters::{Limiter, Text};
use crate::rounds::{Side, shuffled};

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

/// Decisions between two clock readings. Their keys fit into the nearest cache, like a request that
/// has just been read.
const BATCH: usize = 256;

/// The time that a side runs in a round.
const SPAN: Duration = Duration::from_millis(10);

impl Keys {
    /// `count` keys in a random order, which differs from the insertion order.
    pub(crate) fn new(count: u32) -> Self {
        Self { order: shuffled(count, 0x9e37_79b9_7f4a_7c15), next: AtomicUsize::new(0) }
    }

    /// Requests every key one time, in a different random order.
    pub(crate) fn insert(&self, limiter: &impl Limiter) {
        let count = u32::try_from(self.order.len()).unwrap_or(u32::MAX);
        let (mut key, mut buffer) = (Text::new(), String::new());
        for number in shuffled(count, 0xd1b5_4a32_d192_ed03) {
            write_text(number, &mut key);
            limiter(&key, &mut buffer);
        }
    }

    /// Writes the next keys, continuing after the previous call.
    fn fill(&self, batch: &mut [Text]) {
        let begin = self.next.fetch_add(BATCH, Ordering::Relaxed);
        for (n, text) in batch.iter_mut().enumerate() {
            write_text(self.order[(begin + n) % self.order.len()], text);
        }
    }

    /// A side that decides on these keys on some threads. It measures nanoseconds per decision and
    /// thread. First it requests every key, or uses up the quota of limiters that must deny.
    pub(crate) fn side<'a>(
        &'a self,
        name: &'static str,
        threads: usize,
        is_allowed: bool,
        limiter: impl Limiter + 'a,
    ) -> Side<'a> {
        for _ in 0..if is_allowed { 1 } else { 2_000 } {
            self.insert(&limiter);
        }
        // With one thread the fastest slice counts, because no other process interrupted it. With
        // two threads, only one thread might have run in the fastest slice.
        let slices = if threads == 1 { 10 } else { 1 };
        Side::new(name, move || {
            let mut fastest = f64::INFINITY;
            for _ in 0..slices {
                let [nanos, decided, allowed] = self.decide_on(&limiter, threads, SPAN / slices);
                if allowed != if is_allowed { decided } else { 0.0 } {
                    return Err(format!("{name} allowed {allowed} of {decided}").into());
                }
                fastest = fastest.min(nanos / decided);
            }
            Ok(vec![fastest])
        })
    }

    /// All threads' nanoseconds, decisions and allowed decisions.
    fn decide_on(&self, limiter: &impl Limiter, threads: usize, span: Duration) -> [f64; 3] {
        let barrier = Barrier::new(threads);
        thread::scope(|scope| {
            let spawn = |_| scope.spawn(|| self.decide_for(limiter, span, &barrier));
            let workers: Vec<_> = (0..threads).map(spawn).collect();
            let work = workers.into_iter().map(|it| it.join().expect("no worker panics"));
            work.fold([0.0; 3], |sum, work| array::from_fn(|part| sum[part] + work[part]))
        })
    }

    fn decide_for(&self, limiter: &impl Limiter, span: Duration, barrier: &Barrier) -> [f64; 3] {
        let ([mut nanos, mut decided, mut allowed], mut buffer) = ([0.0; 3], String::new());
        let mut batch = vec![Text::new(); BATCH];
        self.fill(&mut batch);
        barrier.wait();
        let started = Instant::now();
        while started.elapsed() < span {
            // A single key is already prepared, and threads without preparation contend all the
            // time.
            if self.order.len() > 1 {
                self.fill(&mut batch);
            }
            let begin = Instant::now();
            let mut passed = 0_u32;
            for text in &batch {
                passed += u32::from(limiter(black_box(text), &mut buffer));
            }
            nanos += begin.elapsed().as_nanos() as f64;
            allowed += f64::from(passed);
            decided += BATCH as f64;
        }
        [nanos, decided, allowed]
    }
}

/// Makes ten million decisions on one key, and returns the number of allowed requests.
pub(crate) fn spin(limiter: impl Limiter) -> f64 {
    let (key, mut buffer) = (text(0), String::new());
    let mut decide = || limiter(black_box(&key), &mut buffer);
    (0..10_000_000).map(|_| f64::from(u8::from(decide()))).sum()
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
