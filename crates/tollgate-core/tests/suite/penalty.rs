//! Compares penalties with a plain list of strikes and blocks.

use std::time::Duration;

use proptest::prelude::*;
use tollgate_core::algorithm::Rule;
use tollgate_core::{AnyRule, Cost, Micros, Outcome, Policy, Strikes};

use crate::limiter::instant;
use crate::trace::check;

/// A plain model of a penalty, without the encoding of the real state.
struct Model {
    strikes: u64,
    within: u64,
    block: u64,
    factor: u64,
    max_block: u64,
    forget_after: u64,
    /// The instants of the strikes since the last block.
    struck: Vec<u64>,
    /// The last block: its length before capping, and when it expired.
    last: Option<(u128, u64)>,
}

impl Model {
    fn policy(&self) -> Policy {
        let micros = Duration::from_micros;
        let strikes = Strikes::of_denials(self.strikes, micros(self.within))
            .block(micros(self.block))
            .growing(self.factor, micros(self.max_block))
            .forgotten_after(micros(self.forget_after));
        Policy::penalty("p", strikes).expect("within the bounds")
    }

    fn blocked_until(&self, now: u64) -> Option<u64> {
        self.last.map(|(_, until)| until).filter(|until| *until > now)
    }

    fn strike(&mut self, now: u64) {
        if self.blocked_until(now).is_some() {
            return;
        }
        self.struck.push(now);
        let counting = self.struck.iter().filter(|at| **at + self.within > now).count();
        if counting as u64 == self.strikes {
            let grown = self.last.filter(|(_, until)| until + self.forget_after > now);
            let length = grown.map_or_else(
                || u128::from(self.block),
                |(length, _)| length.saturating_mul(u128::from(self.factor)),
            );
            let cut = length.min(u128::from(self.max_block));
            self.last =
                Some((length, now + u64::try_from(cut).expect("no longer than the longest")));
            self.struck.clear();
        }
    }
}

#[test]
fn blocks_match_model() {
    let steps = prop::collection::vec((0..=8_u64, any::<bool>(), -1..=1_i64), 1..=60);
    let numbers = (1..=4_u64, 50..=2_000_u64, 1..=2_000_u64, 0..=6_000_u64, 0..=9_000_u64);
    let factor = prop_oneof![1..=4_u64, Just(1_000_000)];
    check(file!(), &(numbers, factor, steps), |(numbers, factor, steps)| {
        let (strikes, within, block, more, forget_after) = numbers;
        let (max_block, struck) = (block + more, Vec::new());
        let mut model =
            Model { strikes, within, block, factor, max_block, forget_after, struck, last: None };
        let policy = model.policy();
        let AnyRule::Penalty(rule) = policy.rule() else { unreachable!() };
        let (mut state, mut now) = (rule.fresh(), 1_800_000_000_000_000_u64);
        for (gap, is_strike, off) in steps {
            // Move to instants at which a block or a strike expires, and to either side.
            let last = model.last.map_or(now, |(_, until)| until);
            let to = match gap {
                0 => now,
                1 => now + within / 3,
                2 => now + within,
                3 => last,
                4 => last + forget_after,
                5 => model.struck.last().map_or(now, |at| at + within),
                _ => now + gap,
            };
            now = to.saturating_add_signed(off).max(now);
            let expected = model.blocked_until(now);
            if is_strike {
                model.strike(now);
                rule.owe(&mut state, 1, instant(now));
            }
            let assess = |now, cost| {
                rule.assess(rule.refresh(&state, instant(now)), instant(now), Cost::new(cost))
            };
            let decision = assess(now, 1);
            let until = if is_strike { model.blocked_until(now) } else { expected };
            prop_assert_eq!(decision.retry_after(), until.map(|until| Micros::new(until - now)));
            prop_assert!(assess(now, 0).allows(), "peeking is free");
            if let Some(until) = until {
                prop_assert!(assess(until - 1, 7).denies());
                prop_assert!(assess(until, 7).allows());
                prop_assert_eq!(decision.remaining, 0);
            } else {
                let counting = model.struck.iter().filter(|at| **at + within > now).count() as u64;
                prop_assert_eq!(decision.remaining, strikes - counting);
            }
            let fresh_at = now + decision.reset_after.get();
            prop_assert!(rule.is_fresh(&state, instant(fresh_at)));
            prop_assert!(fresh_at == now || !rule.is_fresh(&state, instant(fresh_at - 1)));
        }
        Ok(())
    });
}

#[test]
fn requests_do_not_extend_a_block() {
    let strikes = Strikes::of_denials(3, Duration::from_secs(60)).block(Duration::from_secs(10));
    let policy = Policy::penalty("p", strikes).unwrap();
    let AnyRule::Penalty(rule) = policy.rule() else { unreachable!() };
    let mut state = rule.fresh();
    // Any number of simultaneous strikes causes a single block, and the surplus does not count.
    assert_eq!(rule.owe(&mut state, 200, instant(1_000_000)), 3);
    for second in 1..=10 {
        let now = instant(second * 1_000_000);
        assert_eq!(rule.owe(&mut state, 1, now), 0);
        let decision = rule.assess(rule.refresh(&state, now), now, Cost::ONE);
        let retry_after = Micros::new((11 - second) * 1_000_000);
        assert_eq!(decision.outcome, Outcome::Deny { retry_after });
    }
}

#[test]
fn block_length_is_capped() {
    let longest = Policy::MAX_WINDOW;
    let strikes = Strikes::of_denials(1, Duration::from_micros(50));
    let strikes = strikes.block(Duration::from_micros(1)).growing(1_000_000, longest);
    let policy = Policy::penalty("p", strikes.forgotten_after(longest)).unwrap();
    let AnyRule::Penalty(rule) = policy.rule() else { unreachable!() };
    let expected = [1, 1_000_000, 1_000_000_000_000, longest.as_micros() as u64];
    for (level, expected) in expected.into_iter().enumerate() {
        assert_eq!(rule.block_length(level as u32).get(), expected);
    }
    assert_eq!(rule.block_length(u32::MAX).get(), longest.as_micros() as u64);
    let (mut state, mut now) = (rule.fresh(), instant(1_800_000_000_000_000));
    for _ in 0..200 {
        rule.owe(&mut state, 1, now);
        let blocked = rule.assess(rule.refresh(&state, now), now, Cost::ONE).retry_after();
        now = now + blocked.unwrap_or_default();
    }
}

#[test]
fn invalid_penalties_are_rejected() {
    let (second, day) = (Duration::from_secs(1), Duration::from_secs(86_400));
    let three = || Strikes::of_denials(3, second);
    for (strikes, expected) in [
        (Strikes::of_denials(0, second), "a limit of 0 is outside 1"),
        (Strikes::of_failures(1_001, second), "1001 strikes are more than 1000"),
        (three().growing(0, day), "a factor of 0 is outside 1 to 1000000"),
        (three().growing(1_000_001, day), "a factor of 1000001"),
        (three().block(Duration::ZERO), "a block of 0 seconds is outside a microsecond to"),
        (three().growing(2, 401 * day), "a maximum block of 34646400 seconds"),
        (three().block(day).growing(2, second), "is longer than the longest, 1 second: swap"),
        (three().forgotten_after(401 * day), "a time to forget of 34646400 seconds"),
    ] {
        let error = Policy::penalty("p", strikes).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
