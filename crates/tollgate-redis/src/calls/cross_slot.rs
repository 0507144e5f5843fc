//! Requests with keys in several Cluster slots.
//!
//! Two slots may be on two nodes, so each slot has its own call, in sequence. If a later slot
//! denies, the earlier charges are refunded. This never admits more than the quotas, but it may
//! deny requests that the quotas would allow, because a request that is denied later holds units
//! until its refund. If a refund is lost, its units are missing until they age out.
//!
//! So *all or none* holds after the last refund, and *one snapshot* and *a denial changes nothing*
//! hold within each slot. After a refund, like after any settlement, the policy's denials are not
//! remembered.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::{Instant, timeout_at};
use tollgate_core::{
    Cost, Decision, Key, Micros, Outcome, Receipt, Settlement, Store as _, StoreError, Verdict,
};

use crate::calls::failure::STORE;
use crate::calls::future::{RedisFuture, Submitted};
use crate::calls::ids::Ids;
use crate::calls::ticket::{Answer, NamedCharge, Request, Ticket};
use crate::deny_cache::RecentDenials;
use crate::store::RedisStore;

impl RedisStore {
    /// Decides a request with charges in several slots.
    pub(crate) fn decide_across_slots(&self, charges: SmallVec<[NamedCharge; 2]>) -> RedisFuture {
        let runtime = self.0.combiner.runtime.clone();
        let deadline = self.deadline();
        let request = CrossSlot { store: self.clone(), groups: groups(self, charges), deadline };
        let ticket = Ticket::new(Request::Decide(SmallVec::new()), 0, NOT_REMEMBERED, deadline);
        let ticket = Arc::new(ticket);
        let asked = Arc::clone(&ticket);
        let drive = Box::pin(async move {
            let verdict = request.decide(&asked).await;
            asked.answer(verdict.map(Answer::Verdict));
        });
        RedisFuture(Submitted::driven(ticket, drive, runtime))
    }
}

/// An epoch that the deny cache never has, because a denial by one slot must not be remembered:
/// other such requests may refund the missing units.
const NOT_REMEMBERED: u64 = u64::MAX;

struct CrossSlot {
    store: RedisStore,
    /// The groups, in call order.
    groups: Vec<Arc<Group>>,
    deadline: Instant,
}

/// A request's charges in one slot.
#[derive(Debug)]
struct Group {
    slot: u16,
    charges: SmallVec<[NamedCharge; 2]>,
    /// Each charge's index in the request.
    indices: SmallVec<[usize; 2]>,
}

fn groups(store: &RedisStore, charges: SmallVec<[NamedCharge; 2]>) -> Vec<Arc<Group>> {
    let mut groups: Vec<Group> = Vec::new();
    for (index, charge) in charges.into_iter().enumerate() {
        let slot = store.0.combiner.topology.slot(&charge.state);
        let index_of_group = groups.iter().position(|group| group.slot == slot);
        let index_of_group = index_of_group.unwrap_or_else(|| {
            groups.push(Group { slot, charges: SmallVec::new(), indices: SmallVec::new() });
            groups.len() - 1
        });
        let group = &mut groups[index_of_group];
        group.charges.push(charge);
        group.indices.push(index);
    }
    groups.sort_by_cached_key(|group| group.rank(&store.0.combiner.deny_cache.recent));
    groups.into_iter().map(Arc::new).collect()
}

impl Group {
    /// Returns the sort key for the order of calls, smallest first.
    ///
    /// Shadow policies come last, because they are only charged with an admitted request. A queue
    /// comes just before them, because not every queued charge can be refunded. Otherwise, a key
    /// that denied recently comes first, because it probably denies again. The narrowest quota is
    /// next, because its denial has charged no other key, and then the key that all requests share.
    fn rank(&self, recent: &RecentDenials) -> (bool, bool, bool, bool, u64) {
        // A penalty must see its own key's denials.
        let is_first = |it: &NamedCharge| {
            it.charge.policy.counts_denials() || it.charge.enforce && recent.has(it)
        };
        let is_first = self.charges.iter().any(is_first);
        let is_shared = self.charges.iter().any(|charge| charge.charge.key == Key::GLOBAL);
        let enforced = self.charges.iter().filter(|charge| charge.charge.enforce);
        let least = enforced.map(|charge| charge.charge.policy.capacity()).min();
        (self.is_shadow(), self.queues(), !is_first, is_shared, least.unwrap_or_default())
    }

    fn queues(&self) -> bool {
        self.charges.iter().any(|charge| charge.charge.policy.queues())
    }

    fn is_shadow(&self) -> bool {
        !self.charges.iter().any(|charge| charge.charge.enforce)
    }

    /// Returns the receipts for an immediate refund of a verdict's charges. Penalties are omitted
    /// because they charge no units.
    fn receipts(&self, ids: &Ids, verdict: &Verdict) -> Vec<Receipt> {
        let charges: Vec<_> = self.charges.iter().map(NamedCharge::as_charge).collect();
        let receipts = verdict.receipts(&charges, || ids.receipt(verdict.decided_at()));
        let mut receipts: Vec<_> = receipts.filter(|it| !it.policy.is_penalty()).collect();
        for Receipt { charged, .. } in &mut receipts {
            charged.lifetime = charged.lifetime.min(LIFETIME);
        }
        receipts
    }

    fn skipped(&self) -> Decisions {
        let limits = self.charges.iter().map(|charge| charge.charge.policy.capacity());
        Decisions::of(limits.map(Decision::undecided))
    }
}

/// A group's decisions.
#[derive(Debug, Default)]
struct Decisions(SmallVec<[Decision; 2]>);

impl Decisions {
    fn of(decisions: impl Iterator<Item = Decision>) -> Self {
        Self(decisions.collect())
    }

    /// Returns the group's decisions after another group denied the request and this group was
    /// refunded: it would allow the request, and its units are available again.
    fn uncharged(group: &Group, verdict: &Verdict) -> Self {
        let decisions = group.charges.iter().zip(verdict.decisions()).map(|(charge, decision)| {
            let mut decision = *decision;
            if matches!(decision.outcome, Outcome::Allow { .. }) {
                decision.outcome = Outcome::WouldAllow;
                let left = decision.remaining.saturating_add(charge.charge.cost.get());
                decision.remaining = left.min(decision.limit);
            }
            decision
        });
        Self::of(decisions)
    }
}

impl CrossSlot {
    async fn decide(self, asked: &Ticket) -> Result<Verdict, StoreError> {
        let queues = |group: &&Arc<Group>| group.charges.iter().any(NamedCharge::gets_a_place);
        if self.groups.iter().filter(queues).count() > 1 {
            let reason = "the request queues in two Cluster slots, which cannot agree on an instant: \
                          give both policies the same key";
            return Err(StoreError::invalid(STORE, reason));
        }
        let mut verdicts: Vec<Option<Verdict>> = Vec::with_capacity(self.groups.len());
        let (mut is_silent, mut may_be_charged) = (true, false);
        for group in &self.groups {
            if !asked.send() {
                self.refund(&verdicts).await;
                return Err(StoreError::not_charged(STORE, "the caller is gone"));
            }
            match self.ask(group.charges.clone()).await {
                Ok(verdict) if verdict.is_admitted() => {
                    is_silent = false;
                    verdicts.push(Some(verdict));
                }
                Ok(verdict) => return Ok(self.deny(&verdicts, &verdict).await),
                // A failed call to a shadow policy does not affect the request, if at least one
                // group has decided.
                Err(error) if group.is_shadow() && !(is_silent && self.is_last(group)) => {
                    may_be_charged |= error.may_have_charged();
                    verdicts.push(None);
                }
                Err(error) => {
                    may_be_charged |= !self.refund(&verdicts).await;
                    return Err(if !may_be_charged || error.may_have_charged() {
                        error
                    } else {
                        StoreError::maybe_charged(STORE, &error).with_source(error)
                    });
                }
            }
        }
        let decisions = self.groups.iter().zip(&verdicts).map(|(group, verdict)| match verdict {
            Some(verdict) => Decisions::of(verdict.decisions().iter().copied()),
            None => group.skipped(),
        });
        let at = self.groups.iter().zip(&verdicts);
        let at = at.filter_map(|(group, verdict)| Some((group.queues(), verdict.as_ref()?)));
        // Each node has its own clock. A queued request waits by its queue's clock.
        let at = at.max_by_key(|(queues, _)| *queues);
        let at = at.map(|(_, verdict)| verdict.decided_at()).unwrap_or_default();
        Ok(Verdict::new(true, at, self.in_order(decisions)))
    }

    /// Returns the verdict on a request that was denied after the groups in `before` had admitted
    /// it, and refunds their charges. Groups without a call are undecided.
    async fn deny(&self, before: &[Option<Verdict>], denial: &Verdict) -> Verdict {
        let denier = &self.groups[before.len()];
        for (charge, decision) in denier.charges.iter().zip(denial.decisions()) {
            if charge.charge.enforce && decision.denies() {
                self.store.0.combiner.deny_cache.recent.add(charge);
            }
        }
        self.refund(before).await;
        let decisions =
            self.groups.iter().enumerate().map(|(index, group)| match before.get(index) {
                Some(Some(verdict)) => Decisions::uncharged(group, verdict),
                None if index == before.len() => Decisions::of(denial.decisions().iter().copied()),
                _ => group.skipped(),
            });
        Verdict::new(false, denial.decided_at(), self.in_order(decisions))
    }

    /// Refunds the charges. Returns whether all refunds finished before the deadline.
    async fn refund(&self, verdicts: &[Option<Verdict>]) -> bool {
        let groups = self.groups.iter().zip(verdicts);
        let ids = &self.store.0.combiner.ids;
        let receipts: Vec<_> = groups
            .filter_map(|(group, verdict)| Some(group.receipts(ids, verdict.as_ref()?)))
            .flatten()
            .collect();
        if receipts.is_empty() {
            return true;
        }
        let store = self.store.clone();
        let refunds = async move { refund_receipts(&store, receipts).await };
        let refunds = self.store.0.combiner.runtime.spawn(refunds);
        matches!(timeout_at(self.deadline, refunds).await, Ok(Ok(true)))
    }

    fn is_last(&self, group: &Arc<Group>) -> bool {
        self.groups.last().is_some_and(|last| Arc::ptr_eq(last, group))
    }

    /// Decides one slot's charges. It checks the deadline itself, because the slot's queue only
    /// expires requests from its head, where newer requests with later deadlines may wait.
    async fn ask(&self, charges: SmallVec<[NamedCharge; 2]>) -> Result<Verdict, StoreError> {
        let mut answer = ask(&self.store, charges, self.deadline);
        match timeout_at(self.deadline, &mut answer).await {
            Ok(answer) => answer,
            Err(_) => {
                answer.expire();
                answer.await
            }
        }
    }

    /// Returns the decisions in the order of the request's charges.
    fn in_order(&self, groups: impl IntoIterator<Item = Decisions>) -> SmallVec<[Decision; 2]> {
        let indices = self.groups.iter().flat_map(|group| &group.indices);
        let decisions = groups.into_iter().flat_map(|group| group.0);
        let mut decisions: SmallVec<[_; 2]> = indices.zip(decisions).collect();
        decisions.sort_unstable_by_key(|(index, _)| **index);
        decisions.into_iter().map(|(_, decision)| decision).collect()
    }
}

fn ask(store: &RedisStore, charges: SmallVec<[NamedCharge; 2]>, deadline: Instant) -> RedisFuture {
    RedisFuture(store.submit_within(deadline, NOT_REMEMBERED, Request::Decide(charges)))
}

/// Refunds the charges of the receipts. Returns whether all refunds were confirmed. A lost refund
/// is sent again, which is safe because a receipt is only settled once.
async fn refund_receipts(store: &RedisStore, receipts: Vec<Receipt>) -> bool {
    let mut open: Vec<_> = receipts.iter().collect();
    let mut all_refunded = true;
    for pause in [Duration::ZERO, PAUSE, PAUSE * 8] {
        if open.is_empty() {
            break;
        }
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        // Send all refunds before waiting for the first.
        let refund = |receipt| (receipt, store.settle(receipt, Cost::ZERO));
        let given: Vec<_> = open.into_iter().map(refund).collect();
        open = Vec::new();
        for (receipt, given) in given {
            match given.await {
                Ok(Settlement::Returned { units }) if units > 0 => {}
                // A queued charge is not refunded if requests wait behind it. If a receipt's first
                // answer was lost, its effect is unknown.
                Ok(_) => all_refunded = false,
                Err(_) => open.push(receipt),
            }
        }
    }
    all_refunded && open.is_empty()
}

/// The pause before a failed refund is first retried.
const PAUSE: Duration = Duration::from_millis(25);
/// The longest lifetime of a receipt for an immediate refund. It is short, so a flood of denied
/// requests does not leave long-lived receipts in Redis.
const LIFETIME: Micros = Micros::new(5_000_000);
