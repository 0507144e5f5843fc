//! Compares concurrency limits with a plain list of the requests in flight.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use tollgate_core::algorithm::Rule;
use tollgate_core::algorithm::concurrent_requests::{ConcurrentRequests, State};
use tollgate_core::{AnyRule, Charged, Cost, Outcome, Policy};

use crate::limiter::instant;
use crate::trace::check;

/// An event in a request's life. The index selects a request in flight.
#[derive(Clone, Copy, Debug)]
enum Event {
    Comes(u64),
    /// The request finishes and its units are returned.
    Ends(usize),
    Renews(usize),
    /// The process dies. Its units count until the permit expires.
    Dies(usize),
    /// Time passes, in tenths of the permit's time to live.
    Tenths(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        5 => (1..=3_u64).prop_map(Event::Comes),
        3 => (0..12_usize).prop_map(Event::Ends),
        3 => (0..12_usize).prop_map(Event::Renews),
        1 => (0..12_usize).prop_map(Event::Dies),
        4 => (0..=6_u64).prop_map(Event::Tenths),
    ];
    prop::collection::vec(event, 1..=60)
}

/// A request and the charge that was recorded for it.
#[derive(Clone, Copy, Debug)]
struct Request {
    charged: Charged,
    alive: bool,
}

struct Flight {
    rule: ConcurrentRequests,
    state: State,
    lease: u64,
    now: u64,
    requests: Vec<Request>,
}

impl Flight {
    /// The units of all requests with an unexpired permit, whether or not the process is alive.
    fn counted(&self) -> u64 {
        let counts =
            |request: &&Request| request.charged.charged_at.as_micros() + self.lease > self.now;
        self.requests.iter().filter(counts).map(|request| request.charged.cost.get()).sum()
    }

    fn alive(&self, number: usize) -> Option<usize> {
        let mut alive = (0..self.requests.len()).filter(|i| self.requests[*i].alive);
        alive.nth(number)
    }

    fn step(&mut self, event: Event, limit: u64) -> TestCaseResult {
        let (rule, now) = (self.rule.clone(), instant(self.now));
        match event {
            Event::Tenths(tenths) => self.now += self.lease * tenths / 10,
            Event::Comes(units) => {
                let before = self.counted();
                let cost = Cost::new(units);
                let decision = rule.assess(rule.refresh(&self.state, now), now, cost);
                prop_assert_eq!(decision.allows(), before + units <= limit);
                if let Outcome::Allow { charged_at, .. } = decision.outcome {
                    rule.charge(&mut self.state, now, cost);
                    let resets_at = charged_at + rule.window();
                    let leaves_at = charged_at;
                    let lifetime = rule.window();
                    let charged =
                        Charged { cost, charged_at, leaves_at, resets_at, refunded: 0, lifetime };
                    self.requests.push(Request { charged, alive: true });
                }
            }
            Event::Ends(number) => {
                let Some(index) = self.alive(number) else { return Ok(()) };
                let Request { charged, .. } = self.requests.remove(index);
                let counts = charged.charged_at.as_micros() + self.lease > self.now;
                let units = charged.cost.get();
                let returned = rule.give_back(&mut self.state, &charged, units, now);
                prop_assert_eq!(returned, if counts { units } else { 0 });
            }
            Event::Renews(number) => {
                let Some(index) = self.alive(number) else { return Ok(()) };
                let charged = &mut self.requests[index].charged;
                let units = charged.cost.get();
                rule.give_back(&mut self.state, charged, units, now);
                charged.charged_at = rule.renew(&mut self.state, units, now);
                charged.resets_at = charged.charged_at + rule.window();
                prop_assert_eq!(charged.charged_at, now);
            }
            Event::Dies(number) => {
                let Some(index) = self.alive(number) else { return Ok(()) };
                self.requests[index].alive = false;
            }
        }
        prop_assert_eq!(rule.consumed(&self.state, instant(self.now)), self.counted());
        Ok(())
    }
}

/// Renewing lapsed permits may leave a debt. With a limit of twelve, everything the events can have
/// in flight fits; with smaller limits, debts are capped.
#[test]
fn count_matches_unexpired_permits() {
    let cases = (events(), 6..=12_u64, 50..=5_000_u64);
    check(file!(), &cases, |(events, limit, lease)| {
        let policy = Policy::concurrent_requests("p", limit, Duration::from_micros(lease));
        let policy = policy.unwrap();
        let AnyRule::ConcurrentRequests(rule) = policy.rule() else { unreachable!() };
        let (rule, state) = (rule.clone(), rule.fresh());
        let (now, requests) = (1_800_000_000_000_000, Vec::new());
        let mut flight = Flight { rule, state, lease, now, requests };
        for event in events {
            let renews = matches!(event, Event::Renews(_));
            // Debts are capped at one capacity, but the list would count more.
            if renews && flight.counted() + 3 > 2 * limit {
                continue;
            }
            flight.step(event, limit)?;
        }
        Ok(())
    });
}

#[test]
fn too_large_limits_are_rejected() {
    let second = Duration::from_secs(1);
    let error = Policy::concurrent_requests("p", 10_001, second).unwrap_err();
    assert_eq!(error.nearest_limit(), Some(10_000));
    let text = error.to_string();
    assert!(text.ends_with("lower the limit, or limit their rate [TG0104]"), "{text}");
    let error = Policy::concurrent_requests("p", 1, 3_601 * second).unwrap_err().to_string();
    assert!(
        error.contains("a permit's time to live of 3601 seconds is longer than 3600 seconds"),
        "{error}"
    );
    assert!(Policy::concurrent_requests("p", 10_000, 3_600 * second).is_ok());
}
