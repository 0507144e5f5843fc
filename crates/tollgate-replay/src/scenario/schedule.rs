//! When requests arrive.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tollgate_core::{Micros, Timestamp};

use super::START;
use super::random::Random;

/// Similar requests by similar clients.
#[derive(Clone, Debug)]
pub struct Sender {
    /// When each client's first request arrives, after the start.
    pub at: Micros,
    /// The number of clients.
    pub clients: u32,
    /// The number of requests of each client. `None` means one request or, with a duration, any
    /// number.
    pub count: Option<u64>,
    /// For how long each client sends requests.
    pub duration: Option<Micros>,
    /// The time between a client's requests.
    pub pace: Pace,
}

/// The time between a client's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Always the same time.
    Every(Micros),
    /// Random times with this mean, as if the client did not remember its last request.
    Random(Micros),
    /// This time after each answer.
    Think(Micros),
}

impl Sender {
    /// The most requests of all senders.
    pub const MOST: u64 = 10_000_000;
    /// The most requests that a client may send at the same instant. A fixed count is not limited.
    pub const MOST_AT_ONCE: u32 = 10_000;

    const fn most(&self) -> u64 {
        match (self.count, self.duration) {
            (Some(count), _) => count,
            (None, Some(_)) => u64::MAX,
            (None, None) => 1,
        }
    }

    /// Whether the number is unlimited, and all requests arrive at the same instant.
    pub(super) fn never_ends(&self) -> bool {
        self.pace == Pace::Every(Micros::ZERO) && self.duration.is_some() && self.count.is_none()
    }
}

/// Why a schedule has too many requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endless {
    /// A client of this sender sends too many requests at the same instant.
    AtOnce(u32),
    /// All senders send too many requests.
    InTotal,
}

/// A request that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When it arrives.
    pub at: Timestamp,
    /// The sender's number.
    pub sender: u32,
    /// The number of the sender's client, from 0.
    pub client: u32,
    /// The number of requests before it.
    pub number: u64,
}

/// The requests of all senders, in the order in which they arrive.
#[derive(Clone, Debug)]
pub struct Schedule {
    senders: Vec<Sender>,
    /// Each client's next request: its time, sender and client.
    next: BinaryHeap<Reverse<(Timestamp, u32, u32)>>,
    /// The clients of each sender.
    clients: Vec<Box<[Progress]>>,
    random: Random,
    number: u64,
    endless: Option<Endless>,
}

#[derive(Clone, Copy, Debug)]
struct Progress {
    /// How many requests a client has left.
    left: u64,
    /// When its last request arrives, and how many requests arrive then.
    last: (Timestamp, u32),
}

impl Schedule {
    /// Creates a schedule. The same seed gives the same random times.
    #[must_use]
    pub fn new(senders: Vec<Sender>, seed: u64) -> Self {
        let clients = |sender: &Sender| {
            let progress = Progress { left: sender.most(), last: (START, 0) };
            vec![progress; sender.clients as usize].into()
        };
        let clients = senders.iter().map(clients).collect();
        let (next, random) = (BinaryHeap::new(), Random::new(seed));
        let mut schedule = Self { senders, next, clients, random, number: 0, endless: None };
        for sender in 0..schedule.senders.len() {
            let Sender { at, clients, pace, .. } = schedule.senders[sender].clone();
            for client in 0..clients {
                // Clients that keep the same pace do not arrive together.
                let offset = match pace {
                    Pace::Random(mean) => Micros::new(schedule.random.exponential(mean.get())),
                    Pace::Every(_) | Pace::Think(_) => Micros::ZERO,
                };
                schedule.push(START + at + offset, sender as u32, client);
            }
        }
        schedule
    }

    /// Returns when the next request arrives. A further answer may cause an earlier request.
    #[must_use]
    pub fn next_at(&self) -> Option<Timestamp> {
        self.next.peek().map(|Reverse((at, ..))| *at)
    }

    /// Tells the schedule when a request was answered, on which a client's next request may depend.
    pub fn answered(&mut self, arrival: &Arrival, at: Timestamp) {
        if let Pace::Think(time) = self.senders[arrival.sender as usize].pace {
            self.push(at + time, arrival.sender, arrival.client);
        }
    }

    /// Returns why the schedule ended early.
    #[must_use]
    pub const fn endless(&self) -> Option<Endless> {
        self.endless
    }

    fn push(&mut self, at: Timestamp, sender: u32, client: u32) {
        let Sender { at: first, duration, count, .. } = self.senders[sender as usize].clone();
        let progress = &mut self.clients[sender as usize][client as usize];
        let is_over = duration.is_some_and(|duration| at >= START + first + duration);
        if progress.left == 0 || is_over {
            return;
        }
        progress.left -= 1;
        let (last, same) = progress.last;
        progress.last = (at, if last == at { same.saturating_add(1) } else { 1 });
        if count.is_none() && progress.last.1 > Sender::MOST_AT_ONCE {
            self.endless = Some(Endless::AtOnce(sender));
        }
        self.next.push(Reverse((at, sender, client)));
    }
}

impl Iterator for Schedule {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        if self.number >= Sender::MOST && !self.next.is_empty() {
            self.endless = Some(Endless::InTotal);
        }
        if self.endless.is_some() {
            self.next.clear();
        }
        let Reverse((at, sender, client)) = self.next.pop()?;
        let gap = match self.senders[sender as usize].pace {
            Pace::Every(gap) => Some(gap),
            Pace::Random(mean) => Some(Micros::new(self.random.exponential(mean.get()).max(1))),
            Pace::Think(_) => None,
        };
        if let Some(gap) = gap {
            self.push(at + gap, sender, client);
        }
        let number = self.number;
        self.number += 1;
        Some(Arrival { at, sender, client, number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Micros = Micros::new(1_000_000);

    fn sender(pace: Pace, clients: u32, count: u64) -> Sender {
        Sender { at: SECOND, clients, count: Some(count), duration: None, pace }
    }

    fn times(schedule: Schedule) -> Vec<(u64, u32, u32)> {
        let time = |it: Arrival| (it.at.since(START).get() / 1_000_000, it.sender, it.client);
        schedule.map(time).collect()
    }

    #[test]
    fn senders_interleave_in_order_of_time() {
        let every = |seconds: u64| Pace::Every(Micros::new(seconds * 1_000_000));
        let schedule = Schedule::new(vec![sender(every(2), 2, 2), sender(every(1), 1, 3)], 1);
        let expected =
            [(1, 0, 0), (1, 0, 1), (1, 1, 0), (2, 1, 0), (3, 0, 0), (3, 0, 1), (3, 1, 0)];
        assert_eq!(times(schedule), expected);
    }

    #[test]
    fn duration_excludes_its_end() {
        let every = Pace::Every(SECOND);
        let duration = Some(Micros::new(3_000_000));
        let sender = Sender { duration, count: None, ..sender(every, 1, 1) };
        assert_eq!(
            times(Schedule::new(vec![sender.clone()], 1)),
            [(1, 0, 0), (2, 0, 0), (3, 0, 0)]
        );
        let few = Sender { count: Some(2), ..sender };
        assert_eq!(times(Schedule::new(vec![few], 1)), [(1, 0, 0), (2, 0, 0)]);
    }

    #[test]
    fn requests_at_one_instant_are_bounded() {
        let pace = Pace::Think(Micros::ZERO);
        let sender = Sender { duration: Some(SECOND), count: None, ..sender(pace, 1, 1) };
        let mut schedule = Schedule::new(vec![sender], 1);
        let mut number = 0;
        while let Some(arrival) = schedule.next() {
            schedule.answered(&arrival, arrival.at);
            number += 1;
        }
        assert_eq!((number, schedule.endless()), (Sender::MOST_AT_ONCE, Some(Endless::AtOnce(0))));
    }

    #[test]
    fn thinking_clients_wait_for_answers() {
        let mut schedule = Schedule::new(vec![sender(Pace::Think(SECOND), 1, 2)], 1);
        let first = schedule.next().unwrap();
        assert_eq!(schedule.next_at(), None);
        let answered = first.at + SECOND;
        schedule.answered(&first, answered);
        let second = schedule.next().unwrap();
        assert_eq!((second.at, second.number), (answered + SECOND, 1));
        schedule.answered(&second, second.at);
        assert_eq!(schedule.next(), None);
    }

    #[test]
    fn seed_determines_random_times() {
        let random = |seed| {
            let sender = sender(Pace::Random(SECOND), 3, 100);
            Schedule::new(vec![sender], seed).collect::<Vec<_>>()
        };
        assert_eq!(random(1), random(1));
        assert_ne!(random(1), random(2));
        assert!(random(1).is_sorted_by_key(|arrival| arrival.at));
    }
}
