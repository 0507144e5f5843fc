//! The search for a schedule that gets many requests through.
//!
//! Requests are sent as early as the limits allow, from the instants on at which counts start anew:
//! a window's start, and the last microsecond before it. If that does not reach the bound,
//! random requests are sent earlier.

use std::collections::BTreeSet;
use std::collections::HashMap;

use tollgate_core::{Micros, Policy, StoreError, Timestamp};

use super::bursts::{Burst, bursts};
use super::{Kind, Threat};
use crate::scenario::START;
use crate::scenario::random::Random;
use crate::{Answer, Bounds, Fault, Replay, Request};

/// More requests are not searched.
pub(super) const MOST: u64 = 2_000_000;

/// How many random schedules are tried without a better result, and how many requests may pass in
/// all schedules together.
const TRIES: u32 = 30;
const PATIENCE: usize = 200_000;

/// A request that passes.
#[derive(Clone, Copy)]
struct Pass {
    /// When it passes.
    at: Timestamp,
    sent: Timestamp,
    kind: usize,
    replica: usize,
}

/// A schedule to try.
struct Attempt<'a> {
    kinds: &'a [Kind],
    threat: &'a Threat,
    span: Micros,
    /// Earlier requests: when they are sent, their kind and their number.
    before: Option<(Timestamp, usize, u64)>,
    origin: Timestamp,
    faults: Vec<(Timestamp, Fault)>,
}

/// Returns the most requests that pass in a span, and when they are sent. The search ends when
/// `enough` requests pass.
pub(super) fn search(
    kinds: &[Kind],
    span: Micros,
    threat: &Threat,
    enough: u64,
) -> Result<(u64, Vec<Burst>), StoreError> {
    let windows = kinds.iter().flat_map(Kind::policies).map(Policy::window);
    let windows: BTreeSet<_> = windows.filter(|window| *window > Micros::ZERO).collect();
    let mut origins = BTreeSet::from([START]);
    for window in &windows {
        let start = START.as_micros().next_multiple_of(window.get());
        origins.extend([start, start - 1].map(Timestamp::from_micros));
    }
    let origins: Vec<_> = origins.into_iter().collect();
    let mut best: Vec<Pass> = Vec::new();
    let mut simulated = 0;
    let mut try_out = |best: &mut Vec<Pass>, attempt: &Attempt<'_>| {
        let passes = attempt.run()?;
        simulated += passes.len();
        let densest = densest(passes, span);
        if densest.len() > best.len() {
            *best = densest;
        }
        Ok(best.len() as u64 >= enough || simulated > PATIENCE)
    };
    let attempt = |origin, before, faults| Attempt { kinds, threat, span, before, origin, faults };
    'search: {
        for origin in &origins {
            for faults in faults(threat, *origin, span) {
                if try_out(&mut best, &attempt(*origin, None, faults))? {
                    break 'search;
                }
            }
        }
        let mut random = Random::new(1);
        let longest = windows.last().map_or(1, |window| window.get());
        let mut tries = 0;
        while tries < TRIES {
            let origin = origins[random.below(origins.len() as u64) as usize];
            let earlier = Timestamp::from_micros(origin.as_micros() - random.below(longest));
            let most = kinds.iter().flat_map(Kind::policies).map(Policy::capacity).min();
            let count = 1 + random.below(most.unwrap_or(1).min(MOST));
            let before = (earlier, random.below(kinds.len() as u64) as usize, count);
            let all = faults(threat, origin, span);
            let faults = all[random.below(all.len() as u64) as usize].clone();
            let known = best.len();
            if try_out(&mut best, &attempt(origin, Some(before), faults))? {
                break 'search;
            }
            tries = if best.len() > known { 0 } else { tries + 1 };
        }
    }
    best.sort_by_key(|pass| pass.sent);
    let sent = best.iter().map(|pass| (pass.sent, pass.kind, pass.replica));
    Ok((best.len() as u64, bursts(sent)))
}

/// The faults at the instants where they let the most pass: before and after the first requests, and
/// at the end.
fn faults(threat: &Threat, origin: Timestamp, span: Micros) -> Vec<Vec<(Timestamp, Fault)>> {
    let end = origin + span;
    let mut all = vec![Vec::new()];
    if let Some(time) = threat.store_lost {
        let late = Timestamp::from_micros(end.as_micros().saturating_sub(time.get()));
        let starts = [origin, origin + Micros::new(1), late.max(origin)];
        all = starts.map(|at| vec![(at, Fault::StoreLost), (at + time, Fault::StoreBack)]).into();
    }
    if threat.failover {
        let lag = Micros::new(u64::MAX >> 1);
        let with = |at: Timestamp| {
            all.clone().into_iter().map(move |mut faults| {
                faults.push((at, Fault::Failover { lag }));
                faults.sort_by_key(|(at, _)| *at);
                faults
            })
        };
        all = with(origin + Micros::new(1)).chain(with(end)).collect();
    }
    all
}

impl Attempt<'_> {
    /// Sends requests as early as they can pass.
    fn run(&self) -> Result<Vec<Pass>, StoreError> {
        let fleet = crate::Fleet { fails_over: self.threat.failover, ..self.threat.fleet };
        let invalid = |error| StoreError::invalid("simulated store", error);
        let mut replay = Replay::with_fleet(&fleet, Bounds::default()).map_err(invalid)?;
        let mut run = Run {
            replay: &mut replay,
            kinds: self.kinds,
            passes: Vec::new(),
            sent: HashMap::new(),
        };
        if let Some((at, kind, count)) = self.before {
            for _ in 0..count {
                run.send(at, kind, 0)?;
            }
        }
        let end = self.origin + self.span;
        let mut faults = self.faults.iter().peekable();
        let (mut now, mut is_lost) = (self.origin, false);
        let replicas = self.threat.fleet.replicas.get() as usize;
        while now <= end && run.passes.len() as u64 <= MOST {
            while let Some((at, fault)) = faults.next_if(|(at, _)| *at <= now) {
                run.replay.happens(*at, *fault)?;
                is_lost = match fault {
                    Fault::StoreLost => true,
                    Fault::StoreBack => false,
                    _ => is_lost,
                };
            }
            // Processes with the same store decide alike.
            let separate = !self.threat.fleet.is_shared || is_lost;
            let mut next = faults.peek().map(|(at, _)| *at);
            for replica in 0..if separate { replicas } else { 1 } {
                for kind in 0..self.kinds.len() {
                    let may_pass = run.send_all(now, kind, replica)?;
                    next = next.into_iter().chain(may_pass).min();
                }
            }
            let event = run.replay.next_event();
            let Some(at) = next.into_iter().chain(event).min() else { break };
            now = at.max(now + Micros::new(1));
        }
        run.replay.advance(end)?;
        run.resolve();
        Ok(run.passes)
    }
}

struct Run<'a> {
    replay: &'a mut Replay,
    kinds: &'a [Kind],
    passes: Vec<Pass>,
    /// The waiting requests, by their numbers.
    sent: HashMap<u64, Pass>,
}

impl Run<'_> {
    /// Sends requests until one does not pass. Returns when the next may pass.
    fn send_all(
        &mut self,
        now: Timestamp,
        kind: usize,
        replica: usize,
    ) -> Result<Option<Timestamp>, StoreError> {
        while self.passes.len() as u64 <= MOST {
            if let Some(may_pass) = self.send(now, kind, replica)? {
                return Ok(may_pass);
            }
        }
        Ok(None)
    }

    /// Sends a request. If it does not pass, returns when the next may pass.
    fn send(
        &mut self,
        at: Timestamp,
        kind: usize,
        replica: usize,
    ) -> Result<Option<Option<Timestamp>>, StoreError> {
        let Kind { limits, charges, .. } = &self.kinds[kind];
        let mut request = Request { replica, ..Request::new(at, limits, charges.clone()) };
        let answer = self.replay.request(&mut request)?;
        self.resolve();
        let pass = Pass { at, sent: at, kind, replica };
        Ok(match answer {
            Answer::Allowed { wait } => {
                self.passes.push(Pass { at: at + wait, ..pass });
                None
            }
            Answer::Waits => {
                self.sent.insert(self.replay.requests() - 1, pass);
                Some(None)
            }
            Answer::Denied | Answer::Undecided => {
                let enforced = |it: &&tollgate_engine::AppliedLimit| limits.of(it).mode.enforces();
                let denied = request.charges.iter().filter(enforced);
                let waits = denied.filter_map(|applied| applied.decision.retry_after());
                Some(waits.max().map(|wait| at + wait))
            }
        })
    }

    fn resolve(&mut self) {
        for resolved in self.replay.resolved() {
            let pass = self.sent.remove(&resolved.number);
            if let (Some(pass), Answer::Allowed { wait }) = (pass, resolved.answer) {
                self.passes.push(Pass { at: pass.sent + wait, ..pass });
            }
        }
    }
}

/// Returns the passes in the span with the most.
fn densest(mut passes: Vec<Pass>, span: Micros) -> Vec<Pass> {
    passes.sort_by_key(|pass| pass.at);
    let (mut best, mut first) = (0..0, 0);
    for last in 0..passes.len() {
        while passes[first].at + span < passes[last].at {
            first += 1;
        }
        if last + 1 - first > best.len() {
            best = first..last + 1;
        }
    }
    passes.truncate(best.end);
    passes.split_off(best.start)
}
