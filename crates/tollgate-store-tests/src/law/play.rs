//! Plays a history on a store, step by step.

use std::collections::BTreeMap;

use tollgate_core::{
    Charge, Cost, Decision, Key, Micros, Policy, Receipt, ReceiptId, Settlement, Timestamp, Verdict,
};

use super::Subject;
use super::history::{Action, Asked, History, START, Step, key};

/// The store under test, its time, and the receipts so far.
#[derive(Debug)]
pub(super) struct Play<'a, S> {
    pub(super) subject: S,
    pub(super) history: &'a History,
    pub(super) now: u64,
    /// The last receipt of each charge, and the charge's key.
    receipts: BTreeMap<(usize, usize), Made>,
}

/// A charge that the store made.
#[derive(Clone, Debug)]
pub(super) struct Made {
    pub(super) policy: usize,
    pub(super) key: usize,
    pub(super) receipt: Receipt,
}

/// A step's result.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) at: u64,
    pub(super) what: What,
}

#[derive(Clone, Debug)]
pub(super) enum What {
    Decided {
        asked: Vec<Asked>,
        verdict: Verdict,
        made: Vec<Made>,
        has_obeyed: bool,
    },
    Settled {
        made: Made,
        actual: u64,
        settlement: Settlement,
    },
    Renewed {
        made: Made,
        renewed: Option<Receipt>,
    },
    Reset {
        policy: usize,
        key: usize,
        /// Whether the store failed.
        is_down: bool,
    },
    /// A client would have been allowed a microsecond before the end of its wait.
    Early {
        charge: Asked,
    },
}

impl<'a, S: Subject> Play<'a, S> {
    pub(super) const fn new(subject: S, history: &'a History) -> Self {
        Self { subject, history, now: START, receipts: BTreeMap::new() }
    }

    fn time(&self) -> Timestamp {
        Timestamp::from_micros(self.now)
    }

    /// Moves the clock to the step's instant.
    pub(super) const fn wait_for(&mut self, step: &Step) {
        self.now = self.now.saturating_add_signed(step.after);
    }

    /// Takes a step and returns its events: none if it refers to a charge that was not made.
    pub(super) fn take(&mut self, step: &Step) -> Vec<Event> {
        match &step.action {
            Action::Ask(asked) => Vec::from_iter(self.ask(step.id, asked, false)),
            Action::Obey(asked) => self.obey(step.id, asked),
            Action::Settle { of, nth, actual } => Vec::from_iter(self.settle((*of, *nth), *actual)),
            Action::Renew { of, nth } => Vec::from_iter(self.renew((*of, *nth))),
            Action::Reset { policy, key: index } => {
                // A store cannot tell apart charges before and after a reset in the same
                // microsecond.
                self.now += 1;
                let now = self.time();
                let policies = &self.history.policies;
                let done = self.subject.reset(&policies[*policy], &key(*index), now);
                let is_down = done.is_none();
                let event = self.event(What::Reset { policy: *policy, key: *index, is_down });
                self.now += 1;
                vec![event]
            }
            Action::Outage(is_down) => {
                self.subject.fail(*is_down);
                Vec::new()
            }
        }
    }

    /// Whether a version has charged a key.
    pub(super) fn was_charged(&self, policy: usize, key: usize) -> bool {
        self.receipts.values().any(|made| made.policy == policy && made.key == key)
    }

    const fn event(&self, what: What) -> Event {
        Event { at: self.now, what }
    }

    fn ask(&mut self, step: usize, asked: &[Asked], has_obeyed: bool) -> Option<Event> {
        let keys: Vec<Key> = asked.iter().map(|charge| key(charge.key)).collect();
        let charges = charges(&self.history.policies, asked, &keys);
        let now = Timestamp::from_micros(self.now);
        let verdict = self.subject.decide(&charges, now)?;
        // Receipts are in the order of the charges.
        let mut from = 0;
        let mut made = Vec::new();
        for receipt in verdict.receipts(&charges, || ReceiptId(0)) {
            let is_its = |index: &usize| {
                let charge = charges[*index];
                is_made(&charges, &charge)
                    && charge.policy.is_same(&receipt.policy)
                    && *charge.key == receipt.key
                    && charge.cost == receipt.charged.cost
            };
            let index = (from..charges.len()).find(is_its).expect("a receipt is for a charge");
            from = index + 1;
            made.push((index, receipt));
        }
        let made = made.into_iter().map(|(index, receipt)| {
            let Asked { nth, policy, key, .. } = asked[index];
            let id = (step as u128) << 16 | (nth as u128) << 1 | u128::from(has_obeyed);
            let id = ReceiptId(id);
            let made = Made { policy, key, receipt: Receipt { id, ..receipt } };
            self.receipts.insert((step, nth), made.clone());
            made
        });
        let made = made.collect();
        Some(self.event(What::Decided { asked: asked.to_vec(), verdict, made, has_obeyed }))
    }

    /// Sends a request, waits for its `retry_after`, and repeats it. Looks at the key during this
    /// time must make no difference.
    fn obey(&mut self, step: usize, asked: &[Asked]) -> Vec<Event> {
        let Some(first) = self.ask(step, asked, false) else { return Vec::new() };
        let What::Decided { verdict, .. } = &first.what else { return vec![first] };
        let Some(wait) = told_wait(asked, verdict) else { return vec![first] };
        self.now += wait / 2;
        for charge in asked {
            for policy in self.history.versions(self.history.policies[charge.policy].name()) {
                self.look(policy, charge.key, 1);
            }
        }
        self.now += wait - wait / 2;
        let early = self.early(asked, wait);
        let again = self.ask(step, asked, true);
        [Some(first), early, again].into_iter().flatten().collect()
    }

    /// Checks whether a single charge would have been allowed a microsecond before `wait` is over.
    fn early(&mut self, asked: &[Asked], wait: u64) -> Option<Event> {
        let [charge] = asked else { return None };
        if wait < 2 || !charge.enforce || charge.dry {
            return None;
        }
        self.now -= 1;
        let look = self.look(charge.policy, charge.key, charge.cost);
        self.now += 1;
        let is_allowed = look.is_some_and(|look| look.decisions()[0].allows());
        is_allowed.then(|| self.event(What::Early { charge: *charge }))
    }

    fn settle(&mut self, charge: (usize, usize), actual: u64) -> Option<Event> {
        let made = self.receipts.get(&charge)?.clone();
        // The layer returns a permit, and never charges more units for it.
        let most = made.receipt.charged.cost.get();
        let actual = if made.receipt.policy.is_concurrency() { actual.min(most) } else { actual };
        let now = self.time();
        let settlement = self.subject.settle(&made.receipt, Cost::new(actual), now)?;
        Some(self.event(What::Settled { made, actual, settlement }))
    }

    fn renew(&mut self, charge: (usize, usize)) -> Option<Event> {
        let made = self.receipts.get(&charge).filter(|it| it.receipt.policy.is_concurrency())?;
        let (made, now) = (made.clone(), self.time());
        let renewed = self.subject.renew(&made.receipt, now)?;
        if let Some(receipt) = &renewed {
            let made = Made { receipt: receipt.clone(), ..made };
            self.receipts.insert(charge, made);
        }
        Some(self.event(What::Renewed { made, renewed }))
    }

    /// Returns the charge that a step settles or renews, if the store made it.
    pub(super) fn referred(&self, action: &Action) -> Option<&Made> {
        match action {
            Action::Settle { of, nth, .. } | Action::Renew { of, nth } => {
                self.receipts.get(&(*of, *nth))
            }
            _ => None,
        }
    }

    /// Returns a version's decision at this instant, without a charge.
    pub(super) fn look(&mut self, policy: usize, index: usize, cost: u64) -> Option<Verdict> {
        let (policy, key) = (&self.history.policies[policy], key(index));
        let charge = Charge::new(policy, &key, Cost::new(cost)).dry();
        let now = Timestamp::from_micros(self.now);
        self.subject.decide(&[charge], now)
    }
}

fn charges<'a>(policies: &'a [Policy], asked: &[Asked], keys: &'a [Key]) -> Vec<Charge<'a>> {
    let charge = |(asked, key): (&Asked, &'a Key)| Charge {
        // A dry charge is not enforced, see `Charge::dry`.
        enforce: asked.enforce && !asked.dry,
        dry: asked.dry,
        ..Charge::new(&policies[asked.policy], key, Cost::new(asked.cost))
    };
    asked.iter().zip(keys).map(charge).collect()
}

/// Whether an admitted request makes this charge, if the charge's policy allows it.
fn is_made(charges: &[Charge<'_>], charge: &Charge<'_>) -> bool {
    // Beside an enforced charge to the same quota, a shadow charge takes no units.
    let mut others = charges.iter().filter(|other| other.enforce);
    !charge.dry && (charge.enforce || !others.any(|other| other.shares_quota_with(charge)))
}

/// Returns a denied client's wait in microseconds, the longest `retry_after`. `None` if the request
/// was admitted, or can never be admitted.
pub(super) fn told_wait(asked: &[Asked], verdict: &Verdict) -> Option<u64> {
    if verdict.is_admitted() {
        return None;
    }
    let policies_deny = |(charge, decision): &(&Asked, &Decision)| {
        // A shadow charge denies if an enforced charge shares its quota.
        let shares = |other: &&Asked| other.policy == charge.policy && other.key == charge.key;
        !charge.dry
            && decision.denies()
            && asked.iter().filter(|it| it.enforce && !it.dry).any(|it| shares(&it))
    };
    let denying = asked.iter().zip(verdict.decisions()).filter(policies_deny);
    let waits: Option<Vec<u64>> =
        denying.map(|(_, decision)| decision.retry_after().map(Micros::get)).collect();
    waits?.into_iter().max()
}
