//! The header at the start of a stored state.

use tollgate_core::{
    Algorithm, AnyRule, Charge, Cost, Form, Kind, LeakyMode, Micros, Policy, Refill, Timestamp,
};

use crate::script::bytes::{exact, put};

/// Writes a stored state's header: version, code, and the rule's numbers. Equal rules have equal
/// headers, regardless of how the quota is written.
pub(crate) fn put_header(out: &mut Vec<u8>, form: &Form, rule: &AnyRule) {
    let (limit, window) = match rule {
        AnyRule::TokenBucket(rule) => rule.rate(),
        AnyRule::LeakyBucket(rule) => rule.rate(),
        // The calendar's id. Each state contains its own window.
        AnyRule::CalendarWindowCounter(rule) => (form.limit, Micros::new(rule.calendar().id())),
        _ => (form.limit, form.window),
    };
    out.extend([form.version, code(form, rule)]);
    put::<5>(out, limit);
    put::<6>(out, window.get());
    match form.kind {
        Kind::Limit(Algorithm::TokenBucket { .. }) => put::<5>(out, form.capacity),
        Kind::Limit(Algorithm::LeakyBucket { mode }) => {
            put::<5>(out, form.capacity);
            if let LeakyMode::Queue { max_wait: Some(max_wait) } = mode {
                put::<7>(out, exact(max_wait.get()));
            }
        }
        Kind::Limit(_) => {}
        Kind::Penalty(terms) => {
            put::<6>(out, terms.block.get());
            put::<3>(out, terms.factor);
            put::<6>(out, terms.max_block.get());
            put::<6>(out, terms.forget_after.get());
        }
    }
}

/// Whether a policy's state is two or three numbers, so the script's plain path can charge it.
pub(crate) fn has_plain_state(policy: &Policy) -> bool {
    match policy.algorithm() {
        Some(Algorithm::FixedWindowCounter) => policy.quota().calendar().is_none(),
        Some(Algorithm::SlidingWindowCounter | Algorithm::TokenBucket { .. }) => true,
        Some(Algorithm::LeakyBucket { mode }) => {
            !matches!(mode, LeakyMode::Queue { max_wait: Some(_) })
        }
        _ => false,
    }
}

/// Whether the script's plain path can decide a request: its charges are plain, or its only charge
/// queues under an algorithm whose next instant is a single division.
pub(crate) fn has_plain_path<'a>(charges: impl Iterator<Item = Charge<'a>> + Clone) -> bool {
    let mut rest = charges.clone();
    if let (Some(only), None) = (rest.next(), rest.next())
        && only.queue.is_some()
    {
        let alone = Charge { queue: None, ..only };
        let is_counter = only.policy.algorithm() == Some(Algorithm::SlidingWindowCounter);
        let has_own = only.policy.is_leaky_queue();
        return alone.is_plain()
            && only.enforce
            && only.cost > Cost::ZERO
            && !is_counter
            && !has_own;
    }
    charges.into_iter().all(|charge| charge.is_plain())
}

/// Writes the form's part that no state contains: for a calendar, the boundary nearest to `now` and
/// its neighbours on both sides. The script has no other data about a calendar. `now` is an
/// estimate of Redis' time, so the period on either side may be the right one.
pub(crate) fn put_periods(out: &mut Vec<u8>, form: &Form, now: Timestamp) {
    let Some(calendar) = form.calendar else { return };
    let [one, two] = calendar.around(now);
    for instant in [one.start(), one.end(), two.end()] {
        put::<7>(out, instant.as_micros());
    }
}

/// Returns the code of an algorithm and its settings.
fn code(form: &Form, rule: &AnyRule) -> u8 {
    let algorithm = match form.kind {
        Kind::Limit(algorithm) => algorithm,
        Kind::Penalty(terms) => return if terms.counts_denials { 11 } else { 13 },
    };
    match algorithm {
        Algorithm::FixedWindowCounter if form.calendar.is_some() => 12,
        Algorithm::FixedWindowCounter => 1,
        Algorithm::SlidingWindowLog { .. } => match rule {
            AnyRule::SlidingWindowLog(rule) if rule.grid().get() == 1 => 2,
            _ => 3,
        },
        Algorithm::SlidingWindowCounter => 4,
        Algorithm::TokenBucket { refill: Refill::Greedy } => 5,
        Algorithm::TokenBucket { refill: Refill::Interval } => 6,
        Algorithm::LeakyBucket { mode: LeakyMode::Queue { max_wait: None } } => 7,
        Algorithm::LeakyBucket { mode: LeakyMode::Queue { max_wait: Some(_) } } => 8,
        Algorithm::LeakyBucket { mode: LeakyMode::Meter } => 9,
        Algorithm::ConcurrentRequests => 10,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollgate_core::algorithm::penalty::Terms;
    use tollgate_core::{Calendar, Micros, Policy, Quota, Resolution};

    use super::*;

    /// Every algorithm and mode, and penalties.
    fn kinds() -> Vec<Kind> {
        let log = |resolution| Algorithm::SlidingWindowLog { resolution };
        let token = |refill| Algorithm::TokenBucket { refill };
        let queue = |max_wait: Option<u64>| Algorithm::LeakyBucket {
            mode: LeakyMode::Queue { max_wait: max_wait.map(Micros::new) },
        };
        let penalty = |factor, forget_after, counts_denials| {
            Kind::Penalty(Terms {
                block: Micros::new(5),
                factor,
                max_block: Micros::new(7),
                forget_after: Micros::new(forget_after),
                counts_denials,
            })
        };
        let algorithms = [
            Algorithm::FixedWindowCounter,
            log(Resolution::Auto),
            log(Resolution::Exact),
            log(Resolution::Thousandth),
            Algorithm::SlidingWindowCounter,
            token(Refill::Greedy),
            token(Refill::Interval),
            queue(None),
            queue(Some(0)),
            queue(Some(700)),
            queue(Some((1 << 53) - 1)),
            queue(Some(u64::MAX)),
            Algorithm::LeakyBucket { mode: LeakyMode::Meter },
            Algorithm::ConcurrentRequests,
        ];
        let penalties =
            [penalty(2, 9, true), penalty(2, 9, false), penalty(3, 9, true), penalty(2, 8, true)];
        algorithms.map(Kind::Limit).into_iter().chain(penalties).collect()
    }

    fn policies() -> Vec<Policy> {
        let mut all = Vec::new();
        for kind in kinds() {
            for (limit, window) in [(1, 1_000), (2, 2_000), (3, 3_000), (2_000, 2_000_000), (7, 50)]
            {
                let quota = Quota::new(limit, Duration::from_micros(window));
                for quota in [quota, quota.burst(2), quota.burst(3)] {
                    all.extend(Policy::new("p", quota, kind));
                }
            }
        }
        let instants = [1_000, 2_000].map(Timestamp::from_micros);
        for (name, limit) in [("one", 1), ("one", 2), ("other", 1), ("one", 1)] {
            let calendar = Calendar::new(name, instants).unwrap();
            all.push(
                Policy::fixed_window_counter("p", Quota::per_calendar(limit, calendar)).unwrap(),
            );
        }
        all
    }

    #[test]
    fn headers_match_iff_rules_match() {
        let policies = policies();
        let header = |policy: &Policy| {
            let mut bytes = Vec::new();
            put_header(&mut bytes, &policy.form(), policy.rule());
            bytes
        };
        let mut restated = 0;
        for one in &policies {
            for other in &policies {
                let equal = one.rule() == other.rule();
                assert_eq!(header(one) == header(other), equal, "{one:?} {other:?}");
                restated += u32::from(equal && one.form() != other.form());
            }
        }
        assert!(restated > 100, "{restated}");
    }
}
