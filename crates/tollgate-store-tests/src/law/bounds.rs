//! Laws about how much is admitted: never more than the definition allows, and not much fewer.

use tollgate_core::{Algorithm, LeakyMode, Micros, Policy, Settlement, Source};

use super::Subject;
use super::definition::{self, Units};
use super::generate::{Mix, Versions, is_interval};
use super::history::{History, KEY_COUNT, START};
use super::ledger::{Charges, Ledger, Slot};
use super::play::{Event, Play, What};
use super::shrink::hold;

/// A quota version's own charges satisfy its definition at every instant, also if other versions
/// are used side by side. So all versions together never admit more than the sum of their own
/// quotas.
pub fn versions_admit_no_more_than_alone<S: Subject>(make: impl Fn() -> S) {
    hold("versions_admit_no_more_than_alone", make, Mix::default(), never_more);
}

/// If one of two versions has the same algorithm and at least the other's limit, burst and rate,
/// both together satisfy this larger version's definition. Debts are left out here, because a
/// smaller bucket does not count a debt beyond its own capacity.
///
/// A bucket with refill in intervals does not know when in its interval it was charged. A version
/// that starts from its state counts the units from the interval's start, so it may refill them
/// early, by as many intervals as fit into the other bucket's interval.
pub fn smaller_versions_add_nothing<S: Subject>(make: impl Fn() -> S) {
    let mix = Mix { versions: Versions::Pair, debts: false, clock_steps: false, ..Mix::default() };
    hold("smaller_versions_add_nothing", make, mix, larger_version_alone);
}

/// A refund is as if its units had never been charged: at every instant, the store has no more
/// units left than by definition, with every charge at its final cost from the start. This holds
/// for any number of open receipts, settled in any order.
///
/// A store may return fewer units. How many, [`fewer_is_bounded`] states.
pub fn refunds_never_admit_more<S: Subject>(make: impl Fn() -> S) {
    let mix = Mix { versions: Versions::One, ..Mix::default() };
    hold("refunds_never_admit_more", make, mix, never_more);
}

/// When a request is admitted, the permits in flight under all versions do not exceed the admitting
/// version's maximum. A permit counts until it is returned, or until the time to live of the policy
/// that charged it has passed since it was charged or renewed. So if a lower maximum has come into
/// force, the permits that started since then never exceed it.
///
/// Without clock steps and lapsed renewals, the units left are exact.
pub fn permits_stay_below_every_maximum<S: Subject>(make: impl Fn() -> S) {
    let name = "permits_stay_below_every_maximum";
    let mix = Mix { versions: Versions::Permits, ..Mix::default() };
    hold(name, &make, mix, permits);
    hold(name, &make, Mix::default(), permits);
}

/// No unit is lost.
///
/// * After all windows are over, each version of each key has its full quota.
/// * At any instant, a quota with one version has at least its capacity minus what counts. For
///   windows and logs, refunded units do not count at all. For buckets they do not count from their
///   refund on, and a greedy bucket refunds all units that it has not refilled since the charge.
/// * At any instant, each quota version counts each unit at most once, so its remaining units are at
///   least its capacity minus all charged units.
pub fn fewer_is_bounded<S: Subject>(make: impl Fn() -> S) {
    let name = "fewer_is_bounded";
    hold(name, &make, Mix::default(), not_fewer);
    let mix = Mix { versions: Versions::One, clock_steps: false, ..Mix::default() };
    hold(name, &make, mix, exactly);
}

fn is_rate_limit(policy: &Policy) -> bool {
    !policy.is_concurrency() && !policy.is_penalty()
}

fn never_more<S: Subject>(make: &dyn Fn() -> S, history: &History) -> Result<(), String> {
    let steps_back = history.steps.iter().any(|step| step.after < 0);
    walk(make, history, |play, ledger, events| {
        for event in events {
            let What::Decided { made, asked, verdict, .. } = &event.what else { continue };
            for made in made {
                let slot = ledger.slot(made.policy, made.key, made.receipt.source);
                let policy = ledger.policy(made.policy, &slot);
                if !is_rate_limit(&policy) {
                    continue;
                }
                let charges = ledger.charges(&slot);
                let (own, excess) = own(play, &charges, made.policy, &policy);
                let more = charges.again(made.policy) + excess;
                // An expired bucket may be forgotten, and then its intervals start anew.
                let is_exempt = is_interval(&policy) && charges.again(made.policy) > 0;
                if !is_exempt && !definition::fits(&policy, &own, charges.seen(event.at), more) {
                    return Err(format!(
                        "version {} admitted {}, and its own charges are {own:?}",
                        made.policy,
                        made.receipt.charged.cost.get()
                    ));
                }
                let delay = definition::delay(&policy, &own[..own.len() - 1], event.at);
                if made.receipt.source == Source::Store
                    && !steps_back
                    && asked.len() == 1
                    && verdict.delay().get() < delay
                {
                    return Err(format!("delayed {:?} instead of {delay} µs", verdict.delay()));
                }
            }
        }
        for (policy, slot, remaining) in looks(play, ledger, events) {
            let rule = ledger.policy(policy, &slot);
            let charges = ledger.charges(&slot);
            let (own, excess) = own(play, &charges, policy, &rule);
            let counted = definition::counted(&rule, &own, charges.seen(play.now));
            let more = charges.again(policy) + excess;
            let most = (rule.capacity() + more).saturating_sub(counted);
            if is_rate_limit(&rule) && !is_interval(&rule) && remaining > most {
                return Err(format!(
                    "version {policy} of {slot:?} has {remaining} units left instead of {most}, and \
                     its own charges are {own:?}"
                ));
            }
        }
        Ok(())
    })
}

/// Returns a version's charges, and the units that a lease's block may add. A block that was
/// taken before a debt is used after it, so debts do not count beside blocks.
fn own<S: Subject>(
    play: &Play<'_, S>,
    charges: &Charges,
    policy: usize,
    rule: &Policy,
) -> (Vec<Units>, u64) {
    let excess = play.subject.excess(rule);
    let own = if excess > 0 { charges.admitted(policy) } else { charges.own(policy) };
    (own, excess)
}

/// The first version is the larger one, see [`Versions::Pair`].
fn larger_version_alone<S: Subject>(make: &dyn Fn() -> S, history: &History) -> Result<(), String> {
    walk(make, history, |play, ledger, events| {
        for (policy, slot, remaining) in looks(play, ledger, events) {
            let Some(larger) = history.versions(&slot.0).next() else { continue };
            let larger = ledger.policy(larger, &slot);
            if !is_rate_limit(&larger) {
                continue;
            }
            let all = ledger.charges(&slot).all();
            let mut more = play.subject.excess(&larger);
            if is_interval(&larger) {
                let windows =
                    history.versions(&slot.0).map(|it| history.policies[it].window().get());
                let longest = windows.max().unwrap_or_default();
                more += larger.quota().limit() * longest.div_ceil(larger.window().get());
            }
            let counted = definition::counted(&larger, &all, play.now);
            let most = (larger.capacity() + more).saturating_sub(counted);
            let fits = definition::fits(&larger, &all, play.now, more);
            if !fits || (!is_interval(&larger) && remaining > most) {
                return Err(format!(
                    "version {policy} of {slot:?} has {remaining} units left, but the larger \
                     version alone {most}: {all:?}"
                ));
            }
        }
        Ok(())
    })
}

fn permits<S: Subject>(make: &dyn Fn() -> S, history: &History) -> Result<(), String> {
    let steps_back = history.steps.iter().any(|step| step.after < 0);
    walk(make, history, |play, ledger, events| {
        for (policy, slot, remaining) in looks(play, ledger, events) {
            let rule = ledger.policy(policy, &slot);
            let charges = ledger.charges(&slot);
            // A renewal beyond a debt of one capacity is not counted in full.
            if !rule.is_concurrency() || charges.has_lapsed_renewal() {
                continue;
            }
            let exact = rule.capacity().saturating_sub(charges.in_flight(play.now));
            if remaining > exact || (!steps_back && remaining < exact) {
                return Err(format!(
                    "version {policy} of {slot:?} has {remaining} permits left instead of \
                     {exact}"
                ));
            }
        }
        for event in events {
            let What::Decided { made, .. } = &event.what else { continue };
            for made in made {
                let slot = ledger.slot(made.policy, made.key, made.receipt.source);
                let (policy, charges) = (ledger.policy(made.policy, &slot), ledger.charges(&slot));
                let in_flight = charges.in_flight(event.at);
                if policy.is_concurrency()
                    && !charges.has_lapsed_renewal()
                    && in_flight > policy.capacity()
                {
                    return Err(format!(
                        "version {} admits, and {in_flight} are in flight",
                        made.policy
                    ));
                }
            }
        }
        Ok(())
    })
}

fn not_fewer<S: Subject>(make: &dyn Fn() -> S, history: &History) -> Result<(), String> {
    let mut last = START;
    let mut play = walk_to_end(make, history, |play, ledger, events| {
        last = last.max(play.now);
        for (policy, slot, remaining) in looks(play, ledger, events) {
            let rule = ledger.policy(policy, &slot);
            let charges = ledger.charges(&slot);
            // A bucket that is converted rounds up, and a queue with a full schedule has no units.
            let least = rule.capacity().saturating_sub(charges.gross() + 1);
            if is_rate_limit(&rule) && !has_max_wait(&rule) && remaining < least {
                return Err(format!(
                    "version {policy} of {slot:?} has {remaining} units left instead of at least \
                     {least}"
                ));
            }
        }
        Ok(())
    })?;
    play.subject.fail(false);
    let quiet = history.policies.iter().map(definition::quiet).max().unwrap_or_default();
    play.now = last + quiet;
    for (index, policy) in history.policies.iter().enumerate() {
        for key in 0..KEY_COUNT {
            let look = play.look(index, key, policy.capacity()).expect("no outage");
            let decision = look.decisions()[0];
            let is_whole = decision.allows()
                && decision.remaining == policy.capacity()
                && decision.reset_after == Micros::ZERO;
            if !policy.is_penalty() && !is_whole {
                return Err(format!(
                    "after {quiet} quiet µs, version {index} of key {key} has not its full quota: \
                     {decision:?}"
                ));
            }
        }
    }
    Ok(())
}

fn has_max_wait(policy: &Policy) -> bool {
    matches!(
        policy.algorithm(),
        Some(Algorithm::LeakyBucket { mode: LeakyMode::Queue { max_wait: Some(_) } })
    )
}

/// How a bucket's refunds are judged.
fn is_level(policy: &Policy) -> bool {
    policy.algorithm().is_some_and(Algorithm::is_bucket)
}

fn exactly<S: Subject>(make: &dyn Fn() -> S, history: &History) -> Result<(), String> {
    walk(make, history, |play, ledger, events| {
        for event in events {
            returns_enough(ledger, event)?;
        }
        for (policy, slot, remaining) in looks(play, ledger, events) {
            let rule = ledger.policy(policy, &slot);
            let charges = ledger.charges(&slot);
            let counts = if is_level(&rule) { charges.flow() } else { charges.all() };
            let least =
                rule.capacity().saturating_sub(definition::counted(&rule, &counts, play.now));
            if is_rate_limit(&rule)
                && !has_max_wait(&rule)
                && remaining + play.subject.excess(&rule) < least
            {
                return Err(format!(
                    "version {policy} of {slot:?} has {remaining} units left instead of at least \
                     {least}: {counts:?}"
                ));
            }
        }
        Ok(())
    })
}

fn returns_enough(ledger: &Ledger<'_>, event: &Event) -> Result<(), String> {
    let What::Settled { made, actual, settlement: Settlement::Returned { units } } = &event.what
    else {
        return Ok(());
    };
    let slot = ledger.slot(made.policy, made.key, made.receipt.source);
    let policy = ledger.policy(made.policy, &slot);
    let is_greedy = is_level(&policy) && !is_interval(&policy) && !policy.queues();
    let charges = ledger.charges(&slot);
    let Some(position) = charges.position(made.receipt.id).filter(|_| is_greedy) else {
        return Ok(());
    };
    let mut flow = charges.flow_with_whole_refunds();
    flow.pop();
    let surplus = made.receipt.charged.cost.get().saturating_sub(*actual);
    let least = definition::refund(&policy, &flow, position, surplus, event.at);
    if *units < least {
        return Err(format!(
            "{units} of {surplus} units are returned instead of {least}: {flow:?}"
        ));
    }
    Ok(())
}

fn walk<S: Subject>(
    make: &dyn Fn() -> S,
    history: &History,
    judge: impl FnMut(&mut Play<'_, S>, &Ledger<'_>, &[Event]) -> Result<(), String>,
) -> Result<(), String> {
    walk_to_end(make, history, judge).map(drop)
}

/// Plays a history, records what happens, and judges after each step.
fn walk_to_end<'h, S: Subject>(
    make: &dyn Fn() -> S,
    history: &'h History,
    mut judge: impl FnMut(&mut Play<'_, S>, &Ledger<'_>, &[Event]) -> Result<(), String>,
) -> Result<Play<'h, S>, String> {
    let mut play = Play::new(make(), history);
    let mut ledger = Ledger::new(history);
    let steps_back = history.steps.iter().any(|step| step.after < 0);
    for step in &history.steps {
        play.wait_for(step);
        if steps_back {
            ledger.forget(play.now);
        }
        let events = play.take(step);
        for event in &events {
            ledger.record(event);
        }
        judge(&mut play, &ledger, &events).map_err(|why| format!("step {}: {why}", step.id))?;
        if steps_back {
            ledger.forget(play.now);
        }
    }
    Ok(play)
}

/// The remaining units under each version of each quota that an event has changed.
fn looks<S: Subject>(
    play: &mut Play<'_, S>,
    ledger: &Ledger<'_>,
    events: &[Event],
) -> Vec<(usize, Slot, u64)> {
    let mut touched: Vec<(usize, usize)> = Vec::new();
    for event in events {
        match &event.what {
            What::Decided { asked, .. } => {
                touched.extend(asked.iter().map(|charge| (charge.policy, charge.key)));
            }
            What::Settled { made, .. } | What::Renewed { made, .. } => {
                touched.push((made.policy, made.key));
            }
            What::Reset { policy, key, .. } => touched.push((*policy, *key)),
            What::Early { .. } => {}
        }
    }
    let mut looks = Vec::new();
    for (policy, key) in touched {
        for version in play.history.versions(play.history.policies[policy].name()) {
            let Some(look) = play.look(version, key, 0) else { continue };
            let slot = ledger.slot(version, key, look.source());
            looks.push((version, slot, look.decisions()[0].remaining));
        }
    }
    looks
}
