//! What the script does for each request in a call.

use tollgate_core::{Cost, Outcome, OwnedCharge, Policy, Settlement, Timestamp, Verdict};

use super::data::any_policy;
use super::reply::Reply;
use super::request::Request;
use super::{Change, Server, Settled};
use crate::reached::{Reached, SCRIPT};

impl Server {
    pub(super) fn request(
        &mut self,
        count: u64,
        request: &Request,
        now: Timestamp,
        reply: &mut Reply,
        changes: &mut Vec<Change>,
    ) {
        match request {
            Request::Decide(sums) => {
                for _ in 0..count {
                    self.decide(sums, now, reply, changes);
                }
            }
            Request::Lease { .. } if self.is_full => {
                self.reached.enter(SCRIPT, "memory is full: lease");
                reply.unmade();
            }
            Request::Settle { .. } | Request::Renew(_) | Request::Block { .. } if self.is_full => {
                self.reached.enter(SCRIPT, "memory is full: correction");
                reply.unmade();
            }
            Request::Settle { receipt, actual, settled } => {
                self.data.expire(receipt.policy.name(), &receipt.key, now);
                let settlement = self.data.reference.settle(receipt, *actual, now);
                match settlement {
                    Settlement::Returned { units: 1.. } => {
                        self.reached.rule(&receipt.policy, "refunds");
                    }
                    Settlement::Charged { units: 1.. } => {
                        self.reached.rule(&receipt.policy, "owes");
                    }
                    Settlement::Repeated => self.reached.enter(SCRIPT, "receipt settled before"),
                    Settlement::Lapsed => self.reached.enter(SCRIPT, "permit expired before"),
                    _ => {}
                }
                reply.settlement(settlement);
                self.data.receipts.insert(settled.clone(), receipt.id);
                self.data.written(&receipt.policy, &receipt.key, now);
                // After a reset, there are no units to return.
                let is_full =
                    *actual == Cost::ZERO && matches!(settlement, Settlement::Returned { .. });
                let refund = is_full.then_some(receipt.charged.cost.get());
                let settled = Some(Settled { id: receipt.id, settlement, refund });
                let (policy, key) = (receipt.policy.name().to_owned(), receipt.key.clone());
                changes.push(Change::Freed { policy, key, settled });
            }
            Request::Renew(receipt) => {
                self.data.expire(receipt.policy.name(), &receipt.key, now);
                let renewed = self.data.reference.renew(receipt, now);
                let is_renewed = renewed.is_some();
                let branch =
                    if is_renewed { "renews a permit" } else { "ignores a settled permit" };
                self.reached.enter(SCRIPT, branch);
                reply.renewal(renewed.map(|receipt| receipt.charged.charged_at));
                self.data.written(&receipt.policy, &receipt.key, now);
            }
            Request::Reset { policy, key } => {
                self.reached.enter(SCRIPT, "resets");
                let any = any_policy(policy);
                self.data.reference.reset(&any, key, now);
                self.data.written(&any, key, now);
                reply.reset();
                let (policy, key) = (policy.clone(), key.clone());
                changes.push(Change::Freed { policy, key, settled: None });
            }
            Request::Block { policy, key, block } => {
                self.data.expire(policy.name(), key, now);
                let blocked = self.data.reference.block(policy, key, *block, now);
                self.reached.rule(policy, if blocked.is_some() { "blocks" } else { "is not news" });
                reply.blocked(blocked);
                self.data.written(policy, key, now);
            }
            Request::Lease { policy, key, units, ttl, tag, spent } => {
                self.data.expire(policy.name(), key, now);
                for &(id, used) in spent {
                    let is_known = self.data.reference.knows_block(policy, key, id, now);
                    let branch =
                        if is_known { "settles a block" } else { "ignores an unknown block" };
                    self.reached.enter(SCRIPT, branch);
                    if is_known {
                        let (policy, key) = (policy.name().to_owned(), key.clone());
                        changes.push(Change::Returned { policy, key, id, used });
                    }
                }
                let id = now.as_micros() << 32 | tag;
                let asked = (id, *units, *ttl);
                let granted = self.data.reference.lease((policy, key), now, spent, asked);
                self.data.written(policy, key, now);
                if *units > 0 {
                    let verb = if granted.units > 0 { "leases" } else { "leases nothing" };
                    self.reached.rule(policy, verb);
                }
                if granted.units > 0 {
                    let (policy, key) = (policy.name().to_owned(), key.clone());
                    let until = now + granted.lasts;
                    changes.push(Change::Granted { policy, key, id, units: granted.units, until });
                }
                reply.granted(&granted);
            }
        }
    }

    fn decide(
        &mut self,
        sums: &[OwnedCharge],
        now: Timestamp,
        reply: &mut Reply,
        changes: &mut Vec<Change>,
    ) {
        for sum in sums {
            self.data.expire(sum.policy.name(), &sum.key, now);
            if self.data.has_another_version(&sum.policy, &sum.key) {
                self.reached.enter(SCRIPT, "state of another version");
            }
        }
        let charges = sums.iter().map(OwnedCharge::as_charge);
        let charges: Vec<_> = charges.collect();
        let takes =
            |sum: &&OwnedCharge| !sum.dry && sum.cost > Cost::ZERO && !sum.policy.is_penalty();
        let verdict = self.data.reference.decide(&charges, now);
        reach(&mut self.reached, sums, &verdict);
        if self.is_full && verdict.is_admitted() && sums.iter().any(|sum| takes(&sum)) {
            self.reached.enter(SCRIPT, "memory is full: decision");
            return reply.unmade();
        }
        let frozen = self.data.reference.frozen(&charges, &verdict, now);
        reply.verdict(&verdict, &frozen);
        if let Some(decided) = &mut self.decided {
            decided.push((sums.to_vec(), verdict.clone()));
        }
        for sum in sums {
            self.data.written(&sum.policy, &sum.key, now);
        }
        if verdict.is_admitted() {
            let charged = sums.iter().zip(verdict.decisions());
            let charged = charged.filter(|(sum, decision)| takes(sum) && !decision.denies());
            changes.extend(charged.map(|(sum, _)| Change::Charged {
                policy: sum.policy.name().to_owned(),
                key: sum.key.clone(),
                cost: sum.cost.get(),
            }));
        }
    }
}

/// Notes the branches that a decision shows.
fn reach(reached: &mut Reached, sums: &[OwnedCharge], verdict: &Verdict) {
    let denies = |policy: &Policy| {
        let sums = sums.iter().zip(verdict.decisions());
        sums.filter(|(sum, _)| sum.policy.is_penalty() == policy.is_penalty())
            .any(|(sum, decision)| sum.enforce && decision.denies())
    };
    for (sum, decision) in sums.iter().zip(verdict.decisions()) {
        let verb = match decision.outcome {
            _ if sum.dry || sum.cost == Cost::ZERO => "queries",
            Outcome::Deny { .. } => "denies",
            Outcome::ExceedsCapacity => "exceeds",
            _ => "allows",
        };
        reached.rule(&sum.policy, verb);
        if !sum.enforce && !sum.dry && decision.denies() {
            reached.enter(SCRIPT, "shadow policy denies");
        }
        let is_limit = |other: &&OwnedCharge| !other.policy.is_penalty();
        let limit = sums.iter().find(is_limit);
        if sum.policy.counts_denials() && limit.is_some_and(|limit| denies(&limit.policy)) {
            reached.enter(SCRIPT, "strike");
        }
    }
}
