//! A replica's blocks for one key, which are spent here and requested from Redis.
//!
//! | file | contains |
//! |---|---|
//! | `block.rs` | a block, open or closed |
//! | `plan.rs` | when blocks are fetched and returned, and how Redis' answers are handled |

mod block;
mod plan;
#[cfg(test)]
mod search;
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
use crate::script::encode::Spent;

/// A key's blocks in order of use: the current block and the next, which is fetched ahead, so
/// requests do not wait.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone, Hash))]
pub(super) struct Blocks {
    open: VecDeque<Block>,
    /// Closed blocks that Redis does not know about yet.
    spent: SmallVec<[Closed; 2]>,
    demand: Demand,
    lease: Lease,
    /// The maximum units in all open blocks: the lease's share.
    most: u64,
    capacity: u64,
    /// No block is requested before this instant, because Redis has no units, or its grant may have
    /// been lost.
    ask_at: Moment,
    /// No call is made before this instant, because the last one failed.
    call_at: Moment,
    /// Whether a task refills this key.
    pub(super) has_refill: bool,
    /// Whether the refill task was woken and has not run yet.
    was_called: bool,
    /// Whether the refill task's call is in flight. The answer may bring another block.
    pub(super) awaits_answer: bool,
}

/// Units spent from a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) decision: Decision,
    /// The latest known Redis time.
    pub(super) decided_at: Timestamp,
    id: u64,
    units: u64,
}

/// A replica that may hold only one unit gets no blocks, because a block would cost as much as a
/// decision.
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
            awaits_answer: false,
        }
    }

    /// Spends `cost` from a block that has enough units left and has not expired.
    pub(super) fn take(&mut self, cost: u64, clock: &Clock) -> Option<Taken> {
        if self.open.is_empty() {
            return None;
        }
        // Read the clock under the locks, because a thread that waited for them must not use an
        // earlier time.
        let now = clock.now();
        loop {
            let is_last = self.open.len() == 1;
            let block = self.open.front_mut()?;
            if now > block.span.last {
                // Redis may have charged the block in full by now.
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
                outcome: Outcome::Allow { delay: Micros::ZERO, charged_at, refunded: 0 },
                limit: self.capacity,
                remaining: last.remaining.saturating_add(left).min(self.capacity),
                reset_after: Micros::new(last.reset_after.get().saturating_sub(passed.get())),
            },
            decided_at: last.granted_at + passed,
            id: first.id,
            units,
        }
    }

    /// Puts back units for a request that another key could not answer. A block that was closed
    /// meanwhile has been reported to Redis as spent and remains so.
    pub(super) fn put_back(&mut self, taken: &Taken) {
        if let Some(block) = self.open.iter_mut().find(|block| block.id == taken.id) {
            block.left += taken.units;
        }
    }

    /// Whether to wake the refill task. Returns `true` only once until the task has run.
    pub(super) fn wakes_refill(&mut self) -> bool {
        let is_due = self.has_refill && !self.was_called && self.is_low();
        self.was_called |= is_due;
        is_due
    }

    /// Counts a decision by Redis, because no block could be spent. Returns whether the key is busy
    /// enough for a refill task.
    pub(super) fn asked(&mut self, now: Moment) -> bool {
        self.demand.count(now) && self.most >= LEAST
    }

    /// Whether this key can be forgotten.
    pub(super) fn is_idle(&self, now: Moment) -> bool {
        !self.has_refill && self.demand.is_over(now)
    }

    /// Closes all blocks, and returns the report for Redis. No block is requested before the key is
    /// busy again.
    pub(super) fn close(&mut self, now: Moment) -> Returned {
        self.demand.cool();
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

    /// Moves on to the next block.
    fn next(&mut self, now: Moment) -> Option<Block> {
        let block = self.open.pop_front();
        if let Some(next) = self.open.front_mut() {
            next.in_use_since = now;
        }
        block
    }

    /// Whether to fetch a block: there is at most one, and at least half of it is spent.
    fn is_low(&self) -> bool {
        let left: u64 = self.open.iter().map(|block| block.left).sum();
        self.open.len() < 2 && self.open.front().is_none_or(|block| left <= block.units / 2)
    }
}
