//! A test run's requests.

use std::iter::Peekable;
use std::slice;

use tollgate_core::{Micros, Timestamp};

use super::{Arrival, Outcome, Requests, Schedule};

/// The requests that arrive in a run: an entire schedule, or only some of its requests.
#[derive(Clone, Debug)]
pub struct Arrivals<'a> {
    requests: &'a [Requests],
    source: Source<'a>,
}

#[derive(Clone, Debug)]
enum Source<'a> {
    Schedule(Schedule),
    History(Peekable<slice::Iter<'a, Arrival>>),
}

impl<'a> Arrivals<'a> {
    /// All requests.
    pub(super) fn all(requests: &'a [Requests], seed: u64) -> Self {
        let senders = requests.iter().map(|requests| requests.sender.clone()).collect();
        Self { requests, source: Source::Schedule(Schedule::new(senders, seed)) }
    }

    /// Only these requests, with the times that they had.
    pub(super) fn only(requests: &'a [Requests], history: &'a [Arrival]) -> Self {
        Self { requests, source: Source::History(history.iter().peekable()) }
    }

    /// Returns when the next request arrives. A further answer may cause an earlier request.
    pub fn next_at(&mut self) -> Option<Timestamp> {
        match &mut self.source {
            Source::Schedule(schedule) => schedule.next_at(),
            Source::History(history) => history.peek().map(|arrival| arrival.at),
        }
    }

    /// Returns a request's description.
    #[must_use]
    pub fn requests(&self, arrival: &Arrival) -> &'a Requests {
        &self.requests[arrival.sender as usize]
    }

    /// Tells when a request was answered, on which a client's next request may depend.
    pub fn answered(&mut self, outcome: &Outcome) {
        let takes = self.requests(&outcome.arrival).takes;
        let takes = if outcome.is_allowed { takes } else { Micros::ZERO };
        if let Source::Schedule(schedule) = &mut self.source {
            schedule.answered(&outcome.arrival, outcome.passed_at() + takes);
        }
    }
}

impl Iterator for Arrivals<'_> {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        match &mut self.source {
            Source::Schedule(schedule) => schedule.next(),
            Source::History(history) => history.next().copied(),
        }
    }
}
