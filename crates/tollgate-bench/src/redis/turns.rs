//! Contenders that take turns.

use std::pin::Pin;
use std::sync::Arc;

use fred::prelude::Client;

use crate::Failure;
use crate::process;
use crate::redis::goals::What;
use crate::redis::load::{Ask, Round, round};
use crate::redis::peers::{Outside, Throttlecrab};
use crate::redis::server::processor_time;
use crate::rounds::Spread;

/// Measures the sides in turns, and stores their results. Each turn starts with another side.
pub(crate) async fn take_turns(
    sides: &mut [Side],
    tasks: usize,
    rounds: usize,
    redis: &Client,
) -> Result<(), Failure> {
    for turn in 0..=rounds {
        for index in 0..sides.len() {
            let side = (turn + index) % sides.len();
            let seen = sides[side].round(tasks, redis).await?;
            // The first turn only warms up.
            if turn > 0 {
                sides[side].seen.push(seen);
            }
        }
    }
    Ok(())
}

/// A contender and its rounds' results.
pub(crate) struct Side {
    pub(crate) name: &'static str,
    load: Box<dyn Load>,
    /// The server that it uses instead of Redis.
    crab: Option<Throttlecrab>,
    pub(crate) seen: Vec<Seen>,
}

/// A round's results, from the tasks and the server.
pub(crate) struct Seen {
    pub(crate) round: Round,
    /// The server's processor time per decision, in seconds.
    pub(crate) server: f64,
}

impl Side {
    pub(crate) fn new<A: Ask>(name: &'static str, asks: A) -> Self {
        Self { name, load: Box::new(Arc::new(asks)), crab: None, seen: Vec::new() }
    }

    pub(crate) fn outside(name: &'static str, peer: Outside) -> Self {
        Self { name, load: Box::new(peer), crab: None, seen: Vec::new() }
    }

    /// Sets the server that the contender uses instead of Redis.
    pub(crate) fn with_server(mut self, crab: Throttlecrab) -> Self {
        self.crab = Some(crab);
        self
    }

    async fn round(&self, tasks: usize, redis: &Client) -> Result<Seen, Failure> {
        let before = self.processor_time(redis).await?;
        let round = self.load.round(tasks).await?;
        let used = self.processor_time(redis).await? - before;
        Ok(Seen { round, server: used / round.decisions })
    }

    async fn processor_time(&self, redis: &Client) -> Result<f64, Failure> {
        match &self.crab {
            Some(crab) => process::processor_time(crab.id()),
            None => processor_time(redis).await,
        }
    }

    /// The denied requests in all rounds.
    pub(crate) fn refused(&self) -> f64 {
        self.seen.iter().map(|seen| seen.round.decisions - seen.round.admitted).sum()
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
trait Load: Send {
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
