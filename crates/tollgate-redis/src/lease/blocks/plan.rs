//! When blocks are fetched and returned, and how Redis' answers are handled.

use tollgate_core::StoreError;

use super::Blocks;
use super::block::{Block, Closed, Returned};
use crate::calls::ticket::Leased;
use crate::clock::{Clock, Moment};
use crate::script::encode::{Ask, Spent};

/// The next action for a key.
#[derive(Debug)]
pub(crate) enum Plan {
    /// A call that reports spent units to Redis, and may request a new block.
    Call { spent: Returned, ask: Ask },
    /// Wait until this instant, or until the bell rings.
    Wait(Option<Moment>),
    /// Stop the refill task.
    Leave,
}

impl Blocks {
    /// Returns the next action.
    pub(crate) fn plan(&mut self, now: Moment, next_tag: impl FnOnce() -> u32) -> Plan {
        self.was_called = false;
        self.retire(now);
        self.spent.retain(|closed| closed.span.lapses > now);
        if now < self.call_at {
            return Plan::Wait(Some(self.call_at));
        }
        let ttl = self.lease.time_to_live();
        let held: u64 = self.open.iter().map(|block| block.units).sum();
        let is_asking = self.demand.is_hot() && self.is_low() && now >= self.ask_at;
        let units = self.demand.size().min(self.most.saturating_sub(held));
        if is_asking && units > 0 {
            return self.call(Ask { tag: next_tag(), units, ttl });
        }
        // Unspent units are returned immediately, because other replicas could use them. Fully
        // spent blocks are reported with the next call, if it is made before they retire.
        let is_due = |closed: &Closed| closed.spent.units < closed.units || closed.retires() <= now;
        if self.spent.iter().any(is_due) {
            return self.call(Ask { tag: 0, units: 0, ttl });
        }
        if self.open.is_empty() && self.spent.is_empty() && !self.demand.is_hot() {
            self.has_refill = false;
            return Plan::Leave;
        }
        let retires = self.open.iter().map(Block::retires);
        let retires = retires.chain(self.spent.iter().map(Closed::retires));
        let asks = (self.demand.is_hot() && self.is_low()).then_some(self.ask_at);
        // Without blocks and requests, a hot key cools down.
        Plan::Wait(retires.chain(asks).filter(|at| *at > now).min())
    }

    fn call(&mut self, ask: Ask) -> Plan {
        self.awaits_answer = true;
        Plan::Call { spent: Returned(std::mem::take(&mut self.spent)), ask }
    }

    /// Handles Redis' answer, or its absence.
    pub(crate) fn learn(
        &mut self,
        spent: Returned,
        ask: Ask,
        answer: Result<Leased, StoreError>,
        clock: &Clock,
    ) {
        self.awaits_answer = false;
        let (now, ttl) = (clock.now(), self.lease.time_to_live().get());
        match answer {
            Ok(leased) if leased.granted.units > 0 => {
                let span = clock.span(leased.sent, leased.granted.lasts.get());
                let (granted, id) = (leased.granted, ask.id(leased.decided_at));
                if !self.demand.is_hot() {
                    // The replica has returned its units, or the key has few requests by now.
                    let spent = Spent { id, units: 0 };
                    self.spent.push(Closed { spent, units: granted.units, span });
                    return;
                }
                self.open.push_back(Block {
                    id,
                    units: granted.units,
                    left: granted.units,
                    span,
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
                self.report_again(spent, now);
                // The block may have been granted, so it is not requested again before that grant
                // has lapsed.
                if error.may_have_charged() {
                    self.ask_at = now + ttl;
                }
                self.demand.went_without(now);
            }
        }
    }

    /// Repeats a report soon. A report that is sent twice is only settled once.
    pub(in crate::lease) fn report_again(&mut self, spent: Returned, now: Moment) {
        self.spent.extend(spent.0);
        // Leaves time for a few attempts before a returned block lapses.
        self.call_at = now + self.lease.time_to_live().get() / 16;
    }

    /// Closes blocks that are used up, or that must be returned so other replicas can use the rest.
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
}
