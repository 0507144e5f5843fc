//! A simulated server and its clients.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::*;

/// When a request was submitted.
pub(super) type Asked = Duration;

/// A server that executes calls in sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Server {
    /// The round-trip time.
    pub(super) network: Duration,
    /// The work per call, and per request.
    pub(super) call: Duration,
    pub(super) request: Duration,
    /// The stall length and interval.
    pub(super) stall: Duration,
    pub(super) every: Duration,
    /// How long each script of another client takes, which keeps the server busy. Between two
    /// scripts, the server executes the calls that have arrived.
    pub(super) slice: Duration,
    /// The longest time until the other client sends its next script. Calls that arrive meanwhile
    /// are short. With zero, the next script precedes all calls that have not arrived yet.
    pub(super) gap: Duration,
}

pub(super) const NEAR: Server = Server {
    network: us(100),
    call: us(20),
    request: us(20),
    stall: Duration::ZERO,
    every: ms(1_000_000),
    slice: Duration::ZERO,
    gap: Duration::ZERO,
};

pub(super) const BOUNDS: Bounds = Bounds { calls: 64, batch: 512, queue: 16_384, timeout: ms(50) };

/// The results, counted after a warm-up.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) asked: usize,
    pub(super) answered_in_time: usize,
    pub(super) charged_without_answer: usize,
    pub(super) shed_at_once: usize,
    /// Shed after waiting, or rejected by the server as late.
    pub(super) shed_later: usize,
    pub(super) calls: usize,
    /// The server's total work.
    pub(super) work: Duration,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    Ask,
    /// A call was answered, or its caller gave up.
    End(usize),
}

#[derive(Debug)]
pub(super) struct Sent {
    pub(super) replica: usize,
    pub(super) call: Call,
    pub(super) requests: Vec<Asked>,
    pub(super) ended: Ended,
    pub(super) is_charged: bool,
}

/// A simulation run, starting at time zero.
pub(super) struct Run {
    pub(super) server: Server,
    pub(super) bounds: Bounds,
    pub(super) start: Instant,
    pub(super) replicas: Vec<Pace<Asked>>,
    pub(super) events: BinaryHeap<Reverse<(Duration, Event)>>,
    pub(super) calls: Vec<Sent>,
    /// When the server has finished its current calls.
    pub(super) is_free: Duration,
    /// The end of the other client's last script, and when its next script arrives.
    pub(super) slice_end: Duration,
    pub(super) next_slice: Duration,
    pub(super) gaps: fastrand::Rng,
    pub(super) counts_from: Duration,
    pub(super) seen: Seen,
    /// From a request to its answer, if that met the deadline.
    pub(super) waits: Vec<Duration>,
}

impl Server {
    /// Returns when work that can start at `from` is done.
    pub(super) fn done(&self, mut from: Duration, mut work: Duration) -> Duration {
        loop {
            let phase = Duration::from_nanos((from.as_nanos() % self.every.as_nanos()) as u64);
            if phase < self.stall {
                from += self.stall - phase;
                continue;
            }
            let until_stall = self.every - phase;
            if work <= until_stall {
                return from + work;
            }
            work -= until_stall;
            from += until_stall;
        }
    }

    /// Returns the requests per second with full calls.
    pub(super) fn capacity(&self, bounds: Bounds) -> f64 {
        let call = self.call + self.request * bounds.batch as u32;
        let stalled = self.stall.as_secs_f64() / self.every.as_secs_f64();
        bounds.batch as f64 / call.as_secs_f64() * (1.0 - stalled)
    }
}

impl Run {
    pub(super) fn new(server: Server, bounds: Bounds) -> Self {
        Self::of(1, server, bounds)
    }

    /// Several replicas that share a server.
    pub(super) fn of(replicas: usize, server: Server, bounds: Bounds) -> Self {
        Self {
            server,
            bounds,
            start: Instant::now(),
            replicas: (0..replicas).map(|_| Pace::new(bounds)).collect(),
            events: BinaryHeap::new(),
            calls: Vec::new(),
            is_free: Duration::ZERO,
            slice_end: Duration::ZERO,
            next_slice: Duration::ZERO,
            gaps: fastrand::Rng::with_seed(0),
            counts_from: ms(300),
            seen: Seen::default(),
            waits: Vec::new(),
        }
    }

    /// Submits requests at `rate` per second until `end`, regardless of answers.
    pub(super) fn ask(&mut self, rate: f64, begin: Duration, end: Duration, seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        self.events.push(Reverse((begin, Event::Ask)));
        while let Some(Reverse((now, event))) = self.events.pop() {
            let at = self.start + now;
            let replica = match event {
                Event::Ask => random.usize(..self.replicas.len()),
                Event::End(index) => self.calls[index].replica,
            };
            for asked in self.replicas[replica].expire(at).0 {
                self.count(asked, |seen| &mut seen.shed_later);
            }
            let is_slot = match event {
                Event::Ask => {
                    let pause = -random.f64().max(1e-9).ln() / rate;
                    let next = now + Duration::from_secs_f64(pause);
                    if next < end {
                        self.events.push(Reverse((next, Event::Ask)));
                    }
                    self.count(now, |seen| &mut seen.asked);
                    let pace = &mut self.replicas[replica];
                    let is_shed = pace.submit(now, at + self.bounds.timeout, at).is_err();
                    let is_slot = pace.another_slot(at);
                    if is_shed {
                        self.count(now, |seen| &mut seen.shed_at_once);
                    }
                    is_slot
                }
                Event::End(index) => {
                    self.end(index, now);
                    true
                }
            };
            let mut slots = usize::from(is_slot);
            while slots > 0 {
                let next = self.replicas[replica].next(|_| Fit::Fits, at);
                slots = slots - 1 + usize::from(next.another);
                for asked in next.shed {
                    self.count(asked, |seen| &mut seen.shed_later);
                }
                if let Some((call, requests)) = next.call {
                    self.send(replica, call, requests, now);
                }
            }
        }
    }

    pub(super) fn send(&mut self, replica: usize, call: Call, requests: Vec<Asked>, now: Duration) {
        let timeout = self.bounds.timeout;
        let first = requests.iter().min().map_or(now, |asked| *asked + timeout);
        let last = requests.iter().max().map_or(now, |asked| *asked + timeout);
        let arrives = now + self.server.network / 2;
        while !self.server.slice.is_zero() && self.next_slice < arrives {
            self.slice_end = self.next_slice.max(self.is_free) + self.server.slice;
            self.next_slice = self.slice_end + self.gap();
        }
        let begins = arrives.max(self.is_free).max(self.slice_end);
        let begins = self.server.done(begins, Duration::ZERO);
        // The script skips all requests after the first deadline.
        let is_charged = begins <= first;
        let count = if is_charged { requests.len() as u32 } else { 0 };
        let work = self.server.call + self.server.request * count;
        self.is_free = self.server.done(begins, work);
        if arrives <= self.slice_end && !self.server.gap.is_zero() {
            // The other client gets its answer after these calls.
            self.next_slice = self.is_free + self.gap();
        }
        if now >= self.counts_from {
            self.seen.calls += 1;
            self.seen.work += work;
        }
        let answer = self.is_free + self.server.network / 2;
        let (end, ended) =
            if answer <= last { (answer, Ended::Answered) } else { (last, Ended::Lost) };
        self.events.push(Reverse((end.max(now), Event::End(self.calls.len()))));
        self.calls.push(Sent { replica, call, requests, ended, is_charged });
    }

    pub(super) fn gap(&mut self) -> Duration {
        self.server.gap.mul_f64(self.gaps.f64())
    }

    pub(super) fn end(&mut self, index: usize, now: Duration) {
        let sent = &mut self.calls[index];
        let (requests, is_charged, ended) =
            (std::mem::take(&mut sent.requests), sent.is_charged, sent.ended);
        self.replicas[sent.replica].end(sent.call, ended, self.start + now);
        for asked in requests {
            let is_in_time = ended == Ended::Answered && now <= asked + self.bounds.timeout;
            if is_in_time && is_charged && asked >= self.counts_from {
                self.waits.push(now - asked);
            }
            self.count(asked, |seen| match (is_charged, is_in_time) {
                (true, true) => &mut seen.answered_in_time,
                (true, false) => &mut seen.charged_without_answer,
                (false, _) => &mut seen.shed_later,
            });
        }
    }

    pub(super) fn count(&mut self, asked: Asked, counter: impl Fn(&mut Seen) -> &mut usize) {
        if asked >= self.counts_from {
            *counter(&mut self.seen) += 1;
        }
    }
}

pub(super) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(super) const fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}
