//! A request that may wait for units: when it calls the store again, and when it gives up.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::{Instant, timeout_at};
use tollgate_core::{
    Algorithm, Charge, Cost, Decision, Key, Micros, Outcome, Policy, Refill, Reply, Source, Store,
    StoreError, Verdict,
};

use super::cancel::CancelGuard;
use super::lanes::{KeySet, LaneKey, Member};
use super::rows::Rows;
use super::state::LayerState;
use super::wait_queue::{Arrival, Ticket, WaitQueue};

/// A request that may wait for units.
pub(super) struct Waiter<St> {
    pub(super) layer: Arc<LayerState<St>>,
    pub(super) rows: Rows,
}

/// When each denied charge may be allowed. There is one entry per charge.
#[derive(Default)]
pub(super) struct RetryTimes(Box<[Option<Instant>]>);

impl RetryTimes {
    fn keys(&self) -> KeySet {
        self.keys_after(None)
    }

    fn keys_after(&self, now: Option<Instant>) -> KeySet {
        (0..self.0.len()).filter(|number| self.0[*number] > now).collect()
    }

    fn next_after(&self, now: Instant) -> Option<Instant> {
        self.0.iter().flatten().filter(|until| **until > now).min().copied()
    }
}

impl<St: Store> Waiter<St> {
    /// Returns the keys that the request may wait for.
    pub(super) fn may_wait(&self) -> KeySet {
        let costs = |number: &usize| self.rows[*number].cost > Cost::ZERO;
        let limits = (0..self.rows.len()).filter(|number| self.max_wait_of(*number).is_some());
        limits.filter(costs).collect()
    }

    /// How long the request may wait for a row. `None` if a denial is final.
    fn max_wait_of(&self, number: usize) -> Option<Duration> {
        self.layer.limit(&self.rows[number]).max_wait()
    }

    /// Whether a row's key may hold only its part of the queue. All clients share a global key, and
    /// a shadow policy must not reject a request.
    fn is_own(&self, number: usize) -> bool {
        let row = &self.rows[number];
        row.key != Key::GLOBAL && !self.layer.limit(row).shadow
    }

    /// Returns the first limit that the request may wait for. Metrics count the wait there.
    pub(super) fn first_limit(&self) -> usize {
        let number = self.may_wait().iter().next().expect("a request that may wait");
        usize::from(self.rows[number].limit)
    }

    /// Whether a charge costs more than its policy's capacity. The store then denies the request
    /// regardless of the remaining units, so waiting does not help.
    pub(super) fn never_passes(&self) -> bool {
        self.charges().iter().any(|it| it.enforce && it.cost.get() > it.policy.capacity())
    }

    /// Whether a charge costs more than a local store's share of the quota. The request must not be
    /// rejected for good, because the primary store can allow it later.
    fn exceeds_share(&self, verdict: &Verdict) -> bool {
        let charges = self.charges();
        let mut decided = charges.iter().zip(verdict.decisions());
        decided.any(|(charge, it)| charge.enforce && it.outcome == Outcome::ExceedsCapacity)
    }

    fn charges(&self) -> SmallVec<[Charge<'_>; 4]> {
        self.layer.limits.charges(&self.rows)
    }

    pub(super) fn enter(
        &self,
        queue: &WaitQueue,
        arrival: &Arrival,
        denying: KeySet,
    ) -> Result<Option<Ticket>, KeySet> {
        let charges = self.charges();
        let keys = charges
            .iter()
            .map(|charge| LaneKey { policy: charge.policy.clone(), key: charge.key.clone() });
        let member = Member {
            arrival: arrival.number,
            keys: keys.collect(),
            costs: charges.iter().map(|charge| charge.cost.get()).collect(),
            may_wait: self.may_wait(),
            own: (0..self.rows.len()).filter(|number| self.is_own(*number)).collect(),
            joined: KeySet::default(),
            is_first: Arc::default(),
        };
        queue.enter(arrival.bytes, member, denying)
    }

    /// Enters the queue after a denial. Returns `None` if the denial is final or the queue is full.
    pub(super) fn after_denial(
        &self,
        queue: &WaitQueue,
        arrival: &Arrival,
        verdict: &Verdict,
    ) -> Option<(Ticket, RetryTimes)> {
        if self.may_wait().is_empty() {
            return None;
        }
        let denied = self.denied(verdict)?;
        let ticket = self.enter(queue, arrival, denied.keys()).ok()??;
        Some((ticket, denied))
    }

    fn max_wait(&self) -> Duration {
        let max_waits = (0..self.rows.len()).filter_map(|number| self.max_wait_of(number));
        // Capped so that no sum overflows. No request takes longer than this to be allowed.
        max_waits.min().unwrap_or_default().min(Policy::MAX_WINDOW)
    }

    /// Returns when the denied charges may be allowed, or `None` if the denial is final.
    pub(super) fn denied(&self, verdict: &Verdict) -> Option<RetryTimes> {
        self.denied_within(verdict, self.max_wait())
    }

    fn denied_within(&self, verdict: &Verdict, remaining: Duration) -> Option<RetryTimes> {
        let now = Instant::now();
        let mut denied: Box<[_]> = self.rows.iter().map(|_| None).collect();
        for (number, (charge, decision)) in
            self.charges().iter().zip(verdict.decisions()).enumerate()
        {
            if decision.denies() && charge.enforce {
                // A single final denial is enough.
                self.max_wait_of(number)?;
                let mut wait = decision.retry_after()?;
                if charge.policy.is_concurrency() {
                    // Most requests finish long before their permits expire.
                    wait = wait.min(RETRY_INTERVAL);
                }
                let wait = Some(Duration::from(wait)).filter(|wait| *wait <= remaining)?;
                denied[number] = Some(now + wait);
            }
        }
        Some(RetryTimes(denied))
    }

    /// Waits until no key denies the request and no earlier request waits for its keys. Then it
    /// calls the store until the store admits the request or `max_wait` is over. `denial` is the
    /// verdict so far.
    pub(super) async fn wait(
        &self,
        mut ticket: Ticket,
        denial: Option<(Verdict, RetryTimes)>,
    ) -> Result<Verdict, StoreError> {
        let deadline = Instant::now() + self.max_wait();
        let (verdict, mut denied) = match denial {
            Some((verdict, denied)) => (Some(verdict), denied),
            // Even if the store fails now, it may decide when the request calls it again.
            None => {
                let verdict = self.decide(Charge::dry).await.ok();
                let verdict = verdict.filter(|verdict| !self.exceeds_share(verdict));
                // A limit that rejects must do so immediately, even while other requests wait.
                let denied = match &verdict {
                    // Dry charges are always admitted, so check the decisions instead of the
                    // verdict.
                    Some(verdict) => match self.denied(verdict) {
                        Some(denied) => denied,
                        None => {
                            let keys = KeySet::default();
                            return Ok(denied_under(keys, verdict, |_, it| it.reset_after));
                        }
                    },
                    None => RetryTimes::default(),
                };
                (verdict, denied)
            }
        };
        if let Some(rejected) = verdict.and_then(|verdict| self.too_late(&verdict, &ticket)) {
            return Ok(rejected);
        }
        loop {
            let now = Instant::now();
            if ticket.waits(denied.keys_after(Some(now))) {
                if now >= deadline {
                    let keys = ticket.waits_for();
                    drop(ticket);
                    break self.reject(keys).await;
                }
                let next = denied.next_after(now).map_or(deadline, |next| next.min(deadline));
                let _ = timeout_at(next, ticket.woken()).await;
                continue;
            }
            let reply = self.call_store().await;
            let remaining = deadline.saturating_duration_since(Instant::now());
            let verdict = reply.as_ref().ok().filter(|verdict| !verdict.is_admitted());
            match verdict.and_then(|verdict| self.denied_within(verdict, remaining)) {
                Some(again) => denied = again,
                None => break reply,
            }
        }
    }

    /// Returns the rejection if the requests ahead would make this request too late, otherwise
    /// `None`.
    fn too_late(&self, verdict: &Verdict, ticket: &Ticket) -> Option<Verdict> {
        let max_wait = Micros::from(self.max_wait());
        let earliest = |number: usize| {
            let Charge { policy, cost, .. } = self.layer.limits.charge(&self.rows[number]);
            earliest(policy, cost, verdict.decisions().get(number)?, ticket.units_ahead(number))
        };
        let late = |number: usize| earliest(number).is_some_and(|wait| wait > max_wait);
        let keys: KeySet = self.may_wait().iter().filter(|number| late(*number)).collect();
        let retry_after = |number: usize, _: &Decision| earliest(number).unwrap_or_default();
        (!keys.is_empty()).then(|| denied_under(keys, verdict, retry_after))
    }

    /// Denies the request under these keys without charging it, so earlier requests get their
    /// units. Limits that deny the request themselves remain denials. For the other keys,
    /// `Retry-After` is the time until the quota is full again, because no earlier time is known.
    pub(super) async fn reject(&self, keys: KeySet) -> Result<Verdict, StoreError> {
        let mut peeked = self.decide(Charge::dry).await?;
        if self.exceeds_share(&peeked) {
            peeked = self.decide(|charge| Charge { cost: Cost::ZERO, ..charge }).await?;
        }
        let is_open = |number: usize| peeked.decisions()[number].outcome == Outcome::Undecided;
        if peeked.source() == Source::Local && keys.iter().all(is_open) {
            // The store has failed, and each policy that the request waits for fails open. The
            // local policies decide, but a shadow policy must not cause another call.
            let is_shadow = |number: usize| self.layer.limit(&self.rows[number]).shadow;
            if (0..self.rows.len()).all(|number| is_open(number) || is_shadow(number)) {
                let undecided = self.rows.iter().map(|row| row.decision);
                let verdict = Verdict::new(true, peeked.decided_at(), undecided);
                return Ok(verdict.with_source(Source::Local));
            }
            return self.call_store().await;
        }
        Ok(denied_under(keys, &peeked, |_, decision| decision.reset_after))
    }

    /// Calls the store. If the request is dropped before the reply, its charges are refunded.
    async fn call_store(&self) -> Result<Verdict, StoreError> {
        match self.decide(|charge| charge).now() {
            Ok(reply) => reply,
            Err(reply) => CancelGuard::pending(&self.layer, &self.rows, reply, |_| true).await,
        }
    }

    fn decide<'a>(&'a self, change: impl FnMut(Charge<'a>) -> Charge<'a>) -> Reply<St::Future> {
        let charges: SmallVec<[Charge<'a>; 4]> = self.charges().into_iter().map(change).collect();
        self.layer.store.decide(&charges)
    }
}

/// Returns the earliest time at which a charge can be allowed after `ahead` units of earlier
/// requests. Returns `None` for a concurrency limit, where only the end of other requests matters,
/// and for an undecided policy, because its numbers are placeholders.
fn earliest(policy: &Policy, cost: Cost, decision: &Decision, ahead: u64) -> Option<Micros> {
    let (wait, units) = match decision.outcome {
        _ if policy.is_concurrency() => return None,
        Outcome::Undecided => return None,
        Outcome::Deny { retry_after } => (retry_after, ahead),
        _ => {
            let units = ahead.saturating_add(cost.get());
            (Micros::ZERO, units.saturating_sub(decision.remaining))
        }
    };
    let (units, limit) = (u128::from(units), u128::from(policy.quota().limit()));
    let window = u128::from(policy.window().get());
    let more = match policy.algorithm() {
        Some(Algorithm::TokenBucket { refill: Refill::Greedy } | Algorithm::LeakyBucket { .. }) => {
            units * window / limit
        }
        _ if wait == Micros::ZERO => units.saturating_sub(1) / limit * window,
        _ => units / limit * window,
    };
    Some(Micros::new(wait.get().saturating_add(u64::try_from(more).unwrap_or(u64::MAX))))
}

fn denied_under(
    keys: KeySet,
    verdict: &Verdict,
    retry_after: impl Fn(usize, &Decision) -> Micros,
) -> Verdict {
    let decisions = verdict.decisions().iter().enumerate().map(|(number, decision)| {
        let outcome = match decision.outcome {
            Outcome::Allow { .. } | Outcome::WouldAllow | Outcome::Deny { .. }
                if keys.contains(number) =>
            {
                let retry_after = retry_after(number, decision).max(Micros::new(1));
                Outcome::Deny { retry_after }
            }
            Outcome::Allow { .. } => Outcome::WouldAllow,
            other => other,
        };
        Decision { outcome, ..*decision }
    });
    Verdict::new(false, verdict.decided_at(), decisions).with_source(verdict.source())
}

/// How often the first waiter for a concurrency limit calls the store.
const RETRY_INTERVAL: Micros = Micros::new(25_000);

#[cfg(test)]
mod tests {
    use tollgate_core::Quota;

    use super::*;

    /// A Redis Cluster, or a remembered denial, decides only some policies of a denied request.
    #[test]
    fn undecided_policies_do_not_reject_waiters() {
        let policy = Policy::token_bucket("slow", Quota::per_minute(1)).unwrap();
        let earliest = |decision| earliest(&policy, Cost::ONE, &decision, 0);
        let undecided = Decision::undecided(1);
        assert_eq!(earliest(undecided), None);
        let without_units = Decision { outcome: Outcome::WouldAllow, ..undecided };
        assert_eq!(earliest(without_units), Some(Micros::new(60_000_000)));
    }
}
