//! Leases: blocks of units that replicas spend without a further decision.

use tollgate_core::algorithm::Rule;
use tollgate_core::{Cost, Granted, Key, Micros, Policy, Timestamp, with_rule};

use super::stored::{Stored, StoredRule, with_state};
use super::{Reference, slot_of};

impl Reference {
    /// Whether a key has a block with this ID that can still be spent.
    pub fn knows_block(&self, policy: &Policy, key: &Key, id: u64, now: Timestamp) -> bool {
        self.stored(&slot_of(policy, key), now).holds.iter().any(|hold| hold.id == id)
    }

    /// Settles a key's blocks, given as IDs with the units spent, and grants a new block of up to
    /// `units`.
    pub fn lease(
        &mut self,
        (policy, key): (&Policy, &Key),
        now: Timestamp,
        spent: &[(u64, u64)],
        (id, units, ttl): (u64, u64, Micros),
    ) -> Granted {
        let (slot, any) = (slot_of(policy, key), policy.rule());
        let mut stored = self.stored(&slot, now);
        let mut is_known = false;
        for (id, used) in spent {
            is_known |= stored.settle_block(now, *id, *used);
        }
        if is_known {
            self.keys.insert(slot.clone(), stored.clone());
        }
        with_rule!(any, rule => {
            let state = stored.read(rule, any, now);
            let hold = stored.holds.grant(rule, &state, now, id, units, ttl);
            let view = rule.refresh(&state, now);
            let left = stored.holds.assess(rule, view, now, Cost::ZERO);
            let retry_after = match hold {
                Some(_) => Micros::ZERO,
                None => {
                    let decision = stored.holds.assess(rule, view, now, Cost::ONE);
                    decision.retry_after().unwrap_or_default()
                }
            };
            if hold.is_some() {
                stored.version_mut(any, now, self.was_reset(&slot, now));
                self.keys.insert(slot, stored);
            }
            Granted {
                units: hold.map_or(0, |hold| hold.units),
                lasts: hold.map_or(Micros::ZERO, |hold| hold.until.since(now)),
                remaining: left.remaining,
                reset_after: left.reset_after,
                retry_after,
            }
        })
    }
}

impl Stored {
    /// Charges the blocks that have lapsed.
    pub(super) fn lapse(&mut self, now: Timestamp) {
        let before = self.holds.clone();
        let mut after = before.clone();
        for version in self.rate_limits() {
            after = before.clone();
            with_state!(version, rule, state => after.lapse(&rule, &mut state, now));
        }
        self.holds = after;
    }

    /// Settles a block under all versions. Returns whether the key had the block.
    fn settle_block(&mut self, now: Timestamp, id: u64, used: u64) -> bool {
        let before = self.holds.clone();
        let (mut after, mut is_known) = (before.clone(), false);
        for version in self.rate_limits() {
            after = before.clone();
            is_known = with_state!(version, rule, state => {
                after.settle(&rule, &mut state, now, id, used)
            });
        }
        self.holds = after;
        is_known
    }
}
