//! The third party's quota, and what it counts.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::options::Options;

pub(super) struct Calls {
    pub(super) options: Options,
    started: Instant,
    /// When the calls that still count arrived.
    log: VecDeque<Instant>,
    /// Until when `parts` is up to date.
    seen: Instant,
    pub(super) parts: [Counts; 4],
    pub(super) in_flight: usize,
    pub(super) most_in_flight: usize,
    /// The calls of each task, and of all tasks when it called last.
    tasks: HashMap<String, (u64, HashMap<String, u64>)>,
    /// The most calls of a task between two calls of another.
    pub(super) most_between: u64,
    /// How late the machine woke this process.
    pub(super) longest_stall: Duration,
}

/// The part of the run: the quota is halved in the second. A pause may last until the end of the
/// third.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Before,
    Halved,
    Returning,
    After,
}

/// One part's counts. `used` and `usable` are calls times seconds, once the whole quota was used.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) calls: u64,
    pub(super) denied: u64,
    pub(super) used: f64,
    usable: f64,
}

pub(super) enum Answer {
    Allowed,
    /// `wait` is the time until a call is allowed.
    Denied {
        wait: Duration,
    },
}

impl Calls {
    pub(super) fn new(options: &Options) -> Self {
        let now = Instant::now();
        Self {
            options: options.clone(),
            started: now,
            log: VecDeque::new(),
            seen: now,
            parts: Default::default(),
            in_flight: 0,
            most_in_flight: 0,
            tasks: HashMap::new(),
            most_between: 0,
            longest_stall: Duration::ZERO,
        }
    }

    /// When the parts after the first start.
    fn starts(&self) -> impl Iterator<Item = Instant> {
        let (first, window) = (self.started + self.options.length() / 3, self.options.window());
        let count = if self.options.halve { 3 } else { 0 };
        (0..count).map(move |number| first + number * window)
    }

    fn part(&self) -> Part {
        let parts = [Part::Before, Part::Halved, Part::Returning, Part::After];
        parts[self.starts().filter(|start| self.seen >= *start).count()]
    }

    fn quota(&self) -> u64 {
        self.options.quota / if self.part() == Part::Halved { 2 } else { 1 }
    }

    /// The calls that count now.
    fn count(&self) -> u64 {
        self.log.len() as u64
    }

    /// The percentage of the quota that is used now.
    pub(super) fn usage(&self) -> u64 {
        self.count() * 100 / self.quota()
    }

    /// Forgets calls that count no more, and adds up how much of the quota was used.
    pub(super) fn advance(&mut self, now: Instant) {
        let window = self.options.window();
        while self.seen < now {
            let expiry = self.log.front().map(|oldest| *oldest + window);
            let starts = self.starts().filter(|start| *start > self.seen);
            let next = starts.chain(expiry).min().map_or(now, |next| next.min(now));
            let (quota, count, part) = (self.quota(), self.count(), self.part());
            let counts = &mut self.parts[part as usize];
            if counts.usable > 0.0 || part != Part::Before || count == quota {
                let time = (next - self.seen).as_secs_f64();
                counts.used += time * quota.min(count) as f64;
                counts.usable += time * quota as f64;
            }
            self.seen = next;
            while self.log.front().is_some_and(|oldest| *oldest + window <= next) {
                self.log.pop_front();
            }
        }
    }

    pub(super) fn arrive(&mut self, task: &str) -> Answer {
        self.in_flight += 1;
        self.most_in_flight = self.most_in_flight.max(self.in_flight);
        self.note_order(task);
        let (quota, count) = (self.quota(), self.count());
        let part = self.part();
        let counts = &mut self.parts[part as usize];
        counts.calls += 1;
        if count < quota {
            self.log.push_back(self.seen);
            return Answer::Allowed;
        }
        counts.denied += 1;
        let expires = self.log[(count - quota) as usize] + self.options.window();
        Answer::Denied { wait: expires - self.seen }
    }

    /// A task asks again as soon as it has its response. So if calls leave in the order in which
    /// they ask, each task has about one call between two calls of another.
    fn note_order(&mut self, task: &str) {
        let now: HashMap<_, _> =
            self.tasks.iter().map(|(task, (calls, _))| (task.clone(), *calls)).collect();
        let (calls, then) = self.tasks.entry(task.to_owned()).or_default();
        if *calls > 0 {
            let others = now.iter().filter(|(other, _)| *other != task);
            let since = others.map(|(other, calls)| calls - then.get(other).unwrap_or(&0));
            self.most_between = self.most_between.max(since.max().unwrap_or(0));
        }
        (*calls, *then) = (*calls + 1, now);
    }
}

impl Counts {
    /// The percentage of the quota that was used.
    pub(super) fn share(&self) -> f64 {
        100.0 * self.used / self.usable.max(f64::MIN_POSITIVE)
    }
}
