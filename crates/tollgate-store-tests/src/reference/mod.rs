//! A store that is as simple as possible. All other stores are compared with it, so it has to be
//! right by reading: this file contains the operations, `stored` a key's states under all
//! versions of its quota, and `lease` and `lease_block` the blocks of units that replicas hold.

mod lease;
mod lease_block;
mod stored;

use std::collections::{HashMap, HashSet};

use tollgate_core::algorithm::Rule;
use tollgate_core::{
    AnyRule, Charge, Cost, Decision, Key, Micros, Outcome, PenaltyBlock, Policy, Receipt,
    ReceiptId, Settlement, Timestamp, Verdict, with_rule,
};

pub use self::lease::{Hold, Holds};
use self::stored::{Change, Stored, StoredRule, Version, with_state};

/// A map, and the core's pure functions. Time is an argument, operations run one after the other,
/// and keys are never forgotten, so little can go wrong.
#[derive(Clone, Debug, Default)]
pub struct Reference {
    keys: HashMap<Slot, Stored>,
    settled: HashSet<ReceiptId>,
    /// When keys were last reset.
    resets: HashMap<Slot, Timestamp>,
}
impl Reference {
    /// Decides like a store with its clock at `now`.
    pub fn decide(&mut self, charges: &[Charge<'_>], now: Timestamp) -> Verdict {
        let made: Vec<_> = charges.iter().filter(|charge| !charge.dry).copied().collect();
        let verdict = self.decide_made(&made, now);
        let mut made = verdict.decisions().iter().copied();
        let decisions = charges.iter().map(|charge| match charge.dry {
            true => self.assess_dry(charge, now),
            false => made.next().expect("a decision for each charge"),
        });
        let decisions: Vec<_> = decisions.collect();
        Verdict::new(verdict.is_admitted(), now, decisions)
    }

    /// Decides on a dry charge.
    fn assess_dry(&self, charge: &Charge<'_>, now: Timestamp) -> Decision {
        let decision = self.assess_queued(charge, now, now);
        if decision.denies() {
            return decision;
        }
        Decision { outcome: Outcome::WouldAllow, ..self.assess(charge, Cost::ZERO, now, now) }
    }

    /// For each charge in a request that was denied at `now`, returns how long its key will have no
    /// units left. Zero if the key has a unit, for a dry charge, and for a state under another
    /// rule. Empty for an admitted request.
    pub fn frozen(&self, charges: &[Charge<'_>], verdict: &Verdict, now: Timestamp) -> Vec<Micros> {
        if verdict.is_admitted() {
            return Vec::new();
        }
        // Dry charges do not count towards the sum.
        let made: Vec<_> = charges.iter().filter(|charge| !charge.dry).copied().collect();
        let frozen = |(charge, decision): (&Charge<'_>, &Decision)| {
            let rule = charge.policy.rule();
            let is_held =
                self.stored(&slot(charge), now).versions.iter().any(|it| it.rule == *rule);
            if charge.dry
                || summed(&made, charge).queue.is_some()
                || !decision.denies()
                || decision.remaining > 0
                || !is_held
            {
                return Micros::ZERO;
            }
            self.assess(charge, Cost::ONE, now, now).retry_after().unwrap_or_default()
        };
        charges.iter().zip(verdict.decisions()).map(frozen).collect()
    }

    fn decide_made(&mut self, charges: &[Charge<'_>], now: Timestamp) -> Verdict {
        let charges: Vec<_> = charges.iter().map(|charge| summed(charges, charge)).collect();
        let leaves_at = self.leaves_at(&charges, now);
        let decide = |charge: &Charge<'_>| self.assess_queued(charge, leaves_at, now);
        let mut decisions: Vec<Decision> = charges.iter().map(decide).collect();
        let denied =
            |(charge, decision): (&Charge<'_>, &Decision)| charge.enforce && decision.denies();
        let admitted = !charges.iter().zip(&decisions).any(denied);
        if !admitted {
            self.strike(&charges, &mut decisions, now);
        }
        let mut done = Vec::new();
        for (charge, decision) in charges.iter().zip(&mut decisions) {
            if decision.denies() {
                continue;
            }
            if !admitted {
                let untouched = self.assess(charge, Cost::ZERO, now, now);
                *decision = Decision { outcome: Outcome::WouldAllow, ..untouched };
            } else if !done.contains(&slot(charge)) && !charge.policy.is_penalty() {
                done.push(slot(charge));
                if charge.cost > Cost::ZERO {
                    let at = if charge.queue.is_some() { now + decision.delay() } else { now };
                    let change = Change::Charge(charge.cost, at);
                    self.change(charge.policy.rule(), slot(charge), now, change);
                }
            }
        }
        Verdict::new(admitted, now, decisions)
    }

    /// Returns the first instant at which all charges that queue are allowed, and not before the
    /// last instant that was given to any of their keys.
    fn leaves_at(&self, charges: &[Charge<'_>], now: Timestamp) -> Timestamp {
        let mut at = now;
        let mut moved = true;
        while moved {
            moved = false;
            for charge in
                charges.iter().filter(|it| it.enforce && it.queue.is_some() && it.cost > Cost::ZERO)
            {
                // Blocks of leased units lapse at unknown instants.
                let from = if self.has_leases(charge, now) { now } else { at };
                let next = match self.assess_leaving(charge, from, now).outcome {
                    Outcome::Allow { charged_at, .. } => charged_at.max(at),
                    Outcome::Deny { retry_after } => at.max(from + retry_after),
                    _ => at,
                };
                moved |= next > at;
                at = next;
            }
        }
        at
    }

    fn has_leases(&self, charge: &Charge<'_>, now: Timestamp) -> bool {
        !self.stored(&slot(charge), now).holds.is_empty()
    }

    /// Returns the decision on a charge whose request leaves at `at`, or later if it is a shadow
    /// that queues on its own.
    fn assess_queued(&self, charge: &Charge<'_>, at: Timestamp, now: Timestamp) -> Decision {
        let queue = charge.queue.filter(|_| charge.cost > Cost::ZERO);
        let Some(queue) = queue else { return self.assess_leaving(charge, now, now) };
        let at = if charge.enforce {
            at
        } else {
            let alone = Charge { enforce: true, ..*charge };
            at.max(self.leaves_at(&[alone], now))
        };
        let wait = at.since(now);
        let is_leased = self.has_leases(charge, now);
        let at = if is_leased { now } else { at };
        let mut decision = self.assess_leaving(charge, at, now);
        if is_leased {
            if wait > Micros::ZERO && decision.allows() {
                decision.outcome = Outcome::Deny { retry_after: wait };
                decision.remaining = 0;
            }
            return decision;
        }
        if decision.reset_after > Micros::ZERO {
            decision.reset_after = Micros::new(decision.reset_after.get() + wait.get());
        }
        match &mut decision.outcome {
            Outcome::Allow { .. } if wait > queue => {
                let retry_after = Micros::new(wait.get() - queue.get());
                decision.outcome = Outcome::Deny { retry_after };
                decision.remaining = 0;
            }
            Outcome::Allow { delay, .. } => *delay = wait,
            // Only at the end of time.
            Outcome::Deny { retry_after } => {
                *retry_after = Micros::new(retry_after.get() + wait.get());
            }
            _ => {}
        }
        decision
    }

    /// Returns the decision on a charge that must leave its headroom.
    fn assess_leaving(&self, charge: &Charge<'_>, at: Timestamp, now: Timestamp) -> Decision {
        let decision = self.assess(charge, charge.required(), at, now);
        if decision.denies() { decision } else { self.assess(charge, charge.cost, at, now) }
    }

    /// Adds a strike to the penalties for keys that another policy denies, and updates their
    /// decisions.
    fn strike(&mut self, charges: &[Charge<'_>], decisions: &mut [Decision], now: Timestamp) {
        let denies = |(charge, decision): (&Charge<'_>, &Decision)| {
            (charge.enforce && decision.denies() && !charge.policy.is_penalty())
                .then(|| charge.key.clone())
        };
        let denied: Vec<Key> = charges.iter().zip(&*decisions).filter_map(denies).collect();
        let mut struck = Vec::new();
        for (charge, decision) in charges.iter().zip(decisions) {
            if !charge.policy.counts_denials()
                || charge.cost == Cost::ZERO
                || !denied.contains(charge.key)
            {
                continue;
            }
            if !struck.contains(&slot(charge)) {
                struck.push(slot(charge));
                self.change(charge.policy.rule(), slot(charge), now, Change::Owe(1));
            }
            *decision = self.assess_leaving(charge, now, now);
        }
    }

    /// Settles like a store with its clock at `now`.
    pub fn settle(&mut self, receipt: &Receipt, actual: Cost, now: Timestamp) -> Settlement {
        if receipt.has_lapsed(now) {
            return Settlement::Lapsed;
        }
        if !self.settled.insert(receipt.id) {
            return Settlement::Repeated;
        }
        let (charged, actual) = (receipt.charged, actual.get());
        let (cost, any) = (charged.cost.get(), receipt.policy.rule());
        let slot = slot_of(&receipt.policy, &receipt.key);
        let mut stored = self.stored(&slot, now);
        if actual > cost {
            // A debt is charged under the current quota, if the receipt's quota is not used any
            // more.
            let rule = match stored.version(any) {
                Some(index) => &stored.versions[index].rule,
                None => stored.source(any, now).map_or(any, |version| &version.rule),
            };
            let units = self.change(rule, slot, now, Change::Owe(actual - cost));
            return Settlement::Charged { units };
        }
        if stored.is_fresh(now) {
            return Settlement::Returned { units: 0 };
        }
        let refunded = stored.give_back(any, now, charged, cost - actual);
        if refunded.is_some() {
            self.keys.insert(slot, stored);
        }
        Settlement::Returned { units: refunded.unwrap_or_default() }
    }

    /// Renews a permit like a store with its clock at `now`.
    ///
    /// # Panics
    /// If the policy is not a concurrency limit.
    pub fn renew(&mut self, receipt: &Receipt, now: Timestamp) -> Option<Receipt> {
        if self.settled.contains(&receipt.id) {
            return None;
        }
        let slot = slot_of(&receipt.policy, &receipt.key);
        let any = receipt.policy.rule();
        let AnyRule::ConcurrentRequests(rule) = any else { panic!("there is no permit") };
        let (charged, cost) = (receipt.charged, receipt.charged.cost.get());
        let mut stored = self.stored(&slot, now);
        let is_known = |version: &usize| {
            let version = &stored.versions[*version];
            !version.is_fresh(now) && charged.charged_at >= version.since
        };
        let is_known = stored.version(any).filter(is_known).is_some();
        let index = stored.version_mut(any, now, self.was_reset(&slot, now));
        let mut state = rule.read(&stored.versions[index]);
        if is_known {
            rule.give_back(&mut state, &charged, cost, now);
        }
        let charged_at = rule.renew(&mut state, cost, now);
        stored.versions[index].state = rule.wrap(state);
        self.keys.insert(slot, stored);
        Some(receipt.begun_at(charged_at))
    }

    /// Blocks a key under all versions of a penalty. Returns the time left under `policy`.
    pub fn block(
        &mut self,
        policy: &Policy,
        key: &Key,
        block: PenaltyBlock,
        now: Timestamp,
    ) -> Option<Micros> {
        let (slot, any) = (slot_of(policy, key), policy.rule());
        let mut stored = self.stored(&slot, now);
        let mut left = with_rule!(any, rule => {
            rule.block(&mut stored.read(rule, any, now), block, now)
        });
        left?;
        let own = stored.version_mut(any, now, self.was_reset(&slot, now));
        let versions = stored.versions.iter_mut().enumerate();
        for (index, version) in versions.filter(|(_, it)| it.rule.counts_with(any)) {
            let blocked = with_state!(version, rule, state => rule.block(&mut state, block, now));
            if index == own {
                left = blocked;
            }
        }
        self.keys.insert(slot, stored);
        left
    }

    /// Removes a key's state at `now`. Leases remain, because replicas may still spend them.
    pub fn reset(&mut self, policy: &Policy, key: &Key, now: Timestamp) {
        let slot = slot_of(policy, key);
        let mut stored = self.stored(&slot, now);
        self.keys.remove(&slot);
        stored.versions.retain(Version::is_rate_limit);
        if !stored.holds.is_empty() {
            stored.versions.truncate(1);
            for version in &mut stored.versions {
                version.state = with_rule!(&version.rule, rule => rule.wrap(rule.fresh()));
                version.since = version.since.max(now + Micros::new(1));
            }
            self.keys.insert(slot.clone(), stored);
        }
        self.resets.insert(slot, now);
    }

    /// Forgets that keys were reset, which a store may do from the next microsecond on.
    pub fn forget_resets(&mut self) {
        self.resets.clear();
    }

    /// Drops a key's state, which a store may do if the state is fresh. This makes a difference
    /// only if the clock steps back.
    pub fn drop_state(&mut self, policy: &Policy, key: &Key) {
        self.keys.remove(&slot_of(policy, key));
    }

    /// Moves a key's state to another store, as when a Cluster moves a slot.
    pub fn hand_over(&mut self, policy: &Policy, key: &Key, to: &mut Self) {
        let slot = slot_of(policy, key);
        if let Some(stored) = self.keys.remove(&slot) {
            to.keys.insert(slot, stored);
        }
    }

    /// Remembers that a receipt was settled, in another store.
    pub fn mark_settled(&mut self, id: ReceiptId) {
        self.settled.insert(id);
    }

    /// Whether a key has a state that must not be forgotten.
    pub fn is_held(&self, policy: &Policy, key: &Key, now: Timestamp) -> bool {
        !self.stored(&slot_of(policy, key), now).is_fresh(now)
    }

    /// How long until a key can be forgotten.
    pub fn fresh_after(&self, policy: &Policy, key: &Key, now: Timestamp) -> Micros {
        let stored = self.stored(&slot_of(policy, key), now);
        if stored.is_fresh(now) {
            return Micros::ZERO;
        }
        let empty = Holds::default();
        let fresh_after = |version: &Version| {
            let holds = if version.is_rate_limit() { &stored.holds } else { &empty };
            with_rule!(&version.rule, rule => holds.fresh_after(rule, &rule.read(version), now))
        };
        stored.versions.iter().map(fresh_after).max().unwrap_or_default()
    }

    /// Returns the decision that would be made on `cost` at `at`.
    fn assess(&self, charge: &Charge<'_>, cost: Cost, at: Timestamp, now: Timestamp) -> Decision {
        let (any, stored) = (charge.policy.rule(), self.stored(&slot(charge), now));
        with_rule!(any, rule => {
            let state = stored.read(rule, any, now);
            stored.holds.assess(rule, rule.refresh(&state, at), at, cost)
        })
    }

    /// Charges a key under `any`.
    fn change(&mut self, any: &AnyRule, slot: Slot, now: Timestamp, change: Change) -> u64 {
        let mut stored = self.stored(&slot, now);
        let charged = stored.change(any, now, self.was_reset(&slot, now), change);
        self.keys.insert(slot, stored);
        charged
    }

    fn was_reset(&self, slot: &Slot, now: Timestamp) -> bool {
        self.resets.get(slot) == Some(&now)
    }

    /// Returns a key at `now`.
    fn stored(&self, slot: &Slot, now: Timestamp) -> Stored {
        let mut stored = self.keys.get(slot).cloned().unwrap_or_default();
        stored.lapse(now);
        stored
    }
}
/// A policy name and a key's bytes, which together identify a state.
type Slot = (String, Vec<u8>);

fn slot(charge: &Charge<'_>) -> Slot {
    slot_of(charge.policy, charge.key)
}

fn slot_of(policy: &Policy, key: &Key) -> Slot {
    (policy.name().to_owned(), key.as_bytes().to_vec())
}

/// Returns a charge with all that the request charges to the same key. A shadow charge takes no units
/// from a quota that an enforced charge also uses.
fn summed<'a>(charges: &[Charge<'a>], charge: &Charge<'a>) -> Charge<'a> {
    let same = || charges.iter().filter(|other| slot(other) == slot(charge));
    let enforce = same().any(|other| other.enforce);
    let mut counted = same().filter(|other| other.enforce == enforce);
    let first = *counted.next().unwrap_or(charge);
    counted.fold(first, |sum, other| Charge {
        cost: sum.cost.plus(other.cost),
        headroom: sum.headroom.max(other.headroom),
        queue: sum.queue.and_then(|queue| Some(queue.min(other.queue?))),
        ..sum
    })
}
