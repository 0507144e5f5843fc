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
    keys: HashMap<Slot, Stored>,
    settled: HashSet<ReceiptId>,
    /// When keys were last reset.
    resets: HashMap<Slot, Timestamp>,
}

/// A key: a state for each version of its policy, oldest first.
#[derive(Clone, Debug, Default)]
struct Stored {
    versions: Vec<Version>,
    /// The replicas' leases. Replicas may spend these units without a further decision.
    holds: Holds,
}

/// A state, and the rule under which it is stored.
#[derive(Clone, Debug)]
struct Version {
    rule: AnyRule,
    state: AnyState,
    /// Charges before this instant cannot be identified: the key had not been charged under this
    /// rule yet, was reset since, or the state was too full to count all of them. If this version
    /// started from another one's state, that state may contain other versions' charges at this
    /// instant.
    since: Timestamp,
}

/// The largest number of versions that count together. Another version replaces the oldest.
const MAX_VERSIONS: usize = 4;

impl Stored {
    fn version(&self, rule: &AnyRule) -> Option<usize> {
        let same = |version: &Version| version.rule == *rule || both_in_flight(&version.rule, rule);
        self.versions.iter().position(same)
    }

    /// Returns the version from which a new version starts: the oldest that counts the same charges
    /// and is not fresh.
    fn source(&self, rule: &AnyRule, now: Timestamp) -> Option<&Version> {
        let counts = |version: &&Version| version.rule.counts_with(rule) && !version.is_fresh(now);
        self.versions.iter().filter(counts).rev().max_by_key(|version| version.reset_after(now))
    }

    /// Returns the state under `rule`: its own, a converted state, or a fresh state.
    fn read<R: Kind>(&self, rule: &R, any: &AnyRule, now: Timestamp) -> R::State {
        match self.version(any).map(|index| &self.versions[index]) {
            Some(version) => rule.read(version),
            None => self.source(any, now).map_or_else(|| rule.fresh(), |from| rule.read(from)),
        }
    }

    /// Returns the version for `rule`, added if necessary. A charge made in the same microsecond as
    /// an earlier charge or a reset cannot be identified, so its receipt is not valid.
    fn version_mut(&mut self, any: &AnyRule, now: Timestamp, was_reset: bool) -> usize {
        let next = Micros::new(1);
        let state = with_rule!(any, rule => rule.wrap(self.read(rule, any, now)));
        if self.source(any, now).is_none() {
            // A store may have forgotten the other versions, which therefore make no difference.
            let own = self.version(any).map(|index| self.versions[index].rule.clone());
            self.versions.retain(|version| {
                !version.rule.counts_with(any) || Some(&version.rule) == own.as_ref()
            });
        }
        if let Some(index) = self.version(any) {
            // Permits retain their dates under another rule.
            let version = &mut self.versions[index];
            (version.rule, version.state) = (any.clone(), state);
            return index;
        }
        let since = match self.source(any, now) {
            Some(from) => now.max(from.since + next).max(from.counts_from() + next),
            None if was_reset => now + next,
            None => now,
        };
        let counting = self.versions.iter().filter(|version| version.rule.counts_with(any));
        if counting.count() == MAX_VERSIONS {
            let oldest = self.versions.iter().position(|version| version.rule.counts_with(any));
            self.versions.remove(oldest.expect("there are versions"));
        }
        self.versions.push(Version { rule: any.clone(), state, since });
        self.versions.len() - 1
    }

    /// Whether the key could be forgotten.
    fn is_fresh(&self, now: Timestamp) -> bool {
        self.holds.is_empty() && self.versions.iter().all(|version| version.is_fresh(now))
    }

    /// Charges the blocks that have lapsed.
    fn lapse(&mut self, now: Timestamp) {
        let mut holds = self.holds.clone();
        for version in self.versions.iter_mut().filter(|version| version.is_rate_limit()) {
            holds = self.holds.clone();
            with_rule!(version.rule.clone(), rule => {
                let mut state = rule.read(version);
                holds.lapse(&rule, &mut state, now);
                version.state = rule.wrap(state);
            });
        }
        self.holds = holds;
    }

    /// Settles a block under all versions. Returns whether the key had the block.
    fn settle_block(&mut self, now: Timestamp, id: u64, used: u64) -> bool {
        let mut holds = self.holds.clone();
        let mut is_known = false;
        for version in self.versions.iter_mut().filter(|version| version.is_rate_limit()) {
            holds = self.holds.clone();
            with_rule!(version.rule.clone(), rule => {
                let mut state = rule.read(version);
                is_known = holds.settle(&rule, &mut state, now, id, used);
                version.state = rule.wrap(state);
            });
        }
        self.holds = holds;
        is_known
    }
}

impl Version {
    fn reset_after(&self, now: Timestamp) -> Micros {
        with_rule!(self.rule.clone(), rule => {
            let state = rule.read(self);
            rule.assess(rule.refresh(&state, now), now, Cost::ZERO).reset_after
        })
    }

    const fn is_rate_limit(&self) -> bool {
        !matches!(self.rule, AnyRule::ConcurrentRequests(_) | AnyRule::Penalty(_))
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

            fn read(&self, version: &Version) -> Self::State {
                match (&version.rule, &version.state) {
                    (AnyRule::$rule(rule), AnyState::$rule(state)) if rule == self => state.clone(),
                    (AnyRule::$rule(rule), AnyState::$rule(state)) => self.convert(rule, state),
                    _ => {
                        let at = version.counts_from();
                        self.resume(version.consumed(at), at)
                    }
                }
            }
        })*

        impl Version {
            /// Whether the state could be forgotten.
            fn is_fresh(&self, now: Timestamp) -> bool {
                match (&self.rule, &self.state) {
                    $((AnyRule::$rule(rule), AnyState::$rule(state)) => rule.is_fresh(state, now),)*
                    _ => unreachable!("a state is stored with its own rule"),
                }
            }

            fn counts_from(&self) -> Timestamp {
                match (&self.rule, &self.state) {
                    $((AnyRule::$rule(rule), AnyState::$rule(state)) => rule.counts_from(state),)*
                    _ => unreachable!("a state is stored with its own rule"),
                }
            }

            /// Returns the units that count in the state.
            fn consumed(&self, now: Timestamp) -> u64 {
                match (&self.rule, &self.state) {
                    $((AnyRule::$rule(rule), AnyState::$rule(state)) => rule.consumed(state, now),)*
                    _ => unreachable!("a state is stored with its own rule"),
                }
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
    fn read(&self, version: &Version) -> Self::State;
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
            let rule = charge.policy.rule();
            let is_held =
                self.stored(&slot(charge), now).versions.iter().any(|it| it.rule == *rule);
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
        let (cost, any) = (charged.cost.get(), receipt.policy.rule());
        let slot = slot_of(&receipt.policy, &receipt.key);
        let stored = self.stored(&slot, now);
        if actual > cost {
            // A debt is charged under the current quota, if the receipt's quota is not used any more.
            let rule = match stored.version(any) {
                Some(index) => &stored.versions[index].rule,
                None => stored.source(any, now).map_or(any, |version| &version.rule),
            };
            let units = self.change(rule, slot, now, Change::Owe(actual - cost));
            return Settlement::Charged { units };
        }
        let units = self.give_back(any, &slot, now, charged, cost - actual);
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

    fn assess(&self, charge: &Charge<'_>, cost: Cost, now: Timestamp) -> Decision {
        let (any, stored) = (charge.policy.rule(), self.stored(&slot(charge), now));
        with_rule!(any, rule => {
            let state = stored.read(rule, any, now);
            stored.holds.assess(rule, rule.refresh(&state, now), now, cost)
        })
    }

    /// Charges a key under `any`. All other versions count the units.
    fn change(&mut self, any: &AnyRule, slot: Slot, now: Timestamp, change: Change) -> u64 {
        let mut stored = self.stored(&slot, now);
        let own = stored.version_mut(any, now, self.was_reset(&slot, now));
        let version = &mut stored.versions[own];
        let mut charged = with_rule!(any, rule => {
            let mut state = rule.read(version);
            let units = match change {
                Change::Charge(cost) => {
                    rule.charge(&mut state, now, cost);
                    cost.get()
                }
                Change::Owe(units) => rule.owe(&mut state, units, now),
            };
            version.state = rule.wrap(state);
            units
        });
        let units = change.units();
        for (index, version) in stored.versions.iter_mut().enumerate() {
            if index == own || !version.rule.counts_with(any) {
                continue;
            }
            with_rule!(version.rule.clone(), rule => {
                let mut state = rule.read(version);
                if rule.count(&mut state, units, now) {
                    charged = units;
                } else {
                    let next = now.max(version.counts_from()) + Micros::new(1);
                    version.since = version.since.max(next);
                }
                version.state = rule.wrap(state);
            });
        }
        if matches!(any, AnyRule::CalendarWindowCounter(_)) {
            // Calendar quotas cannot be leased, so all leased units are charged immediately.
            for version in stored.versions.iter_mut().filter(|version| version.is_rate_limit()) {
                with_rule!(version.rule.clone(), rule => {
                    let mut state = rule.read(version);
                    rule.owe(&mut state, stored.holds.units(), now);
                    version.state = rule.wrap(state);
                });
            }
            stored.holds = Holds::default();
        }
        self.keys.insert(slot, stored);
        charged
    }

    /// Refunds units under each version that can identify the charge. Returns the largest number
    /// refunded under any version.
    fn give_back(
        &mut self,
        any: &AnyRule,
        slot: &Slot,
        now: Timestamp,
        charged: Charged,
        units: u64,
    ) -> u64 {
        let mut stored = self.stored(slot, now);
        if stored.is_fresh(now) {
            return 0;
        }
        let (own, mut refunded, mut is_known) = (stored.version(any), 0, false);
        let oldest = stored.versions.iter().position(|version| version.rule.counts_with(any));
        for (index, version) in stored.versions.iter_mut().enumerate() {
            let is_own = own == Some(index);
            let is_identified = match is_own || oldest == Some(index) {
                true => charged.charged_at >= version.since,
                false => charged.charged_at > version.since,
            };
            if !version.rule.counts_with(any) || !is_identified {
                continue;
            }
            is_known = true;
            let charged = if is_own { charged } else { charged.elsewhere() };
            with_rule!(version.rule.clone(), rule => {
                let mut state = rule.read(version);
                let returned = rule.give_back(&mut state, &charged, units, now);
                if rule.restart_refunds(&mut state) {
                    version.since = now + Micros::new(1);
                }
                version.state = rule.wrap(state);
                refunded = refunded.max(returned);
            });
        }
        if is_known {
            self.keys.insert(slot.clone(), stored);
        }
        refunded
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

/// A charge to a state.
#[derive(Clone, Copy)]
enum Change {
    Charge(Cost),
    Owe(u64),
}

impl Change {
    const fn units(self) -> u64 {
        match self {
            Self::Charge(cost) => cost.get(),
            Self::Owe(units) => units,
        }
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
