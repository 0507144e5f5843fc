//! What a replica holds of one key: spent here, asked for there.

use std::collections::VecDeque;

use smallvec::SmallVec;
use tollgate_core::{Decision, Lease, Micros, Outcome, Policy, StoreError, Timestamp};

use super::clock::{Clock, Moment};
use super::demand::Demand;
use crate::encode::{Ask, Spent};
use crate::ticket::Leased;

/// The blocks of a key, in the order in which they are spent: one in use, and one fetched ahead
/// so that nobody waits when the first is used up.
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
    /// Not before then, as Redis has nothing to give, or did not answer.
    ask_at: Moment,
    /// Whether somebody sees to this key.
    pub(super) has_keeper: bool,
    /// Whether that one was called and has not looked yet.
    was_called: bool,
}

/// Units that may be spent here up to a moment.
#[derive(Debug)]
struct Block {
    id: u64,
    units: u64,
    left: u64,
    start: Moment,
    /// The last moment, that one included.
    end: Moment,
    /// When its first unit was to be spent, which is when the block before it was used up.
    in_use_since: Moment,
    granted_at: Timestamp,
    /// What Redis said was left when it was granted, and how long until the key was fresh.
    remaining: u64,
    reset_after: Micros,
}

#[derive(Clone, Copy, Debug)]
struct Closed {
    spent: Spent,
    units: u64,
    start: Moment,
    end: Moment,
}

/// Units that were spent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) decision: Decision,
    /// What Redis' clock said at least.
    pub(super) decided_at: Timestamp,
    id: u64,
    units: u64,
}

/// What there is to do about a key.
#[derive(Debug)]
pub(super) enum Plan {
    /// To tell Redis what was spent, and to ask for more or for nothing.
    Call { spent: Returned, ask: Ask },
    /// Nothing before this moment, or before somebody calls.
    Wait(Option<Moment>),
    /// Nothing any more.
    Leave,
}

/// Blocks on their way back to Redis.
#[derive(Debug)]
pub(super) struct Returned(SmallVec<[Closed; 2]>);

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
            has_keeper: false,
            was_called: false,
        }
    }

    /// Spends `cost` of a block, if one has so many left and has not ended.
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
            if now > block.end {
                // Redis has charged it in full by now.
                let (units, used) = (block.units, block.units - block.left);
                self.demand.returned(units, used);
                self.next(now);
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
        let passed = Micros::new(now.saturating_sub(last.start));
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

    /// Whether the keeper is to be called: once, and then not before it has looked.
    pub(super) fn calls_keeper(&mut self) -> bool {
        let is_due = self.has_keeper && !self.was_called && self.is_low();
        self.was_called |= is_due;
        is_due
    }

    /// Redis is asked for a decision, as nothing could be spent here. Says whether the key is
    /// so busy that it takes a keeper.
    pub(super) fn asked(&mut self, now: Moment) -> bool {
        self.demand.count(now) && self.most >= LEAST
    }

    /// Whether it does not matter if this is forgotten.
    pub(super) fn is_idle(&self, now: Moment) -> bool {
        !self.has_keeper && self.demand.is_over(now)
    }

    /// What there is to do.
    pub(super) fn plan(&mut self, now: Moment, next_id: impl FnOnce() -> u64) -> Plan {
        self.was_called = false;
        self.retire(now);
        self.spent.retain(|closed| closed.end > now);
        let ttl = self.lease.time_to_live();
        let held: u64 = self.open.iter().map(|block| block.units).sum();
        let is_asking = self.demand.is_hot() && self.is_low() && now >= self.ask_at;
        let units = self.demand.size().min(self.most.saturating_sub(held));
        if is_asking && units > 0 {
            let spent = Returned(std::mem::take(&mut self.spent));
            return Plan::Call { spent, ask: Ask { id: next_id(), units, ttl } };
        }
        // What others could use goes back at once, and what is used up with the next call, as
        // long as there is one in time.
        let is_due = |closed: &Closed| closed.spent.units < closed.units || closed.retires() <= now;
        if self.spent.iter().any(is_due) {
            let spent = Returned(std::mem::take(&mut self.spent));
            return Plan::Call { spent, ask: Ask { id: 0, units: 0, ttl } };
        }
        if self.open.is_empty() && self.spent.is_empty() && !self.demand.is_hot() {
            self.has_keeper = false;
            return Plan::Leave;
        }
        let retires = self.open.iter().map(Block::retires);
        let retires = retires.chain(self.spent.iter().map(Closed::retires));
        let asks = (self.demand.is_hot() && self.is_low()).then_some(self.ask_at);
        // A hot key of which nothing is held and for which nobody asks is none.
        Plan::Wait(retires.chain(asks).filter(|at| *at > now).min())
    }

    /// Redis has answered, or not.
    pub(super) fn learn(
        &mut self,
        spent: Returned,
        ask: Ask,
        answer: Result<Leased, StoreError>,
        clock: &Clock,
    ) {
        let (now, ttl) = (clock.now(), self.lease.time_to_live().get());
        match answer {
            Ok(leased) if leased.granted.units > 0 => {
                let (start, end) = clock.span(&leased);
                let granted = leased.granted;
                self.open.push_back(Block {
                    id: ask.id,
                    units: granted.units,
                    left: granted.units,
                    start,
                    end,
                    in_use_since: now,
                    granted_at: leased.decided_at,
                    remaining: granted.remaining,
                    reset_after: granted.reset_after,
                });
            }
            Ok(leased) if ask.units > 0 => {
                let wait = leased.granted.retry_after.get().clamp(ttl / 16, ttl);
                self.ask_at = now + wait;
                self.demand.went_without(now);
            }
            Ok(_) => {}
            Err(error) => {
                // Told again, it is settled once. What was asked for may have been granted, and
                // is not asked for again before that has lapsed.
                self.spent.extend(spent.0);
                let wait = if error.may_have_charged() { ttl } else { ttl / 8 };
                self.ask_at = now + wait.max(1);
                self.demand.went_without(now);
            }
        }
    }

    /// Gives up all that is held, and says what there is to tell Redis.
    pub(super) fn close(&mut self, now: Moment) -> Returned {
        while !self.open.is_empty() {
            self.close_first(now);
        }
        self.spent.retain(|closed| closed.end > now);
        Returned(std::mem::take(&mut self.spent))
    }

    /// Closes blocks that are used up, or ought to go back so that others can use the rest.
    fn retire(&mut self, now: Moment) {
        while let Some(block) = self.open.front() {
            let used = block.units - block.left;
            if block.left == 0 {
                self.demand.used_up(now.saturating_sub(block.in_use_since));
            } else if block.retires() <= now {
                self.demand.returned(block.units, used);
            } else {
                return;
            }
            self.close_first(now);
        }
    }

    fn close_first(&mut self, now: Moment) {
        if let Some(Block { id, units, left, start, end, .. }) = self.next(now) {
            let spent = Spent { id, units: units - left };
            self.spent.push(Closed { spent, units, start, end });
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

impl Block {
    fn retires(&self) -> Moment {
        retires(self.start, self.end)
    }
}

impl Closed {
    fn retires(&self) -> Moment {
        retires(self.start, self.end)
    }
}

impl Returned {
    pub(super) fn spent(&self) -> SmallVec<[Spent; 2]> {
        self.0.iter().map(|closed| closed.spent).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// When what is left of a block goes back: a quarter of its time is left for that, and for a
/// second attempt.
const fn retires(start: Moment, end: Moment) -> Moment {
    end.saturating_sub(end.saturating_sub(start) / 4)
}

/// Where a replica may hold no more than one unit, a block is a decision.
const LEAST: u64 = 2;
