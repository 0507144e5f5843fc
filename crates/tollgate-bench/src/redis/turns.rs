//! Contenders that take turns, and goals for the ratios between them.

use std::pin::Pin;
use std::sync::Arc;

use fred::prelude::Client;

use crate::Failure;
use crate::process;
use crate::redis::load::{Ask, Round, round};
use crate::redis::peers::{Outside, Throttlecrab};
use crate::redis::server::Work;
use crate::report::{Cells, Table, Target};
use crate::rounds::{Spread, turns};

/// Measures the sides in turns, and stores their results.
pub(crate) async fn take_turns(
    sides: &mut [Side],
    tasks: usize,
    rounds: usize,
) -> Result<(), Failure> {
    for (side, counts) in turns(sides.len(), rounds) {
        let seen = sides[side].round(tasks).await?;
        if counts {
            sides[side].seen.push(seen);
        }
    }
    Ok(())
}

/// The same for sides that deny nothing. Adds a row for each: `heads`, its name and numbers, and
/// its rate compared with the first.
pub(crate) async fn add_rows(
    table: &mut Table,
    heads: &[&dyn Cells],
    sides: &mut [Side],
    (tasks, rounds): (usize, usize),
) -> Result<(), Failure> {
    take_turns(sides, tasks, rounds).await?;
    for side in sides.iter() {
        let denied = side.denied();
        if denied > 0.0 {
            return Err(format!("{} denied {denied} requests", side.name).into());
        }
        let numbers = side.numbers([0, 0, 2]);
        let ratio = (side.over(&sides[0], What::Rate), 2);
        table.row(&[heads, &[&side.name as &dyn Cells, &numbers, &ratio]].concat());
    }
    Ok(())
}

/// A contender and its rounds' results.
pub(crate) struct Side {
    pub(crate) name: &'static str,
    load: Box<dyn Load>,
    server: Server,
    pub(crate) seen: Vec<Seen>,
}

/// The server that a contender uses.
enum Server {
    Redis(Client),
    Other(Throttlecrab),
}

/// A round's results, from the tasks and the server.
pub(crate) struct Seen {
    pub(crate) round: Round,
    /// The server's work per decision.
    pub(crate) server: Work,
}

impl Side {
    pub(crate) fn new<A: Ask>(name: &'static str, asks: A, redis: &Client) -> Self {
        Self::outside(name, Arc::new(asks), redis)
    }

    pub(crate) fn outside(name: &'static str, load: impl Load + 'static, redis: &Client) -> Self {
        let server = Server::Redis(redis.clone());
        Self { name, load: Box::new(load), server, seen: Vec::new() }
    }

    /// Sets the server that the contender uses instead of Redis.
    pub(crate) fn with_server(mut self, crab: Throttlecrab) -> Self {
        self.server = Server::Other(crab);
        self
    }

    async fn round(&self, tasks: usize) -> Result<Seen, Failure> {
        let before = self.work().await?;
        let round = self.load.round(tasks).await?;
        let after = self.work().await?;
        let each = |after, before| (after - before) / round.decisions;
        let seconds = each(after.seconds, before.seconds);
        let server = Work { seconds, scripts: each(after.scripts, before.scripts) };
        Ok(Seen { round, server })
    }

    async fn work(&self) -> Result<Work, Failure> {
        match &self.server {
            Server::Redis(redis) => Work::so_far(redis).await,
            Server::Other(crab) => {
                Ok(Work { seconds: process::processor_time(crab.id())?, scripts: 0.0 })
            }
        }
    }

    /// The denied requests in all rounds.
    pub(crate) fn denied(&self) -> f64 {
        self.seen.iter().map(|seen| seen.round.decisions - seen.round.admitted).sum()
    }

    /// Thousand decisions per second, and microseconds: the median, the 99th percentile and Redis'
    /// time, with these digits.
    pub(crate) fn numbers(&self, digits: [usize; 3]) -> Vec<String> {
        let micros = [What::Median, What::P99, What::Redis].map(|what| self.spread(what, 1e-6));
        let micros = micros.into_iter().zip(digits).collect::<Vec<_>>();
        [self.spread(What::Rate, 1e3).texts(), micros.texts()].concat()
    }

    /// A number's spread over all rounds, in units of `unit`.
    pub(crate) fn spread(&self, what: What, unit: f64) -> Spread {
        Spread::of(self.seen.iter().map(|seen| what.of(seen) / unit))
    }

    /// The ratios to another side within each round.
    pub(crate) fn over(&self, other: &Self, what: What) -> Spread {
        let [ours, theirs] = [self, other]
            .map(|side| side.seen.iter().map(|seen| what.of(seen)).collect::<Vec<_>>());
        Spread::of_ratios(&ours, &theirs)
    }
}

/// Runs a round, for any contender.
pub(crate) trait Load: Send {
    fn round(&self, tasks: usize) -> Pin<Box<dyn Future<Output = Result<Round, Failure>> + '_>>;
}

impl<A: Ask> Load for Arc<A> {
    fn round(&self, tasks: usize) -> Pin<Box<dyn Future<Output = Result<Round, Failure>> + '_>> {
        Box::pin(round(self, tasks))
    }
}

impl Load for Outside {
    fn round(&self, tasks: usize) -> Pin<Box<dyn Future<Output = Result<Round, Failure>> + '_>> {
        Box::pin(async move { self.round(tasks) })
    }
}

/// Tollgate's store.
pub(crate) const OURS: &str = "Tollgate";

/// Bounds the ratio between two sides' numbers in the same round.
#[derive(Clone, Copy)]
pub(crate) struct Goal {
    pub(crate) of: &'static str,
    pub(crate) what: What,
    pub(crate) against: &'static str,
    pub(crate) target: Target,
}

impl Goal {
    /// Adds a row: the load, what is compared, and the ratio. A side may be missing.
    pub(crate) fn add_to(&self, table: &mut Table, load: &[&dyn Cells], sides: &[Side]) {
        let name = self.what.name();
        let what = if self.of == OURS { name.to_owned() } else { format!("{name} of {}", self.of) };
        let named = |name| sides.iter().find(|side| side.name == name);
        let ratio = match named(self.of).zip(named(self.against)) {
            Some((ours, theirs)) => (ours.over(theirs, self.what), self.target).texts(),
            None => ["–", "–", "not measured"].texts(),
        };
        table.row(&[load, &[&what as &dyn Cells, &self.against, &ratio]].concat());
    }
}

/// A number that a round measures.
#[derive(Clone, Copy)]
pub(crate) enum What {
    Rate,
    Median,
    P99,
    /// Redis' processor time per decision.
    Redis,
    /// Scripts that Redis ran per decision.
    Scripts,
}

impl Goal {
    pub(crate) const fn at_least(what: What, against: &'static str, bound: f64) -> Self {
        Self { of: OURS, what, against, target: Target::AtLeast(bound) }
    }

    pub(crate) const fn at_most(what: What, against: &'static str, bound: f64) -> Self {
        Self { of: OURS, what, against, target: Target::AtMost(bound) }
    }

    /// The same for another side instead of Tollgate's store.
    pub(crate) const fn of(self, of: &'static str) -> Self {
        Self { of, ..self }
    }
}

impl What {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Rate => "decisions per second",
            Self::Median => "median wait",
            Self::P99 => "p99",
            Self::Redis => "Redis' time",
            Self::Scripts => "scripts",
        }
    }

    pub(crate) const fn of(self, seen: &Seen) -> f64 {
        match self {
            Self::Rate => seen.round.rate,
            Self::Median => seen.round.median,
            Self::P99 => seen.round.p99,
            Self::Redis => seen.server.seconds,
            Self::Scripts => seen.server.scripts,
        }
    }
}
