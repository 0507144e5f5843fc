//! A store that is as simple as possible. All other stores are compared with it. It is one file, so
//! that a reader can check all of it from top to bottom.

use std::collections::{HashMap, HashSet};

use tollgate_core::algorithm::Rule;
use tollgate_core::{
    AnyRule, Charge, Charged, Cost, Decision, Granted, Holds, Key, Micros, Outcome, Policy,
    Receipt, ReceiptId, Settlement, Timestamp, Verdict, with_rule,
};

/// A map, and the core's pure functions. Time is an argument, operations run one after the other,
/// and keys are never forgotten, so little can go wrong.
#[derive(Clone, Debug, Default)]
pub struct Reference {
    states: HashMap<Slot, Stored>,
    settled: HashSet<ReceiptId>,
    /// When keys were last reset.
    resets: HashMap<Slot, Timestamp>,
}

/// A state, and the rule under which it is stored.
#[derive(Clone, Debug)]
struct Stored {
    rule: AnyRule,
    state: AnyState,
    /// Charges before this instant cannot be identified: the key had not been charged yet, was
    /// reset since, or its state was converted from another quota.
    since: Timestamp,
    /// The replicas' leases. Replicas may spend these units without a further decision.
    holds: Holds,
}

impl Stored {
    /// Whether this state can identify a receipt's charge.
    fn can_identify(&self, receipt: &Receipt) -> bool {
        let rule = receipt.policy.rule();
        (self.rule == *rule || both_in_flight(&self.rule, rule))
            && receipt.charged.charged_at >= self.since
    }
}

const fn both_in_flight(one: &AnyRule, other: &AnyRule) -> bool {
    matches!((one, other), (AnyRule::ConcurrentRequests(_), AnyRule::ConcurrentRequests(_)))
}

macro_rules! any_state {
    ($($rule:ident: $module:ident),*) => {
        /// A state for any algorithm.
        #[derive(Clone, Debug)]
        enum AnyState {
            $($rule(tollgate_core::algorithm::$module::State)),*
        }

        $(impl Kind for tollgate_core::algorithm::$module::$rule {
            fn wrap(&self, state: Self::State) -> AnyState {
                AnyState::$rule(state)
            }

            fn read(&self, stored: &Stored, now: Timestamp) -> Self::State {
                match (&stored.rule, &stored.state) {
                    (AnyRule::$rule(rule), AnyState::$rule(state)) if rule == self => state.clone(),
                    (AnyRule::$rule(rule), AnyState::$rule(state)) => self.convert(rule, state, now),
                    _ => self.resume(consumed(stored, now), now),
                }
            }
        })*

        /// Whether a state could be forgotten.
        fn is_fresh(stored: &Stored, now: Timestamp) -> bool {
            match (&stored.rule, &stored.state) {
                $((AnyRule::$rule(rule), AnyState::$rule(state)) => rule.is_fresh(state, now),)*
                _ => unreachable!("a state is stored with its own rule"),
            }
        }

        /// Returns the state after charging its expired holds.
        fn lapsed(mut stored: Stored, now: Timestamp) -> Stored {
            match (&stored.rule, &mut stored.state) {
                $((AnyRule::$rule(rule), AnyState::$rule(state)) => {
                    stored.holds.lapse(rule, state, now);
                })*
                _ => unreachable!("a state is stored with its own rule"),
            }
            stored
        }

        /// Returns the units that count in a state.
        fn consumed(stored: &Stored, now: Timestamp) -> u64 {
            match (&stored.rule, &stored.state) {
                $((AnyRule::$rule(rule), AnyState::$rule(state)) => rule.consumed(state, now),)*
                _ => unreachable!("a state is stored with its own rule"),
            }
        }
    };
}

any_state!(
    FixedWindowCounter: fixed_window_counter,
    SlidingWindowLog: sliding_window_log,
    SlidingWindowCounter: sliding_window_counter,
    TokenBucket: token_bucket,
    LeakyBucket: leaky_bucket,
    ConcurrentRequests: concurrent_requests,
    CalendarWindowCounter: calendar_window_counter,
    Penalty: penalty
);

/// A rule that can convert from and to [`AnyState`].
trait Kind: Rule {
    fn wrap(&self, state: Self::State) -> AnyState;
    fn read(&self, stored: &Stored, now: Timestamp) -> Self::State;
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
        let decision = self.assess(charge, charge.cost, now);
        if decision.denies() {
            return decision;
        }
        Decision { outcome: Outcome::WouldAllow, ..self.assess(charge, Cost::ZERO, now) }
    }

    /// For each charge in a request that was denied at `now`, returns how long its key will have no
    /// units left. Zero if the key has a unit, for a dry charge, and for a state under another
    /// rule. Empty for an admitted request.
    pub fn frozen(&self, charges: &[Charge<'_>], verdict: &Verdict, now: Timestamp) -> Vec<Micros> {
        if verdict.is_admitted() {
            return Vec::new();
        }
        let frozen = |(charge, decision): (&Charge<'_>, &Decision)| {
            let stored = self.stored(&slot(charge), now);
            let is_held = stored.is_some_and(|stored| stored.rule == *charge.policy.rule());
            if charge.dry || !decision.denies() || decision.remaining > 0 || !is_held {
                return Micros::ZERO;
            }
            self.assess(charge, Cost::ONE, now).retry_after().unwrap_or_default()
        };
        charges.iter().zip(verdict.decisions()).map(frozen).collect()
    }

    fn decide_made(&mut self, charges: &[Charge<'_>], now: Timestamp) -> Verdict {
        let enforced = |charge: &Charge<'_>| {
            charges.iter().any(|other| slot(other) == slot(charge) && other.enforce)
        };
        // A shadow charge takes no units from a quota that an enforced charge also uses.
        let total = |charge: &Charge<'_>| {
            let counts = |other: &&Charge<'_>| {
                slot(other) == slot(charge) && (other.enforce || !enforced(charge))
            };
            charges.iter().filter(counts).fold(Cost::ZERO, |sum, other| sum.plus(other.cost))
        };
        let mut decisions: Vec<Decision> =
            charges.iter().map(|charge| self.assess(charge, total(charge), now)).collect();
        let denied =
            |(charge, decision): (&Charge<'_>, &Decision)| enforced(charge) && decision.denies();
        let admitted = !charges.iter().zip(&decisions).any(denied);
        if !admitted {
            self.strike(charges, &mut decisions, total, enforced, now);
        }
        let mut done = Vec::new();
        for (charge, decision) in charges.iter().zip(&mut decisions) {
            if decision.denies() {
                continue;
            }
            if !admitted {
                let untouched = self.assess(charge, Cost::ZERO, now);
                *decision = Decision { outcome: Outcome::WouldAllow, ..untouched };
            } else if !done.contains(&slot(charge)) && !charge.policy.is_penalty() {
                done.push(slot(charge));
                let cost = total(charge);
                if cost > Cost::ZERO {
                    self.change(charge.policy.rule(), slot(charge), now, Change::Charge(cost));
                }
            }
        }
        Verdict::new(admitted, now, decisions)
    }

    /// Adds a strike to the penalties for keys that another policy denies, and updates their
    /// decisions.
    fn strike(
        &mut self,
        charges: &[Charge<'_>],
        decisions: &mut [Decision],
        total: impl Fn(&Charge<'_>) -> Cost,
        enforced: impl Fn(&Charge<'_>) -> bool,
        now: Timestamp,
    ) {
        let denies = |(charge, decision): (&Charge<'_>, &Decision)| {
            (enforced(charge) && decision.denies() && !charge.policy.is_penalty())
                .then(|| charge.key.clone())
        };
        let denied: Vec<Key> = charges.iter().zip(&*decisions).filter_map(denies).collect();
        let mut struck = Vec::new();
        for (charge, decision) in charges.iter().zip(decisions) {
            let cost = total(charge);
            if !charge.policy.counts_denials() || cost == Cost::ZERO || !denied.contains(charge.key)
            {
                continue;
            }
            if !struck.contains(&slot(charge)) {
                struck.push(slot(charge));
                self.change(charge.policy.rule(), slot(charge), now, Change::Owe(1));
            }
            *decision = self.assess(charge, cost, now);
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
        let cost = charged.cost.get();
        let slot = slot_of(&receipt.policy, &receipt.key);
        let held = self.held(&slot, now);
        let held = held.as_ref();
        if actual > cost {
            // A debt is charged under the current quota.
            let rule = held.map_or_else(|| receipt.policy.rule().clone(), |held| held.rule.clone());
            let units = self.change(&rule, slot, now, Change::Owe(actual - cost));
            return Settlement::Charged { units };
        }
        let Some(held) = held.filter(|held| held.can_identify(receipt)) else {
            return Settlement::Returned { units: 0 };
        };
        let rule = held.rule.clone();
        let units = self.change(&rule, slot, now, Change::GiveBack(charged, cost - actual));
        Settlement::Returned { units }
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
        let is_known = self.held(&slot, now).is_some_and(|held| held.can_identify(receipt));
        let since = self.since(any, &slot, now);
        let mut state = self.read(rule, &slot, now);
        if is_known {
            rule.give_back(&mut state, &charged, cost, now);
        }
        let charged_at = rule.renew(&mut state, cost, now);
        let holds = self.holds(&slot, now);
        self.states
            .insert(slot, Stored { rule: any.clone(), state: rule.wrap(state), since, holds });
        Some(receipt.begun_at(charged_at))
    }

    /// Removes a key's state at `now`. Leases remain, because replicas may still spend them.
    pub fn reset(&mut self, policy: &Policy, key: &Key, now: Timestamp) {
        let slot = slot_of(policy, key);
        let stored = self.stored(&slot, now).filter(|stored| !stored.holds.is_empty());
        self.states.remove(&slot);
        if let Some(stored) = stored {
            let state = with_rule!(&stored.rule, rule => rule.wrap(rule.fresh()));
            let since = stored.since.max(now + Micros::new(1));
            self.states.insert(slot.clone(), Stored { state, since, ..stored });
        }
        self.resets.insert(slot, now);
    }

    /// Whether a key has a block with this ID that can still be spent.
    pub fn knows_block(&self, policy: &Policy, key: &Key, id: u64, now: Timestamp) -> bool {
        self.holds(&slot_of(policy, key), now).iter().any(|hold| hold.id == id)
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
        let slot = slot_of(policy, key);
        if let Some(mut stored) = self.stored(&slot, now) {
            let mut is_known = false;
            with_rule!(stored.rule.clone(), rule => {
                let mut state = self.read(&rule, &slot, now);
                for (id, used) in spent {
                    is_known |= stored.holds.settle(&rule, &mut state, now, *id, *used);
                }
                stored.state = rule.wrap(state);
            });
            if is_known {
                self.states.insert(slot.clone(), stored);
            }
        }
        let since = self.since(policy.rule(), &slot, now);
        with_rule!(policy.rule(), rule => {
            let state = self.read(rule, &slot, now);
            let mut holds = self.holds(&slot, now);
            let hold = holds.grant(rule, &state, now, id, units, ttl);
            let view = rule.refresh(&state, now);
            let left = holds.assess(rule, view, now, Cost::ZERO);
            let retry_after = match hold {
                Some(_) => Micros::ZERO,
                None => holds.assess(rule, view, now, Cost::ONE).retry_after().unwrap_or_default(),
            };
            if hold.is_some() {
                let (any, state) = (policy.rule().clone(), rule.wrap(state));
                self.states.insert(slot, Stored { rule: any, state, since, holds });
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

    /// Forgets that keys were reset, which a store may do from the next microsecond on.
    pub fn forget_resets(&mut self) {
        self.resets.clear();
    }

    /// Drops a key's state, which a store may do if the state is fresh. This makes a difference
    /// only if the clock steps back.
    pub fn drop_state(&mut self, policy: &Policy, key: &Key) {
        self.states.remove(&slot_of(policy, key));
    }

    /// Moves a key's state to another store, as when a Cluster moves a slot.
    pub fn hand_over(&mut self, policy: &Policy, key: &Key, to: &mut Self) {
        let slot = slot_of(policy, key);
        if let Some(stored) = self.states.remove(&slot) {
            to.states.insert(slot, stored);
        }
    }

    /// Remembers that a receipt was settled, in another store.
    pub fn mark_settled(&mut self, id: ReceiptId) {
        self.settled.insert(id);
    }

    /// Whether a key has a state that must not be forgotten.
    pub fn is_held(&self, policy: &Policy, key: &Key, now: Timestamp) -> bool {
        self.held(&slot_of(policy, key), now).is_some()
    }

    /// How long until a key's state is fresh, under its stored rule.
    pub fn fresh_after(&self, policy: &Policy, key: &Key, now: Timestamp) -> Micros {
        let slot = slot_of(policy, key);
        let Some(stored) = self.stored(&slot, now) else { return Micros::ZERO };
        if stored.holds.is_empty() && is_fresh(&stored, now) {
            return Micros::ZERO;
        }
        with_rule!(&stored.rule, rule => {
            stored.holds.fresh_after(rule, &self.read(rule, &slot, now), now)
        })
    }

    fn assess(&self, charge: &Charge<'_>, cost: Cost, now: Timestamp) -> Decision {
        with_rule!(charge.policy.rule(), rule => {
            let state = self.read(rule, &slot(charge), now);
            self.holds(&slot(charge), now).assess(rule, rule.refresh(&state, now), now, cost)
        })
    }

    fn change(&mut self, any: &AnyRule, slot: Slot, now: Timestamp, change: Change) -> u64 {
        let since = self.since(any, &slot, now);
        with_rule!(any, rule => {
            let mut state = self.read(rule, &slot, now);
            let units = match change {
                Change::Charge(cost) => {
                    rule.charge(&mut state, now, cost);
                    cost.get()
                }
                Change::Owe(units) => rule.owe(&mut state, units, now),
                Change::GiveBack(charged, units) => rule.give_back(&mut state, &charged, units, now),
            };
            let mut holds = self.holds(&slot, now);
            if matches!(any, AnyRule::CalendarWindowCounter(_)) {
                // Calendar quotas cannot be leased, so all leased units are charged immediately.
                rule.owe(&mut state, holds.units(), now);
                holds = Holds::default();
            }
            self.states.insert(slot, Stored { rule: any.clone(), state: rule.wrap(state), since, holds });
            units
        })
    }

    /// Returns the instant from which receipts are valid under `rule`, for a key that changes at
    /// `now`. Charges made in the same microsecond as a change or a reset cannot be identified, so
    /// their receipts are not valid.
    fn since(&self, rule: &AnyRule, slot: &Slot, now: Timestamp) -> Timestamp {
        let next = now + Micros::new(1);
        match self.stored(slot, now) {
            Some(stored) if stored.rule == *rule => stored.since,
            // Permits retain their timestamps when the rule changes.
            Some(stored) if !is_fresh(&stored, now) && both_in_flight(&stored.rule, rule) => {
                stored.since
            }
            Some(stored) if !is_fresh(&stored, now) => stored.since.max(next),
            _ if self.resets.get(slot) == Some(&now) => next,
            _ => now,
        }
    }

    /// Returns a key's state if it must not be forgotten yet.
    fn held(&self, slot: &Slot, now: Timestamp) -> Option<Stored> {
        self.stored(slot, now).filter(|stored| !is_fresh(stored, now))
    }

    /// Returns a key's state at `now`.
    fn stored(&self, slot: &Slot, now: Timestamp) -> Option<Stored> {
        self.states.get(slot).map(|stored| lapsed(stored.clone(), now))
    }

    fn holds(&self, slot: &Slot, now: Timestamp) -> Holds {
        self.stored(slot, now).map(|stored| stored.holds).unwrap_or_default()
    }

    fn read<R: Kind>(&self, rule: &R, slot: &Slot, now: Timestamp) -> R::State {
        self.stored(slot, now).map_or_else(|| rule.fresh(), |stored| rule.read(&stored, now))
    }
}

/// A change to a state.
#[derive(Clone, Copy)]
enum Change {
    Charge(Cost),
    Owe(u64),
    GiveBack(Charged, u64),
}

/// A policy name and a key's bytes, which together identify a state.
type Slot = (String, Vec<u8>);

fn slot(charge: &Charge<'_>) -> Slot {
    slot_of(charge.policy, charge.key)
}

fn slot_of(policy: &Policy, key: &Key) -> Slot {
    (policy.name().to_owned(), key.as_bytes().to_vec())
}
