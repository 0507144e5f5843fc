//! Records all charges and refunds.

use std::collections::{BTreeMap, BTreeSet};

use tollgate_core::{Policy, Receipt, ReceiptId, Settlement, Source};

use super::definition::{self, Units};
use super::history::History;
use super::play::{Event, Made, What};

/// A policy's name, a key, and whether a fallback's local store has them.
pub(super) type Slot = (String, usize, bool);

/// All charges of all keys.
#[derive(Debug)]
pub(super) struct Ledger<'a> {
    history: &'a History,
    slots: BTreeMap<Slot, Charges>,
}

/// All charges to a quota of a key, since the key was reset.
#[derive(Clone, Debug, Default)]
pub(super) struct Charges {
    entries: Vec<LedgerEntry>,
    /// The versions under which the key was charged.
    used: BTreeSet<usize>,
    /// Charges and refunds at the instants at which the store made them.
    flow: Vec<Units>,
    /// The positions of refunds in the flow.
    refunds: BTreeSet<usize>,
    /// All units that any version may count, including debts.
    gross: u64,
    /// The last instant at which the store has changed the key.
    changed: u64,
    /// The last instant at which all of a version's charges had expired.
    over: BTreeMap<usize, u64>,
    /// The charges that had expired then.
    forgotten: BTreeSet<ReceiptId>,
    /// Quotas that a version may have granted again, because the clock stepped back.
    again: BTreeMap<usize, u64>,
    /// Whether a renewal may not have been counted in full.
    has_lapsed_renewal: bool,
}

#[derive(Clone, Debug)]
struct LedgerEntry {
    policy: usize,
    id: ReceiptId,
    at: u64,
    /// A permit's time to live.
    life: u64,
    is_permit: bool,
    is_debt: bool,
    /// Whether the units were spent from a lease's block, so the store has not seen this instant.
    is_leased: bool,
    /// The units that were not refunded.
    units: u64,
    /// The charge's position in [`Charges::flow`].
    position: usize,
}

impl<'a> Ledger<'a> {
    pub(super) const fn new(history: &'a History) -> Self {
        Self { history, slots: BTreeMap::new() }
    }

    pub(super) fn slot(&self, policy: usize, key: usize, source: Source) -> Slot {
        (self.history.policies[policy].name().to_owned(), key, source == Source::Local)
    }

    /// Returns the policy with which the slot's store decides: a share of it in a local store.
    pub(super) fn policy(&self, index: usize, slot: &Slot) -> Policy {
        let policy = &self.history.policies[index];
        if slot.2 { policy.share(1, 2).expect("a share") } else { policy.clone() }
    }

    pub(super) fn charges(&self, slot: &Slot) -> Charges {
        self.slots.get(slot).cloned().unwrap_or_default()
    }

    pub(super) fn record(&mut self, event: &Event) {
        match &event.what {
            What::Decided { made, .. } => {
                for made in made {
                    self.charge(made, made.receipt.charged.cost.get(), event.at, false);
                }
            }
            What::Settled { made, actual, settlement } => {
                self.settle(made, *actual, *settlement, event.at);
            }
            What::Renewed { made, renewed: Some(renewed) } => self.renew(made, renewed, event.at),
            What::Reset { policy, key, is_down } => {
                // A fallback's local store is reset in any case.
                let sources = [Some(Source::Local), (!is_down).then_some(Source::Store)];
                for source in sources.into_iter().flatten() {
                    let slot = self.slot(*policy, *key, source);
                    self.slots.insert(slot, Charges::default());
                }
            }
            What::Renewed { renewed: None, .. } | What::Early { .. } => {}
        }
    }

    fn of(&mut self, made: &Made, at: u64) -> &mut Charges {
        let slot = self.slot(made.policy, made.key, made.receipt.source);
        let charges = self.slots.entry(slot).or_default();
        charges.changed = charges.changed.max(at);
        charges
    }

    fn charge(&mut self, made: &Made, units: u64, at: u64, is_debt: bool) {
        let policy = &self.history.policies[made.policy];
        let (life, is_permit) = (policy.window().get(), policy.is_concurrency());
        let is_leased = !is_debt && made.receipt.source == Source::Lease;
        let (id, capacity) = (made.receipt.id, policy.capacity());
        let charges = self.of(made, at);
        if charges.over.get(&made.policy).is_some_and(|over| at < *over) {
            *charges.again.entry(made.policy).or_default() += capacity;
        }
        let policy = made.policy;
        if !is_debt {
            charges.gross += units;
        }
        let position = charges.flow.len();
        charges.used.insert(policy);
        let entry =
            LedgerEntry { policy, id, at, life, is_permit, is_debt, is_leased, units, position };
        charges.entries.push(entry);
        charges.flow.push(Units { at, units: units.cast_signed() });
    }

    fn settle(&mut self, made: &Made, actual: u64, settlement: Settlement, at: u64) {
        let id = made.receipt.id;
        match settlement {
            Settlement::Returned { units } => {
                let versions = self.history.versions(self.history.policies[made.policy].name());
                let charges = self.of(made, at);
                charges.refunds.insert(charges.flow.len());
                charges.flow.push(Units { at, units: -units.cast_signed() });
                if charges.forgotten.contains(&id) {
                    // A charge in the same microsecond cannot be told apart from this charge. A
                    // bucket refunds parts of a unit too, which it does not report.
                    let most = made.receipt.charged.cost.get().saturating_sub(actual);
                    for version in versions {
                        *charges.again.entry(version).or_default() += most;
                    }
                }
                if let Some(entry) = charges.entries.iter_mut().find(|entry| entry.id == id) {
                    entry.units = entry.units.min(actual);
                }
            }
            Settlement::Charged { units } => {
                let mut debt = made.clone();
                // Other versions may have room for more of it.
                self.of(made, at).gross += actual - made.receipt.charged.cost.get();
                // A settled receipt cannot be settled again.
                debt.receipt.id = ReceiptId(u128::MAX);
                self.charge(&debt, units, at, true);
            }
            Settlement::Repeated | Settlement::Lapsed => {}
        }
    }

    /// Restarts a permit's time to live.
    fn renew(&mut self, made: &Made, renewed: &Receipt, at: u64) {
        let id = made.receipt.id;
        let charges = self.of(made, at);
        let seen = charges.entries.iter().map(|entry| entry.at).fold(at, u64::max);
        let is_live = |entry: &&mut LedgerEntry| entry.id == id && entry.at + entry.life > seen;
        if let Some(entry) = charges.entries.iter_mut().find(is_live) {
            entry.at = at;
            return;
        }
        // It is charged again even beyond the limit, up to a debt of one capacity.
        charges.has_lapsed_renewal = true;
        let made = Made { receipt: renewed.clone(), ..made.clone() };
        let units = renewed.charged.cost.get();
        charges.entries.retain(|entry| entry.id != id);
        self.charge(&made, units, at, false);
    }

    /// Forgets expired charges, because a store may forget them too. This only makes a difference
    /// if the clock steps back.
    pub(super) fn forget(&mut self, now: u64) {
        for (slot, charges) in &mut self.slots {
            for policy in self.history.versions(&slot.0) {
                let own = charges.own(policy);
                let is_over = definition::counted(&self.history.policies[policy], &own, now) == 0;
                if is_over && !own.is_empty() {
                    let over = charges.entries.iter().filter(|entry| entry.policy == policy);
                    charges.forgotten.extend(over.map(|entry| entry.id));
                    charges.entries.retain(|entry| entry.policy != policy || entry.is_permit);
                    let seen = own.last().map_or(now, |last| now.max(last.at));
                    charges.over.insert(policy, seen);
                }
            }
            let seen = charges.entries.iter().map(|entry| entry.at).fold(now, u64::max);
            charges.entries.retain(|entry| !entry.is_permit || entry.at + entry.life > seen);
        }
    }
}

impl Charges {
    /// Returns a charge's position in the flow, if the key was not reset since.
    pub(super) fn position(&self, id: ReceiptId) -> Option<usize> {
        self.entries.iter().find(|entry| entry.id == id).map(|entry| entry.position)
    }

    /// Returns the charges under a version, without refunded units. If the key has several
    /// versions, this excludes debts, because the store may charge a debt under another version.
    pub(super) fn own(&self, policy: usize) -> Vec<Units> {
        self.entries_of(policy, self.used.len() == 1)
    }

    /// Returns the same charges without debts.
    pub(super) fn admitted(&self, policy: usize) -> Vec<Units> {
        self.entries_of(policy, false)
    }

    fn entries_of(&self, policy: usize, counts_debts: bool) -> Vec<Units> {
        let counts =
            |entry: &&LedgerEntry| entry.policy == policy && (counts_debts || !entry.is_debt);
        in_order(self.entries.iter().filter(counts))
    }

    /// Returns the charges under all versions, without refunded units.
    pub(super) fn all(&self) -> Vec<Units> {
        in_order(self.entries.iter())
    }

    /// Returns charges and refunds at the instants at which the store made them. They are in order,
    /// unless the clock has stepped back.
    pub(super) fn flow(&self) -> Vec<Units> {
        self.flow.clone()
    }

    /// Returns the flow with refunds rounded up, because a bucket reports only whole units.
    pub(super) fn flow_with_whole_refunds(&self) -> Vec<Units> {
        let round = |(position, it): (usize, &Units)| {
            let units = it.units - i64::from(self.refunds.contains(&position));
            Units { units, ..*it }
        };
        self.flow.iter().enumerate().map(round).collect()
    }

    /// All units that any version may count, including debts.
    pub(super) const fn gross(&self) -> u64 {
        self.gross
    }

    /// Returns the last instant that the store has seen for this key, which it may have forgotten.
    pub(super) fn seen(&self, now: u64) -> u64 {
        self.changed.max(now)
    }

    /// Returns the units in flight. A permit expires after its own policy's time to live.
    pub(super) fn in_flight(&self, now: u64) -> u64 {
        let seen = self.entries.iter().map(|entry| entry.at).fold(now, u64::max);
        let lasts = |entry: &&LedgerEntry| entry.is_permit && entry.at + entry.life > seen;
        self.entries.iter().filter(lasts).map(|entry| entry.units).sum()
    }

    /// Returns how many units may be granted again after the clock has stepped back.
    pub(super) fn again(&self, policy: usize) -> u64 {
        self.again.get(&policy).copied().unwrap_or_default()
    }

    pub(super) const fn has_lapsed_renewal(&self) -> bool {
        self.has_lapsed_renewal
    }
}

/// The store's time stops while the clock is behind the last charge that the store has seen.
fn in_order<'a>(entries: impl Iterator<Item = &'a LedgerEntry>) -> Vec<Units> {
    let mut seen = 0;
    let later = |entry: &LedgerEntry| {
        let at = entry.at.max(seen);
        if !entry.is_leased {
            seen = at;
        }
        Units { at, units: entry.units.cast_signed() }
    };
    let mut units: Vec<_> = entries.map(later).collect();
    units.sort_by_key(|it| it.at);
    units
}
