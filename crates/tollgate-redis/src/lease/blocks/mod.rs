//! The blocks of one key in a replica: spent here, requested from Redis.
//!
//! | file | is |
//! |---|---|
//! | `block.rs` | one block, open or closed |
//! | `plan.rs` | when blocks are fetched and returned, and what Redis says to that |

mod block;
mod plan;
#[cfg(test)]
mod regions;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use smallvec::SmallVec;
use tollgate_core::{Decision, Lease, Micros, Outcome, Policy, Timestamp};

pub(super) use self::block::Returned;
use self::block::{Block, Closed};
pub(super) use self::plan::Plan;
use super::demand::Demand;
use crate::clock::{Clock, Moment};
use crate::encode::Spent;

/// The blocks of a key, in the order of their use: one in use, and one fetched ahead, so that no
/// request waits when the first is used up.
#[derive(Debug)]
pub(super) struct Blocks {
    open: VecDeque<Block>,
    /// Done with, and Redis does not know yet.
    spent: SmallVec<[Closed; 2]>,
    demand: Demand,
    lease: Lease,
    /// Together no more than the lease's share.
    most: u64,
    capacity: u64,
    /// No request before this instant, because Redis has no units, or its grant may have been lost.
    ask_at: Moment,
    /// No call before then, as the last one failed.
    call_at: Moment,
    /// Whether a task refills this key.
    pub(super) has_refill: bool,
    /// Whether that one was called and has not looked yet.
    was_called: bool,
}

/// Units that were spent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) decision: Decision,
    /// The latest known time of Redis.
    pub(super) decided_at: Timestamp,
    id: u64,
    units: u64,
}

/// Where a replica may hold no more than one unit, a block is a decision.
const LEAST: u64 = 2;

impl Blocks {
    pub(super) fn new(policy: &Policy, lease: Lease, now: Moment) -> Self {
        let most = lease.units(policy.capacity());
        Self {
            open: VecDeque::new(),
            spent: SmallVec::new(),
            demand: Demand::new(lease.time_to_live().get(), most / 2, now),
            lease,
            most,
            capacity: policy.capacity(),
            ask_at: now,
            call_at: now,
            has_refill: false,
            was_called: false,
        }
    }

    /// Spends `cost` of a block that has enough units left and has not ended.
    pub(super) fn take(&mut self, cost: u64, clock: &Clock) -> Option<Taken> {
        if self.open.is_empty() {
            return None;
        }
        // Here, with all locks taken: a thread that had to wait for them must not go by a time
        // from before.
        let now = clock.now();
        loop {
            let is_last = self.open.len() == 1;
            let block = self.open.front_mut()?;
            if now > block.span.last {
                // Redis may have charged it in full by now.
                let (units, used) = (block.units, block.units - block.left);
                self.demand.returned(units, used);
                self.close_first(now);
                continue;
            }
            if block.left >= cost {
                block.left -= cost;
                return Some(self.taken(cost, now));
            }
            if is_last {
                return None;
            }
            self.demand.used_up(now.saturating_sub(block.in_use_since));
            self.close_first(now);
        }
    }

    fn taken(&self, units: u64, now: Moment) -> Taken {
        let (first, last) = (&self.open[0], &self.open[self.open.len() - 1]);
        let left: u64 = self.open.iter().map(|block| block.left).sum();
        let passed = Micros::new(now.saturating_sub(last.span.start));
        let charged_at = first.granted_at;
        Taken {
            decision: Decision {
                outcome: Outcome::Allow { delay: Micros::ZERO, charged_at },
                limit: self.capacity,
                remaining: last.remaining.saturating_add(left).min(self.capacity),
                reset_after: Micros::new(last.reset_after.get().saturating_sub(passed.get())),
            },
            decided_at: last.granted_at + passed,
            id: first.id,
            units,
        }
    }

    /// Puts back what was taken for a request that then took nothing here. A block that was
    /// closed meanwhile has been told to Redis as spent, and stays so.
    pub(super) fn put_back(&mut self, taken: &Taken) {
        if let Some(block) = self.open.iter_mut().find(|block| block.id == taken.id) {
            block.left += taken.units;
        }
    }

    /// Whether to wake the refill task: once, and then not before it has looked.
    pub(super) fn wakes_refill(&mut self) -> bool {
        let is_due = self.has_refill && !self.was_called && self.is_low();
        self.was_called |= is_due;
        is_due
    }

    /// Redis is asked for a decision, as nothing could be spent here. Says whether the key is
    /// so busy that it takes a refill task.
    pub(super) fn asked(&mut self, now: Moment) -> bool {
        self.demand.count(now) && self.most >= LEAST
    }

    /// Whether it does not matter if this is forgotten.
    pub(super) fn is_idle(&self, now: Moment) -> bool {
        !self.has_refill && self.demand.is_over(now)
    }

    /// Gives up all that is held, and says what there is to tell Redis.
    pub(super) fn close(&mut self, now: Moment) -> Returned {
        while !self.open.is_empty() {
            self.close_first(now);
        }
        self.spent.retain(|closed| closed.span.lapses > now);
        Returned(std::mem::take(&mut self.spent))
    }

    fn close_first(&mut self, now: Moment) {
        if let Some(Block { id, units, left, span, .. }) = self.next(now) {
            let spent = Spent { id, units: units - left };
            self.spent.push(Closed { spent, units, span });
        }
    }

    /// Turns to the next block.
    fn next(&mut self, now: Moment) -> Option<Block> {
        let block = self.open.pop_front();
        if let Some(next) = self.open.front_mut() {
            next.in_use_since = now;
        }
        block
    }

    /// Whether there is a block in hand for when this one is used up, or it will last a while.
    fn is_low(&self) -> bool {
        let left: u64 = self.open.iter().map(|block| block.left).sum();
        self.open.len() < 2 && self.open.front().is_none_or(|block| left <= block.units / 2)
    }
}
