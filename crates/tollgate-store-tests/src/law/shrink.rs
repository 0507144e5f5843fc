//! Checks a law with random histories, and shortens a history that breaks it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Subject;
use super::generate::{self, Mix};
use super::history::{Action, Asked, History};
use crate::seeds;

/// Plays a history on new subjects, and explains what is wrong.
pub(super) type Check<S> = fn(&dyn Fn() -> S, &History) -> Result<(), String>;

/// The number of histories that shortening may play.
const MOST_TRIES: usize = 4_000;

/// Checks a law.
///
/// # Panics
/// If a history breaks it. The message contains a short history that does.
pub(super) fn hold<S: Subject>(law: &str, make: impl Fn() -> S, mix: Mix, check: Check<S>) {
    let mut left = S::steps();
    let mix = Mix { clock_steps: mix.clock_steps && S::steps_back(), ..mix };
    for seed in seeds(u64::MAX) {
        let mut history = generate::history(seed, mix);
        history.policies = history.policies.into_iter().map(S::adapt).collect();
        if let Err(why) = explain(&make, &history, check) {
            let (history, why) = shorten(history, why, |it| explain(&make, it, check).err());
            panic!("{law} does not hold (seed {seed}): {why}\n{history}");
        }
        left = left.saturating_sub(history.steps.len());
        if left == 0 {
            return;
        }
    }
}

/// Also explains a panic by the subject, which prints its own message.
fn explain<S>(make: &dyn Fn() -> S, history: &History, check: Check<S>) -> Result<(), String> {
    let result = catch_unwind(AssertUnwindSafe(|| check(make, history)));
    result.unwrap_or_else(|_| Err("it panics".to_owned()))
}

/// Returns the shortest history found for which `fails` returns a reason.
fn shorten(
    mut history: History,
    mut why: String,
    fails: impl Fn(&History) -> Option<String>,
) -> (History, String) {
    let mut tries = MOST_TRIES;
    let mut attempt = |history: &mut History, shorter: History| {
        tries = tries.saturating_sub(1);
        let Some(reason) = (tries > 0).then(|| fails(&shorter)).flatten() else { return false };
        (*history, why) = (shorter, reason);
        true
    };
    loop {
        let mut is_shorter = false;
        let mut size = history.steps.len().div_ceil(2);
        while size > 0 {
            let mut from = 0;
            while from < history.steps.len() {
                let shorter = without(&history, from, size);
                if attempt(&mut history, shorter) {
                    is_shorter = true;
                } else {
                    from += size;
                }
            }
            size /= 2;
        }
        for index in 0..history.steps.len() {
            while simpler(&history, index).into_iter().any(|it| attempt(&mut history, it)) {
                is_shorter = true;
            }
        }
        if !is_shorter {
            return (history, why);
        }
    }
}

/// Removes steps. The steps after them happen at the same instants as before.
pub(super) fn without(history: &History, from: usize, count: usize) -> History {
    let mut shorter = history.clone();
    let to = (from + count).min(shorter.steps.len());
    let after: i64 = shorter.steps.drain(from..to).map(|step| step.after).sum();
    if let Some(next) = shorter.steps.get_mut(from) {
        next.after += after;
    }
    shorter
}

/// The history with one simpler number in a step, in several ways.
fn simpler(history: &History, index: usize) -> Vec<History> {
    let mut all = Vec::new();
    let mut add = |change: &dyn Fn(&mut History) -> bool| {
        let mut simpler = history.clone();
        if change(&mut simpler) {
            all.push(simpler);
        }
    };
    let after = history.steps[index].after;
    for shorter in [0, after / 2, after - after.signum()] {
        add(&|history| {
            history.steps[index].after = shorter;
            shorter != after
        });
    }
    let (Action::Ask(asked) | Action::Obey(asked)) = &history.steps[index].action else {
        return all;
    };
    for nth in 0..asked.len() {
        let charges = |history: &'_ mut History, change: &dyn Fn(&mut Vec<_>) -> bool| {
            let action = &mut history.steps[index].action;
            let (Action::Ask(asked) | Action::Obey(asked)) = action else { return false };
            change(asked)
        };
        add(&|history| {
            charges(history, &|asked: &mut Vec<Asked>| {
                asked.remove(nth);
                !asked.is_empty()
            })
        });
        for cost in [1, asked[nth].cost / 2, asked[nth].cost.saturating_sub(1)] {
            add(&|history| {
                charges(history, &|asked: &mut Vec<Asked>| {
                    let is_less = cost < asked[nth].cost;
                    asked[nth].cost = cost;
                    is_less
                })
            });
        }
    }
    add(&|history| {
        let Action::Obey(asked) = &history.steps[index].action else { return false };
        history.steps[index].action = Action::Ask(asked.clone());
        true
    });
    all
}
