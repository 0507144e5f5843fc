//! A request between its arrival and its answer: when it asks the store, how long it waits, and
//! when it gives up.

use std::task::Waker;

use smallvec::SmallVec;
use tollgate_core::{
    Charge, Cost, Decision, Key, Micros, Outcome, Policy, Source, StoreError, Timestamp, Verdict,
};

use crate::applied::AppliedLimit;
use crate::charges::Charges;
use crate::conclusion::{Conclusion, Rejection};
use crate::estimate::{denied_under, earliest};
use crate::limit::{Limits, Mode};
use crate::question::Question;
use crate::queue::{Arrival, KeySet, LaneKey, Member};
use crate::step::{Asked, Asking, Leaving, Queued, RetryTimes, Sleeping, Step};

/// A request that the store decides, perhaps after a wait.
///
/// Each method returns the next [`Step`]. Times are on any clock, but always the same one. If a
/// request's step is dropped, the request leaves the queue; [`Asking::refunds`] says what to refund.
#[derive(Debug)]
pub struct Request {
    charges: Charges,
    /// The longest wait, in addition to the bounds of its limits.
    patience: Micros,
    has_queued: bool,
}

impl Request {
    /// Starts to decide a request. It waits only if it has an arrival.
    pub fn start(limits: &Limits, charges: Charges, arrival: Option<Arrival>) -> (Self, Asking) {
        Self::within(limits, charges, arrival, Micros::MAX)
    }

    /// Starts to decide a request that waits no longer than `patience`.
    #[inline]
    pub fn within(
        limits: &Limits,
        charges: Charges,
        arrival: Option<Arrival>,
        patience: Micros,
    ) -> (Self, Asking) {
        let mut request = Self { charges, patience, has_queued: false };
        let asking = request.enter(limits, arrival);
        (request, asking)
    }

    /// Enters the queue if earlier requests wait for its keys.
    #[inline]
    fn enter(&mut self, limits: &Limits, arrival: Option<Arrival>) -> Asking {
        if limits.are_blocked(&self.charges) {
            return Asking::new(Question::Dry, Asked::Blocked);
        }
        let first = |arrival| Asking::new(Question::Charge, Asked::First(arrival));
        let Some(arrival) = arrival else { return first(None) };
        let may_wait = arrival.others_wait && !self.may_wait(limits).is_empty();
        if !may_wait || limits.never_pass(&self.charges) {
            return first(Some(arrival));
        }
        let asked = match arrival.enter(self.member(limits, &arrival), KeySet::default()) {
            Ok(None) => return first(Some(arrival)),
            Ok(Some(ticket)) => {
                let (until, denied) = (Timestamp::EPOCH, RetryTimes::default());
                Asked::Entered(Box::new(Queued { ticket, until, denied }))
            }
            Err(keys) => Asked::Leaving(Leaving { keys, is_full: true }),
        };
        self.has_queued = true;
        Asking::new(Question::Dry, asked)
    }

    /// Continues with the store's reply to its question.
    pub fn on_reply(
        &mut self,
        asking: Asking,
        limits: &Limits,
        reply: Result<Verdict, StoreError>,
        now: Timestamp,
    ) -> Step {
        let Asking { question, asked } = asking;
        match asked {
            Asked::First(None) | Asked::Last => self.conclude(limits, reply),
            Asked::First(Some(arrival)) => match reply {
                Ok(verdict) if !verdict.is_admitted() => {
                    self.after_denial(limits, &arrival, &verdict, now)
                }
                reply => self.conclude(limits, reply),
            },
            Asked::Entered(mut queued) => {
                queued.until = now + self.max_wait(limits);
                // Even if the store fails now, it may decide when the request asks again.
                let verdict =
                    reply.ok().map(|it| Question::Dry.complete(limits, &self.charges, &it));
                let verdict = verdict.filter(|verdict| !self.exceeds_share(limits, verdict));
                let Some(verdict) = verdict else { return self.queue(queued, now) };
                // A limit that rejects must do so immediately, even while other requests wait. Dry
                // charges are always admitted, so check the decisions instead of the verdict.
                match self.denied(limits, &verdict, now, self.max_wait(limits)) {
                    Ok(denied) => queued.denied = denied,
                    Err(rejection) => {
                        let keys = KeySet::default();
                        let verdict = denied_under(keys, &verdict, |_, it| it.reset_after);
                        return self.reject(&verdict, rejection);
                    }
                }
                self.join(limits, queued, &verdict, now)
            }
            Asked::Retried(mut queued) => match reply {
                Ok(verdict) if !verdict.is_admitted() => {
                    match self.denied(limits, &verdict, now, queued.until.since(now)) {
                        Ok(denied) => {
                            queued.denied = denied;
                            self.queue(queued, now)
                        }
                        Err(rejection) => self.reject(&verdict, rejection),
                    }
                }
                reply => self.conclude(limits, reply),
            },
            Asked::Blocked => self.on_blocked(limits, reply),
            Asked::Leaving(leaving) => match reply {
                Ok(verdict) => {
                    let peeked = question.complete(limits, &self.charges, &verdict);
                    if question == Question::Dry && self.exceeds_share(limits, &peeked) {
                        return Step::Ask(Asking::new(Question::Peek, Asked::Leaving(leaving)));
                    }
                    self.leave(leaving, &peeked)
                }
                reply => self.conclude(limits, reply),
            },
        }
    }

    /// Rejects a blocked request, unless its block has just ended. The store has not charged it.
    #[cold]
    fn on_blocked(&mut self, limits: &Limits, reply: Result<Verdict, StoreError>) -> Step {
        let verdict = match reply {
            Ok(verdict) => Question::Dry.complete(limits, &self.charges, &verdict),
            // The block does not depend on the store.
            Err(_) => limits.undecided(&self.charges),
        };
        match limits.blocked(&self.charges, &verdict) {
            Some(blocked) => self.reject(&blocked, Rejection::Denied),
            None => Step::Ask(Asking::new(Question::Charge, Asked::Last)),
        }
    }

    /// Continues after a sleep, even if the sleep was shorter than requested.
    pub fn on_wake(&mut self, sleeping: Sleeping, now: Timestamp) -> Step {
        let Sleeping { queued, .. } = sleeping;
        // This wake is handled now.
        queued.ticket.is_woken(Waker::noop());
        self.queue(queued, now)
    }

    /// Returns the charges. They have decisions after the last step.
    #[inline]
    pub fn charges(&self) -> &Charges {
        &self.charges
    }

    /// Takes the charges of a request that is decided.
    #[inline]
    pub fn take_charges(&mut self) -> Charges {
        std::mem::take(&mut self.charges)
    }

    /// Returns whether the request waited in the queue, or was rejected because the queue is full.
    pub const fn has_queued(&self) -> bool {
        self.has_queued
    }

    /// Returns the number of the limit that it waits for.
    pub fn waits_for(&self, limits: &Limits) -> Option<usize> {
        let number = self.may_wait(limits).iter().next()?;
        Some(usize::from(self.charges[number].limit))
    }

    /// Queues a request that the store denies, unless the denial is final.
    fn after_denial(
        &mut self,
        limits: &Limits,
        arrival: &Arrival,
        verdict: &Verdict,
        now: Timestamp,
    ) -> Step {
        if self.may_wait(limits).is_empty() {
            return self.reject(verdict, Rejection::Denied);
        }
        let max_wait = self.max_wait(limits);
        let denied = match self.denied(limits, verdict, now, max_wait) {
            Ok(denied) => denied,
            Err(rejection) => return self.reject(verdict, rejection),
        };
        match arrival.enter(self.member(limits, arrival), denied.keys_after(None)) {
            Ok(Some(ticket)) => {
                self.has_queued = true;
                let queued = Box::new(Queued { ticket, until: now + max_wait, denied });
                self.join(limits, queued, verdict, now)
            }
            Ok(None) => self.reject(verdict, Rejection::Denied),
            Err(_) => self.reject(verdict, Rejection::QueueFull),
        }
    }

    /// Rejects the request if the requests ahead would make it too late. Otherwise it waits.
    fn join(
        &mut self,
        limits: &Limits,
        queued: Box<Queued>,
        verdict: &Verdict,
        now: Timestamp,
    ) -> Step {
        let max_wait = self.max_wait(limits);
        let earliest = |number: usize| {
            let Charge { policy, cost, .. } = limits.charge(&self.charges[number]);
            let ahead = queued.ticket.units_ahead(number);
            earliest(policy, cost, verdict.decisions().get(number)?, ahead)
        };
        let late = |number: &usize| earliest(*number).is_some_and(|wait| wait > max_wait);
        let keys: KeySet = self.may_wait(limits).iter().filter(late).collect();
        if keys.is_empty() {
            return self.queue(queued, now);
        }
        let retry_after = |number: usize, _: &Decision| earliest(number).unwrap_or_default();
        let rejected = denied_under(keys, verdict, retry_after);
        self.reject(&rejected, Rejection::TooLate)
    }

    /// Sleeps while a key denies the request or earlier requests wait for its keys. Then it asks the
    /// store, or gives up.
    fn queue(&mut self, mut queued: Box<Queued>, now: Timestamp) -> Step {
        if !queued.ticket.waits(queued.denied.keys_after(Some(now))) {
            return Step::Ask(Asking::new(Question::Charge, Asked::Retried(queued)));
        }
        if now >= queued.until {
            let leaving = Leaving { keys: queued.ticket.waits_for(), is_full: false };
            return Step::Ask(Asking::new(Question::Dry, Asked::Leaving(leaving)));
        }
        let next =
            queued.denied.next_after(now).map_or(queued.until, |next| next.min(queued.until));
        Step::Sleep(Sleeping { until: next, queued })
    }

    /// Denies the request under its keys without charging it, so earlier requests get their units.
    /// Limits that deny the request themselves remain denials. For the other keys, `Retry-After` is
    /// the time until the quota is full again, because no earlier time is known.
    fn leave(&mut self, leaving: Leaving, peeked: &Verdict) -> Step {
        let Leaving { keys, is_full } = leaving;
        let is_open = |number: usize| peeked.decisions()[number].outcome == Outcome::Undecided;
        if peeked.source() == Source::Local && keys.iter().all(is_open) {
            // The store has failed, and its local fallback does not decide the policies that the
            // request waits for. They fail open or closed.
            return Step::Ask(Asking::new(Question::Charge, Asked::Last));
        }
        let verdict = denied_under(keys, peeked, |_, decision| decision.reset_after);
        self.reject(&verdict, if is_full { Rejection::QueueFull } else { Rejection::TooLate })
    }

    fn conclude(&mut self, limits: &Limits, reply: Result<Verdict, StoreError>) -> Step {
        Step::Done(self.charges.conclude(limits, reply))
    }

    fn reject(&mut self, verdict: &Verdict, rejection: Rejection) -> Step {
        self.charges.fill_in(verdict);
        Step::Done(Conclusion::Reject(rejection))
    }

    fn member(&self, limits: &Limits, arrival: &Arrival) -> Member {
        let lane = |applied: &AppliedLimit| {
            let Charge { policy, key, cost, .. } = limits.charge(applied);
            (LaneKey { policy: policy.clone(), key: key.clone() }, cost.get())
        };
        // All clients share a global key, and a shadow policy must not reject a request, so these
        // keys may fill the queue.
        let is_own = |applied: &AppliedLimit| {
            applied.key != Key::GLOBAL && limits.of(applied).mode != Mode::Shadow
        };
        let own = self.charges.iter().enumerate().filter(|(_, applied)| is_own(applied));
        let own = own.map(|(number, _)| number).collect();
        let lanes = self.charges.iter().map(lane);
        Member::new(arrival.number, lanes, self.may_wait(limits), own)
    }

    /// Returns the keys that the request may wait for. It does not wait for a key that it does not
    /// charge.
    fn may_wait(&self, limits: &Limits) -> KeySet {
        let may_wait = |applied: &AppliedLimit| {
            applied.cost > Cost::ZERO && limits.of(applied).mode.max_wait().is_some()
        };
        let numbered = self.charges.iter().enumerate();
        numbered.filter(|(_, applied)| may_wait(applied)).map(|(number, _)| number).collect()
    }

    pub(crate) fn max_wait(&self, limits: &Limits) -> Micros {
        let waits = self.charges.iter().filter_map(|it| limits.of(it).mode.max_wait());
        // Capped so that no sum overflows. No request takes longer than this to be allowed.
        let longest = waits.min().unwrap_or_default().min(Policy::MAX_WINDOW);
        Micros::from(longest).min(self.patience)
    }

    /// Whether a charge costs more than a local store's share of the quota. The request must not be
    /// rejected for good, because the primary store can allow it later.
    fn exceeds_share(&self, limits: &Limits, verdict: &Verdict) -> bool {
        let mut decided = self.charges.iter().zip(verdict.decisions());
        decided.any(|(applied, it)| {
            limits.of(applied).mode.enforces() && it.outcome == Outcome::ExceedsCapacity
        })
    }

    /// Returns when the denied charges may be allowed, or why the denial is final.
    fn denied(
        &self,
        limits: &Limits,
        verdict: &Verdict,
        now: Timestamp,
        remaining: Micros,
    ) -> Result<RetryTimes, Rejection> {
        let mut denied: SmallVec<[_; 4]> = self.charges.iter().map(|_| None).collect();
        for (number, (applied, decision)) in
            self.charges.iter().zip(verdict.decisions()).enumerate()
        {
            let limit = limits.of(applied);
            if decision.allows() || !limit.mode.enforces() {
                continue;
            }
            // A single final denial is enough.
            let (Some(_), Some(mut wait)) = (limit.mode.max_wait(), decision.retry_after()) else {
                return Err(Rejection::Denied);
            };
            if limit.policy.is_concurrency() {
                // Most requests finish long before their permits expire. The last try is at the end.
                wait = wait.min(RETRY_INTERVAL).min(remaining);
            }
            if wait > remaining || remaining == Micros::ZERO {
                return Err(Rejection::TooLate);
            }
            denied[number] = Some(now + wait);
        }
        Ok(RetryTimes(denied.into_vec().into()))
    }
}

/// How often the first waiter for a concurrency limit asks the store.
const RETRY_INTERVAL: Micros = Micros::new(25_000);
