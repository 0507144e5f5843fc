//! Checks the answers to a replica's requests against the servers' changes.

use std::fmt;

use tollgate_core::{Charge, Cost, Decision, OnStoreError, Outcome, Source, StoreError, Verdict};

use crate::history::Told;
use crate::reached::{DENY_CACHE, FALLBACK, LEASES, TOPOLOGY};
use crate::replica::{Replica, TIMEOUT, policy_key, text};
use crate::traffic::Caller;
use crate::world::State;

pub(crate) type Answer = Result<Verdict, StoreError>;

impl Replica {
    /// Records the answer, and checks it against the server if the client decided.
    pub(crate) fn record(&self, charges: &[Charge<'_>], answer: Option<&Answer>, caller: Caller) {
        let (number, is_split) = (self.0.number, self.is_split(charges));
        let mut state = self.0.world.lock();
        let told = match answer {
            None => Told::MaybeCharged,
            // "A later denial refunds earlier charges", unless the refund is lost.
            Some(Ok(verdict)) if !verdict.is_admitted() && is_split && state.has_faults => {
                Told::MaybeCharged
            }
            // The store itself failed before, and may have charged.
            Some(Ok(verdict)) if verdict.source() == Source::Local => Told::MaybeCharged,
            Some(Ok(verdict)) if verdict.is_admitted() => Told::Admitted,
            Some(Ok(_)) => Told::Denied,
            Some(Err(error)) if error.may_have_charged() => Told::MaybeCharged,
            Some(Err(_)) => Told::NotCharged,
        };
        let text = charges.iter().map(|charge| Shown(charge).to_string());
        let text = text.collect::<Vec<_>>().join(" ");
        let outcome = match answer {
            None => "left".to_owned(),
            Some(Ok(verdict)) => {
                let word = if verdict.is_admitted() { "admitted" } else { "denied" };
                format!("{word} by {:?}", verdict.source())
            }
            Some(Err(error)) => error.to_string(),
        };
        state.note(format_args!("replica {number} {text}: {outcome}"));
        // Keys that are split over two servers have to wait for each other.
        let may_wait = state.has_moves && charges.len() > 1;
        if caller == Caller::Waits && !matches!(answer, Some(Ok(_))) && !may_wait {
            state.failed += 1;
        }
        count(&mut state, answer, caller, told);
        if is_split && let Some(answer) = answer {
            let verb = match answer {
                Ok(verdict) if verdict.is_admitted() => "several slots admit",
                Ok(_) => "several slots deny",
                Err(_) => "several slots fail",
            };
            state.history.reached.enter(TOPOLOGY, verb);
        }
        let Some(Ok(verdict)) = answer else {
            for (index, units) in taken(charges) {
                state.history.told(policy_key(&charges[index]), units, told);
            }
            return;
        };
        reach(&mut state, charges, verdict);
        let is_enforced =
            |(charge, decision): (&Charge<'_>, &Decision)| charge.enforce && decision.denies();
        let is_denied = charges.iter().zip(verdict.decisions()).any(is_enforced);
        if is_denied == verdict.is_admitted() {
            let violation = format!("the verdict does not follow from the decisions: {verdict:?}");
            state.history.fail(policy_key(&charges[0]), violation);
        }
        for (index, units) in taken(charges) {
            self.record_units(&mut state, &charges[index], units, (verdict, index), told);
        }
        if verdict.source() == Source::Cache {
            for (charge, decision) in charges.iter().zip(verdict.decisions()) {
                self.check_remembered(&mut state, charge, decision, verdict);
            }
        }
    }

    /// Records the units that a request took from a charge's quota.
    fn record_units(
        &self,
        state: &mut State,
        charge: &Charge<'_>,
        units: u64,
        (verdict, index): (&Verdict, usize),
        told: Told,
    ) {
        let (number, policy_key, decision) =
            (self.0.number, policy_key(charge), verdict.decisions()[index]);
        let told = match (told, decision.outcome) {
            (Told::Admitted, Outcome::Allow { .. }) => Told::Admitted,
            // The call for a shadow policy in another slot failed.
            (Told::Admitted, Outcome::Undecided) => Told::MaybeCharged,
            // A shadow policy that denies does not deny the request.
            (Told::Admitted, _) => Told::Denied,
            (told, _) => told,
        };
        let shares = verdict.source() == Source::Local && self.shares_overflow();
        if shares {
            state.history.reached.enter(FALLBACK, "shares an overflow entry");
        }
        // "A request that exceeds the capacity can never be allowed."
        let capacity = charge.policy.capacity();
        let exceeds = charge.enforce && decision.outcome == Outcome::ExceedsCapacity;
        if exceeds && units <= capacity && !shares {
            let violation = format!("{} never passes, for {units} of {capacity}", Shown(charge));
            state.history.fail(policy_key.clone(), violation);
        }
        match (verdict.source(), decision.outcome) {
            (Source::Store, _) => state.history.told(policy_key, units, told),
            (Source::Local, outcome) => {
                state.history.told(policy_key.clone(), units, told);
                if verdict.is_admitted() && matches!(outcome, Outcome::Allow { .. }) {
                    if self.local_share(charge.policy).capacity() != decision.limit {
                        state.history.reshared.insert(policy_key.clone());
                    }
                    let at = verdict.decided_at();
                    state.history.admit_locally(number, policy_key, at, units);
                }
            }
            (Source::Lease, Outcome::Allow { charged_at, .. }) => {
                let redis_key = self.0.store.name_of(charge.policy, charge.key);
                let now = state.owner(&redis_key).clock.now();
                let granter = state.history.granter(&policy_key, charged_at);
                let server = granter.map_or(now, |server| state.servers[server].clock.now());
                state.history.spent(policy_key.clone(), charged_at, units, server);
                state.history.admit(policy_key, now, units);
            }
            _ => {}
        }
    }

    /// Compares a remembered denial with the server's decision.
    fn check_remembered(
        &self,
        state: &mut State,
        charge: &Charge<'_>,
        decision: &Decision,
        verdict: &Verdict,
    ) {
        let (number, policy_key) = (self.0.number, policy_key(charge));
        let Outcome::Deny { retry_after } = decision.outcome else { return };
        // A full server loses strikes, and denies after charges of the same call that it loses.
        if state.history.was_full || state.history.may_be_old(&policy_key, number, TIMEOUT) {
            return;
        }
        let (name, key) = self.stored_key(charge.policy, charge.key);
        let owner = state.owner(&name);
        let (now, real) = (owner.clock.now(), owner.ask(charge.policy, &key, charge.cost));
        let passes = verdict.decided_at() + retry_after;
        let differs = real.retry_after().map(|wait| now + wait) != Some(passes);
        // "Numbers for leased policies can be old."
        if !real.denies() || differs && charge.policy.lease().is_none() {
            let violation = format!(
                "replica {number} remembers that {} passes at {passes:?}; at {now:?} the server \
                 decides {real:?}",
                Shown(charge)
            );
            state.history.fail(policy_key, violation);
        }
    }

    /// "If any enforced policy is `Closed`, the error is returned. Otherwise, the local store
    /// decides the `Local` policies, and `Open` policies allow the request."
    pub(crate) fn check_fallback(&self, charges: &[Charge<'_>], answer: &Answer) {
        use OnStoreError::{Closed, Local};
        let of = |charge: &Charge<'_>, error| {
            let policy = charge.policy;
            match error {
                Some(error) => policy.on_error(error),
                None => policy.on_store_error(),
            }
        };
        let is_closed = |charge: &Charge<'_>, error| of(charge, error) == Some(Closed);
        let is_local = |charge: &Charge<'_>, error| of(charge, error).is_none_or(|it| it == Local);
        let mut state = self.0.world.lock();
        let reached = &mut state.history.reached;
        let violation = match answer {
            Ok(verdict) if verdict.source() == Source::Local => {
                // The error is unknown here, so the policy must be closed after any error.
                let is_always_closed = |charge: &&Charge<'_>| {
                    is_closed(charge, None) && charge.policy.shed().is_none_or(|it| it == Closed)
                };
                if charges.iter().any(|it| !it.enforce && !it.dry && is_always_closed(&it)) {
                    reached.enter(FALLBACK, "admits despite a closed shadow policy");
                }
                let closed = charges.iter().find(|it| it.enforce && is_always_closed(it));
                closed.map(|it| format!("{} is closed, and was decided locally", Shown(it)))
            }
            Err(error) if error.is_outage() => {
                let closed = charges.iter().any(|it| it.enforce && is_closed(it, Some(error)));
                let local = charges.iter().any(|it| is_local(it, Some(error)));
                let exceeds = |charge: &Charge<'_>| {
                    charge.enforce && charge.cost.get() > self.least_share(charge)
                };
                let exceeds = taken(charges).iter().any(|(index, units)| {
                    let cost = Cost::new(*units);
                    exceeds(&Charge { cost, ..charges[*index] })
                });
                if closed {
                    reached.enter(FALLBACK, "fails for a closed policy");
                } else if local && exceeds {
                    reached.enter(FALLBACK, "fails above the share");
                }
                // The fallback's own error does not show whether the store was overloaded.
                let is_own = error.to_string().starts_with("fallback");
                (!closed && local && !exceeds && !is_own)
                    .then(|| format!("the local store could decide instead of: {error}"))
            }
            _ => None,
        };
        if let Some(violation) = violation {
            state.history.fail(policy_key(&charges[0]), violation);
        }
    }

    fn least_share(&self, charge: &Charge<'_>) -> u64 {
        if charge.policy.is_penalty() {
            return u64::MAX;
        }
        self.local_share(charge.policy).capacity()
    }

    /// Whether the keys are in several Cluster slots.
    fn is_split(&self, charges: &[Charge<'_>]) -> bool {
        charges.iter().any(|charge| charge.key != charges[0].key)
            && self.0.world.lock().view.masters.len() > 1
    }
}

/// Returns each quota that the request takes from, by its first charge, with the units.
fn taken(charges: &[Charge<'_>]) -> Vec<(usize, u64)> {
    let is_limit = |(index, _): &(usize, u64)| !charges[*index].policy.is_penalty();
    sums(charges).into_iter().filter(is_limit).collect()
}

/// Sums the charges to each quota: "charges to the same policy and key are summed. A shadow charge to
/// a quota that an enforced charge also uses takes no units."
pub(crate) fn sums(charges: &[Charge<'_>]) -> Vec<(usize, u64)> {
    let sum = |(index, charge): (usize, &Charge<'_>)| {
        let same = |other: &&Charge<'_>| !other.dry && other.shares_quota_with(charge);
        if charge.dry || charges[..index].iter().any(|other| same(&other)) {
            return None;
        }
        let is_enforced = charges.iter().filter(same).any(|it| it.enforce);
        let counts = charges.iter().filter(same).filter(|it| it.enforce || !is_enforced);
        let units = counts.map(|it| it.cost.get()).sum();
        (units > 0).then_some((index, units))
    };
    charges.iter().enumerate().filter_map(sum).collect()
}

fn count(state: &mut State, answer: Option<&Answer>, caller: Caller, told: Told) {
    let counts = &mut state.history.counts;
    match answer {
        Some(Ok(verdict)) => {
            let index = match verdict.source() {
                Source::Store => 0,
                Source::Cache => 1,
                Source::Lease => 2,
                Source::Local => 3,
            };
            counts.decided[index] += 1;
        }
        // The caller's own fault.
        _ if caller != Caller::Waits => {}
        _ if told == Told::NotCharged => counts.not_charged += 1,
        _ => counts.maybe_charged += 1,
    }
}

/// Notes the branches that an answer shows.
fn reach(state: &mut State, charges: &[Charge<'_>], verdict: &Verdict) {
    let reached = &mut state.history.reached;
    let part = match verdict.source() {
        Source::Store => return,
        Source::Cache => DENY_CACHE,
        Source::Lease => LEASES,
        Source::Local => FALLBACK,
    };
    let is_admitted = verdict.is_admitted();
    let mut enter = |is_reached: bool, branch: &str| {
        if is_reached {
            reached.enter(part, branch);
        }
    };
    match verdict.source() {
        Source::Lease => {
            enter(true, "spends");
            enter(charges.len() > 1, "spends under several policies");
        }
        Source::Cache => enter(true, "denies"),
        _ => enter(true, if is_admitted { "admits" } else { "denies" }),
    }
    for (charge, decision) in charges.iter().zip(verdict.decisions()) {
        let (outcome, denies) = (decision.outcome, decision.denies());
        match verdict.source() {
            Source::Lease => enter(!charge.enforce, "spends in shadow mode"),
            Source::Cache => {
                enter(outcome == Outcome::Undecided, "denies beside a policy with units");
                enter(denies && charge.cost > Cost::ONE, "denies another cost than 1");
                enter(denies && charge.policy.is_penalty(), "denies a blocked key");
                enter(outcome == Outcome::ExceedsCapacity, "denies a cost above the capacity");
                enter(!charge.enforce, "denies beside a shadow policy");
            }
            _ => {
                enter(!charge.enforce && denies, "denies in shadow mode");
                let is_open = outcome == Outcome::Undecided;
                enter(is_open, "allows an open policy beside a local one");
                let sheds = charge.policy.shed() == Some(OnStoreError::Local);
                let is_only_shed = charge.policy.on_store_error() == Some(OnStoreError::Open);
                enter(sheds && is_only_shed && !is_open, "decides after overload");
                enter(denies && charge.policy.is_penalty(), "blocks");
            }
        }
    }
}

/// A charge in a trace.
pub(crate) struct Shown<'a>(pub(crate) &'a Charge<'a>);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, key, cost) = (self.0.policy.name(), text(self.0.key), self.0.cost.get());
        let shadow = match (self.0.enforce, self.0.dry) {
            (true, _) => "",
            (false, true) => " as a dry run",
            (false, false) => " in shadow mode",
        };
        write!(f, "{name}/{key} {cost}{shadow}")
    }
}
