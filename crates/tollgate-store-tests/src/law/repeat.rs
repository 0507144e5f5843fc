//! Laws about steps that change no other answer: each history is played with and without these
//! steps.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use tollgate_core::{
    Algorithm, Decision, OnStoreError, Outcome, Policy, Quota, Settlement, Strikes, Timestamp,
};

use super::Subject;
use super::generate::{Mix, Versions};
use super::history::{Action, Asked, History, KEY_COUNT, Step};
use super::play::{Play, What};
use super::shrink::{hold, without};
use crate::checks::MODES;

/// Everything except clock steps. A store may forget expired keys at any time, and if the clock
/// then steps back, the answers can differ.
const MIX: Mix = Mix {
    versions: Versions::Any,
    clock_steps: false,
    resets: true,
    debts: true,
    penalties: true,
    outages: true,
};

/// Denied requests, requests without cost and dry charges change no later answer. Only a denial
/// that adds a strike to a penalty may, because penalties count denials.
pub fn denials_change_nothing<S: Subject>(make: impl Fn() -> S) {
    hold("denials_change_nothing", make, MIX, denials);
}

/// Shadow charges under other policy names change no other answer: no decision, wait, delay or
/// number. A request may contain them anywhere, with any algorithm and failure policy, and they may
/// be settled to more or less.
///
/// This does not hold for a full store, where the shadow charges' keys take up memory too, so other
/// keys have to share an overflow entry earlier.
pub fn shadow_changes_nothing<S: Subject>(make: impl Fn() -> S) {
    hold("shadow_changes_nothing", make, MIX, shadow);
}

/// A store's answer to a caller.
#[derive(Clone, Debug, PartialEq)]
enum Answer {
    /// Whether the request was admitted, and the decisions by charge number.
    Decided(bool, BTreeMap<usize, Decision>),
    Settled(Settlement),
    Renewed(Option<Timestamp>),
}

/// All answers, each with its step's number.
type Answers = Vec<(usize, Answer)>;

fn answers<S: Subject>(play: &mut Play<'_, S>, step: &Step) -> Answers {
    play.wait_for(step);
    let mut answers = Vec::new();
    for event in play.take(step) {
        let answer = match event.what {
            What::Decided { asked, verdict, .. } => {
                let decisions = verdict.decisions().iter().map(told);
                let decisions = asked.iter().map(|charge| charge.nth).zip(decisions);
                Answer::Decided(verdict.is_admitted(), decisions.collect())
            }
            What::Settled { settlement, .. } => Answer::Settled(settlement),
            What::Renewed { renewed, .. } => {
                Answer::Renewed(renewed.map(|receipt| receipt.charged.charged_at))
            }
            What::Reset { .. } | What::Early { .. } => continue,
        };
        answers.push((step.id, answer));
    }
    answers
}

/// Returns a decision without its count of earlier refunds, which depends on whether the store has
/// forgotten an unused key.
fn told(decision: &Decision) -> Decision {
    let mut told = *decision;
    if let Outcome::Allow { refunded, .. } = &mut told.outcome {
        *refunded = 0;
    }
    told
}

fn compare(full: &Answers, bare: &Answers, what: &str) -> Result<(), String> {
    for (step, answer) in bare {
        // A step has the same answers in the same order, apart from the additional charges.
        let mut same = full.iter().filter(|(other, _)| other == step);
        let is_same = same.any(|(_, other)| match (other, answer) {
            (Answer::Decided(other, more), Answer::Decided(admitted, decisions)) => {
                let mut decisions = decisions.iter();
                other == admitted && decisions.all(|(nth, it)| more.get(nth) == Some(it))
            }
            (other, answer) => other == answer,
        });
        if !is_same {
            let with: Vec<_> = full.iter().filter(|(other, _)| other == step).collect();
            return Err(format!("step {step}: {answer:?} without {what}, but with them {with:?}"));
        }
    }
    Ok(())
}

fn denials<S: Subject>(make: &dyn Fn() -> S, history: &History) -> Result<(), String> {
    let mut full = history.clone();
    for step in &mut full.steps {
        // The time that an obedient client waits would depend on its denial.
        if let Action::Obey(asked) = &step.action {
            step.action = Action::Ask(asked.clone());
        }
    }
    let mut play = Play::new(make(), &full);
    let mut all = Vec::new();
    for step in &full.steps {
        all.extend(answers(&mut play, step));
    }
    let mut bare = full.clone();
    for (id, answer) in &all {
        let Answer::Decided(admitted, _) = answer else { continue };
        let index = bare.steps.iter().position(|step| step.id == *id).expect("a step of both");
        let Action::Ask(asked) = &mut bare.steps[index].action else { continue };
        let may_strike = asked.iter().any(|it| history.policies[it.policy].counts_denials());
        if !admitted && may_strike {
            continue;
        }
        let all = asked.clone();
        asked.retain(|charge| {
            // Beside an enforced charge, even without cost, a shadow charge to the same quota takes
            // no units. So a charge without cost is only removed if it is alone.
            let is_alone = all.iter().filter(|other| other.policy == charge.policy).count() == 1;
            !charge.dry && (charge.cost > 0 || !is_alone)
        });
        if asked.is_empty() || !admitted {
            bare = without(&bare, index, 1);
        }
    }
    let mut play = Play::new(make(), &bare);
    let mut kept = Vec::new();
    for step in &bare.steps {
        kept.extend(answers(&mut play, step));
    }
    compare(&all, &kept, "denials and looks")
}

fn shadow<S: Subject>(make: &dyn Fn() -> S, history: &History) -> Result<(), String> {
    let with_shadows = with_shadows(history);
    let (mut play, mut shadowed) = (Play::new(make(), history), Play::new(make(), &with_shadows));
    let (mut bare, mut full) = (Vec::new(), Vec::new());
    for step in &history.steps {
        bare.extend(answers(&mut play, step));
    }
    for step in &with_shadows.steps {
        full.extend(answers(&mut shadowed, step));
    }
    compare(&full, &bare, "shadow charges")
}

/// Charges and steps from this number on are shadows.
const FIRST_SHADOW: usize = 1_000;

/// Adds shadow charges to requests, and requests with only a shadow charge. The step's number
/// decides which, so a shortened history keeps its shadow charges.
fn with_shadows(history: &History) -> History {
    let mut with = history.clone();
    with.policies.extend(shadow_policies());
    let policies = history.policies.len()..with.policies.len();
    let mut steps = Vec::new();
    for mut step in with.steps {
        let mut rng = Rng::with_seed(step.id as u64);
        let mut charge = |nth| Asked {
            nth: FIRST_SHADOW + nth,
            policy: rng.usize(policies.clone()),
            key: rng.usize(..KEY_COUNT),
            cost: rng.u64(..6),
            enforce: false,
            dry: rng.u8(..8) == 0,
        };
        let shadows: Vec<_> = (0..2).map(&mut charge).collect();
        let alone = charge(2);
        let (of, after) = (step.id.saturating_sub(rng.usize(..8)), step.after);
        let actual = rng.u64(..12);
        match &mut step.action {
            Action::Ask(asked) | Action::Obey(asked) => {
                for shadow in shadows.into_iter().take(rng.usize(..=2)) {
                    // A request has one version of each quota.
                    asked.insert(rng.usize(..=asked.len()), shadow);
                }
            }
            _ => {
                let id = FIRST_SHADOW + step.id;
                steps.push(Step { id, after, action: Action::Ask(vec![alone]) });
                let action = Action::Settle { of, nth: FIRST_SHADOW, actual };
                steps.push(Step { id: 2 * FIRST_SHADOW + step.id, after: 0, action });
                step.after = 0;
            }
        }
        steps.push(step);
    }
    History { policies: with.policies, steps }
}

/// A policy for each algorithm, and each failure policy.
fn shadow_policies() -> Vec<Policy> {
    let window = Duration::from_micros(700);
    let limit = |(index, algorithm): (usize, Algorithm)| {
        Policy::new(format!("shadow {index}"), Quota::new(3, window), algorithm)
    };
    let permits = [Algorithm::ConcurrentRequests];
    let mut policies: Vec<_> = MODES.into_iter().chain(permits).enumerate().map(limit).collect();
    policies.push(Policy::penalty("shadow of denials", Strikes::of_denials(2, window)));
    policies.push(Policy::penalty("shadow of failures", Strikes::of_failures(2, window)));
    let policies = policies.into_iter().map(|policy| policy.expect("small numbers build"));
    let failures = [OnStoreError::Closed, OnStoreError::Open, OnStoreError::Local];
    let failing = |(policy, failure): (Policy, OnStoreError)| policy.with_on_store_error(failure);
    policies.zip(failures.into_iter().cycle()).map(failing).collect()
}
