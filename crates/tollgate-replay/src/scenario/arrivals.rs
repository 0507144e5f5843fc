//! A test run's requests.

use std::cell::Cell;
use std::iter::Peekable;
use std::slice;

use tollgate_core::{Micros, Timestamp};

use super::{Arrival, Endless, Outcome, Requests, Schedule};

/// The requests that arrive in a run: an entire schedule, or only some of its requests.
#[derive(Clone, Debug)]
pub struct Arrivals<'a> {
    requests: &'a [Requests],
    source: Source<'a>,
    endless: Option<&'a Cell<Option<Endless>>>,
}

#[derive(Clone, Debug)]
enum Source<'a> {
    Schedule(Schedule),
    History(Peekable<slice::Iter<'a, Arrival>>),
}

impl<'a> Arrivals<'a> {
    /// All requests. If there are too many, `endless` becomes the reason.
    pub(super) fn all(
        requests: &'a [Requests],
        seed: u64,
        endless: &'a Cell<Option<Endless>>,
    ) -> Self {
        let senders = requests.iter().map(|requests| requests.sender.clone()).collect();
        let source = Source::Schedule(Schedule::new(senders, seed));
        Self { requests, source, endless: Some(endless) }
    }

    /// Only these requests, with the times that they had.
    pub(super) fn only(requests: &'a [Requests], history: &'a [Arrival]) -> Self {
        Self { requests, source: Source::History(history.iter().peekable()), endless: None }
    }

    /// Returns when the next request arrives. A further answer may cause an earlier request.
    pub fn next_at(&mut self) -> Option<Timestamp> {
        match &mut self.source {
            Source::Schedule(schedule) => schedule.next_at(),
            Source::History(history) => history.peek().map(|arrival| arrival.at),
        }
    }

    /// Returns a request's description.
    pub fn requests(&self, arrival: &Arrival) -> &'a Requests {
        &self.requests[arrival.sender as usize]
    }

    /// Tells that a simulated target answered a request, on which a client's next request may depend.
    pub fn answered(&mut self, outcome: &Outcome) {
        let takes = self.requests(&outcome.arrival).takes;
        let takes = if outcome.is_allowed { takes } else { Micros::ZERO };
        self.answered_at(&outcome.arrival, outcome.passed_at() + takes);
    }

    /// Tells when a request's response ended.
    pub fn answered_at(&mut self, arrival: &Arrival, at: Timestamp) {
        if let Source::Schedule(schedule) = &mut self.source {
            schedule.answered(arrival, at);
        }
    }
}

impl Iterator for Arrivals<'_> {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        match &mut self.source {
            Source::Schedule(schedule) => {
                let next = schedule.next();
                if let Some(endless) = self.endless {
                    endless.set(schedule.endless());
                }
                next
            }
            Source::History(history) => history.next().copied(),
        }
    }
}
