//! Checks penalties: a key is only blocked for its own strikes, and each strike counts.

use std::collections::BTreeMap;

use tollgate_core::{Charge, Decision, Outcome, Source, Verdict};

use crate::answer::{Answer, Shown, sums};
use crate::history::PolicyKey;
use crate::replica::{Replica, policy_key};

/// The strikes of each key. Local stores count apart, under their replica's number.
#[derive(Debug, Default)]
pub(crate) struct Penalties(BTreeMap<(Option<usize>, PolicyKey), Strikes>);

#[derive(Debug, Default)]
struct Strikes {
    known: u64,
    /// Includes requests that are in flight, or were lost.
    possible: u64,
}

impl Penalties {
    /// A store may count a strike from now on.
    pub(crate) fn may_strike(&mut self, local: Option<usize>, policy_key: &PolicyKey) {
        self.0.entry((local, policy_key.clone())).or_default().possible += 1;
    }

    /// A store's answer shows whether it has counted the strike.
    pub(crate) fn answered(
        &mut self,
        local: Option<usize>,
        policy_key: &PolicyKey,
        is_strike: bool,
    ) {
        let strikes = self.0.entry((local, policy_key.clone())).or_default();
        if is_strike {
            strikes.known += 1;
        } else {
            strikes.possible -= 1;
        }
    }

    /// Whether these strikes have surely been counted.
    fn has(&self, local: Option<usize>, policy_key: &PolicyKey, strikes: u64) -> bool {
        self.0.get(&(local, policy_key.clone())).is_some_and(|it| it.known >= strikes)
    }

    /// Whether these strikes may have been counted.
    fn may_have(&self, local: Option<usize>, policy_key: &PolicyKey, strikes: u64) -> bool {
        self.0.get(&(local, policy_key.clone())).is_some_and(|it| it.possible >= strikes)
    }
}

impl Replica {
    /// Notes that the request may be a strike. For each penalty, returns whether the key is already
    /// blocked.
    pub(crate) fn may_strike(&self, charges: &[Charge<'_>]) -> Vec<bool> {
        let mut state = self.0.world.lock();
        let mut blocked = Vec::new();
        for charge in charges {
            let (penalties, strikes) = (&state.history.penalties, charge.policy.capacity());
            let has_strikes = penalties.has(None, &policy_key(charge), strikes);
            blocked.push(self.keeps_blocks(charge) && has_strikes);
        }
        for index in struck(charges) {
            state.history.penalties.may_strike(None, &policy_key(&charges[index]));
        }
        blocked
    }

    /// Whether a penalty's strikes and blocks last for the whole run.
    fn keeps_blocks(&self, charge: &Charge<'_>) -> bool {
        let mut limits = self.0.config.limits.iter().filter(|limit| limit.is_penalty());
        limits.any(|limit| limit.name() == charge.policy.name() && limit.is_kept())
    }

    /// "If another enforced policy denies the same key, the penalty gets one strike."
    pub(crate) fn check_penalties(
        &self,
        charges: &[Charge<'_>],
        answer: Option<&Answer>,
        blocked: &[bool],
    ) {
        let Some(Ok(verdict)) = answer else { return };
        let is_local = verdict.source() == Source::Local;
        let local = is_local.then_some(self.0.number);
        let mut state = self.0.world.lock();
        let history = &mut state.history;
        for index in struck(charges) {
            let policy_key = policy_key(&charges[index]);
            if is_local {
                history.penalties.may_strike(local, &policy_key);
            }
            history.penalties.answered(local, &policy_key, is_strike(charges, verdict, index));
        }
        for (index, charge) in charges.iter().enumerate().filter(|it| it.1.policy.is_penalty()) {
            let is_charged = sums(charges)
                .iter()
                .any(|(first, _)| charges[*first].shares_quota_with(charge) && !charge.dry);
            let (policy_key, decision) = (policy_key(charge), verdict.decisions()[index]);
            let needed = charge.policy.capacity();
            let must_block = blocked[index]
                && is_charged
                && !is_local
                && history.is_whole()
                && !history.was_full;
            let violation = match decision.outcome {
                Outcome::Deny { .. } if !history.penalties.may_have(local, &policy_key, needed) => {
                    "is blocked without its own strikes"
                }
                Outcome::Allow { .. } | Outcome::WouldAllow if must_block => {
                    "has its strikes, and is not blocked"
                }
                _ => continue,
            };
            let shown = Shown(charge);
            history.fail(policy_key, format!("the key {violation}, for {shown}: {verdict:?}"));
        }
    }
}

/// Returns the penalties that may count a denial, by their first charge.
fn struck(charges: &[Charge<'_>]) -> impl Iterator<Item = usize> {
    let counts = |(index, _): &(usize, u64)| charges[*index].policy.counts_denials();
    sums(charges).into_iter().filter(counts).map(|(index, _)| index)
}

/// Whether a verdict is a strike for the penalty at `index`: another enforced policy denied its key.
fn is_strike(charges: &[Charge<'_>], verdict: &Verdict, index: usize) -> bool {
    let denies = |(charge, decision): (&Charge<'_>, &Decision)| {
        charge.enforce
            && decision.denies()
            && !charge.policy.is_penalty()
            && charge.key == charges[index].key
    };
    !verdict.is_admitted() && charges.iter().zip(verdict.decisions()).any(denies)
}
