//! Laws about how long clients wait.

use std::collections::BTreeSet;

use tollgate_core::{Decision, Micros, Source};

use super::Subject;
use super::generate::Mix;
use super::history::{Action, History, KEY_COUNT};
use super::play::{Event, Made, Play, What, told_wait};
use super::shrink::hold;

/// A client that waits as long as it was told, while nobody else charges its key, is allowed then.
/// This holds for every version of a quota at any time, so also after the numbers have changed.
/// Looks at the key in the meantime make no difference. If the quota has only one version, the
/// client is not allowed a microsecond earlier.
pub fn obeyed_waits_pass<S: Subject>(make: impl Fn() -> S) {
    hold("obeyed_waits_pass", make, Mix::default(), obeyed);
}

/// After a charge is settled to less, no client waits longer than before: for any cost, under any
/// version of the quota, the wait and the delay are not longer, not fewer units remain, and the
/// full quota is not available later.
///
/// The exception is a version that has not charged the key, if at least two other versions have. It
/// starts from the version that counts units for longest, and a refund may change which version this
/// is. It cannot start from the version with the longest wait, which depends on the cost, so a
/// client's wait would change while it waits.
pub fn refunds_never_lengthen_waits<S: Subject>(make: impl Fn() -> S) {
    hold("refunds_never_lengthen_waits", make, Mix::default(), not_longer);
}

fn obeyed<S: Subject>(make: &dyn Fn() -> S, history: &History) -> Result<(), String> {
    let mut play = Play::new(make(), history);
    for step in &history.steps {
        play.wait_for(step);
        let events = play.take(step);
        let mut told = None;
        for event in events {
            match event.what {
                What::Decided { has_obeyed: false, asked, verdict, .. } => {
                    told = told_wait(&asked, &verdict);
                }
                What::Decided { verdict, .. } if !verdict.is_admitted() => {
                    return Err(format!(
                        "the client of step {} is told to wait for {} µs, and denied then: \
                         {verdict:?}",
                        step.id,
                        told.unwrap_or_default()
                    ));
                }
                What::Early { charge } if is_exact(&play.subject, history, charge.policy) => {
                    return Err(format!(
                        "the client of step {} is told to wait for {} µs, but one less is enough",
                        step.id,
                        told.unwrap_or_default()
                    ));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

fn not_longer<S: Subject>(make: &dyn Fn() -> S, history: &History) -> Result<(), String> {
    let mut play = Play::new(make(), history);
    let mut states = States::default();
    for step in &history.steps {
        play.wait_for(step);
        states.forget(&mut play);
        let made = play.referred(&step.action).cloned();
        let (Action::Settle { actual, .. }, Some(made)) = (&step.action, made) else {
            states.record(&step.action, &play.take(step));
            continue;
        };
        if *actual >= made.receipt.charged.cost.get() {
            play.take(step);
            continue;
        }
        let slot = (made.policy, made.key);
        let before = decisions(&mut play, &states, slot);
        play.take(step);
        let after = decisions(&mut play, &states, slot);
        for ((look, before), (_, after)) in before.iter().zip(&after) {
            if !is_no_worse(before, after) {
                return Err(format!(
                    "the refund of step {} makes a client wait longer who asks for {look}: \
                     {before:?} became {after:?}",
                    step.id
                ));
            }
        }
    }
    Ok(())
}

/// Whether waits are exact. A version that was never charged starts from another version, and once
/// this other version is unused, so is the first. Its clients may be told to wait until later.
fn is_exact<S: Subject>(subject: &S, history: &History, policy: usize) -> bool {
    let policy = &history.policies[policy];
    history.versions(policy.name()).count() == 1 && subject.excess(policy) == 0
}

/// The versions that certainly have a state of their own, each with a key and its store.
#[derive(Default)]
struct States(BTreeSet<(usize, usize, bool)>);

impl States {
    /// Forgets the states of keys that are unused under all versions, because a store may forget
    /// them too.
    fn forget<S: Subject>(&mut self, play: &mut Play<'_, S>) {
        for key in 0..KEY_COUNT {
            for policy in 0..play.history.policies.len() {
                let name = play.history.policies[policy].name();
                let looks: Option<Vec<_>> = (play.history.versions(name))
                    .map(|version| play.look(version, key, 0))
                    .collect();
                let is_used = |decision: &Decision| decision.reset_after > Micros::ZERO;
                let Some(looks) = looks else { continue };
                if !looks.iter().any(|look| is_used(&look.decisions()[0])) {
                    let is_local = looks[0].source() == Source::Local;
                    self.0.remove(&(policy, key, is_local));
                }
            }
        }
    }

    fn record(&mut self, action: &Action, events: &[Event]) {
        if matches!(action, Action::Obey(_) | Action::Reset { .. }) {
            // Other states may have been forgotten meanwhile.
            self.0.clear();
        }
        if let Some(Event { what: What::Decided { made, .. }, .. }) = events.last() {
            let state = |made: &Made| (made.policy, made.key, made.receipt.source == Source::Local);
            self.0.extend(made.iter().map(state));
        }
    }
}

/// What each version of a quota would decide for several costs.
fn decisions<S: Subject>(
    play: &mut Play<'_, S>,
    states: &States,
    (policy, key): (usize, usize),
) -> Vec<(String, Decision)> {
    let mut all = Vec::new();
    let versions = || play.history.versions(play.history.policies[policy].name());
    let sources = versions().filter(|version| play.was_charged(*version, key)).count();
    for version in play.history.versions(play.history.policies[policy].name()) {
        let capacity = play.history.policies[version].capacity();
        for cost in [1, 2, capacity / 2, capacity] {
            let look = play.look(version, key, cost).filter(|look| {
                let is_local = look.source() == Source::Local;
                sources <= 1 || states.0.contains(&(version, key, is_local))
            });
            if let Some(look) = look {
                all.push((format!("{cost} under version {version}"), look.decisions()[0]));
            }
        }
    }
    all
}

fn is_no_worse(before: &Decision, after: &Decision) -> bool {
    let wait = |decision: &Decision| (decision.denies(), decision.retry_after());
    wait(after) <= wait(before)
        && after.delay() <= before.delay()
        && after.remaining >= before.remaining
        && after.reset_after <= before.reset_after
}
