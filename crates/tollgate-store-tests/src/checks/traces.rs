//! Long random traces, compared field by field with the reference.

use std::collections::HashSet;
use std::time::Duration;

use fastrand::Rng;
use tollgate_core::algorithm::penalty::Terms;
use tollgate_core::{
    Algorithm, Charge, Cost, Decision, Key, Kind, LeakyMode, Micros, Outcome, Policy, Quota,
    Receipt, Store, Verdict,
};

use super::{MODES, advance, decide, fresh_id};
use crate::reference::Reference;
use crate::{Harness, is_long, seeds, vary};

/// Random requests get the same verdicts from the store and from the reference. They have one to
/// three charges, including shadow charges and equal charges, and the policies' quotas change now
/// and then.
pub async fn verdicts_match_the_reference<H: Harness>(harness: &H, store: &H::Store) {
    trace(harness, store, 0).await;
}

/// A random sequence of charges, settlements, renewals and resets has the same results as in the
/// reference.
///
/// A verdict contains the store's time, but a settlement does not, so this check moves the clock.
pub async fn settlements_and_resets_match_the_reference<H: Harness>(harness: &H, store: &H::Store) {
    advance(harness, Micros::ZERO);
    trace(harness, store, 3).await;
}

/// Long traces take several minutes over a network.
fn length() -> usize {
    if is_long() { 60_000 } else { 400 }
}

async fn trace<H: Harness>(harness: &H, store: &H::Store, settle_one_in: u32) {
    // Eight consecutive seeds cover every kind of policy.
    for seed in seeds(8) {
        let mut rng = Rng::with_seed(seed);
        let mut reference = Reference::default();
        let mut kept = Vec::new();
        // The store's receipt and the reference's: a store that has forgotten an unused key counts
        // its refunds anew.
        let mut receipts: Vec<(Receipt, Receipt)> = Vec::new();
        let mut settled_before = HashSet::new();
        for step in 0..length() {
            harness.advance(gap(&mut rng));
            let policies = policies(&mut rng, seed, &mut kept);
            let keys: Vec<_> = policies.iter().map(|_| key(&mut rng)).collect();
            let costs = policies.iter().map(|it| Cost::new(rng.u64(0..=it.capacity() + 1)));
            let costs: Vec<_> = costs.collect();
            let charged = policies.iter().zip(&keys).zip(costs);
            let charges = charged.map(|((policy, key), cost)| Charge::new(policy, key, cost));
            let charges = vary(&mut rng, charges, true);
            let verdict = decide(store, &charges).await;
            let now = verdict.decided_at();
            let expected = reference.decide(&charges, now);
            let (shown, same) = (without_refunds(&verdict), without_refunds(&expected));
            assert_eq!(shown, same, "seed {seed}, step {step}: {charges:#?}");
            if settle_one_in == 0 {
                continue;
            }
            let issued: Vec<_> = verdict.receipts(&charges, fresh_id).collect();
            let mut ids = issued.iter().map(|receipt| receipt.id);
            let next_id = || ids.next().expect("as many receipts");
            let expected: Vec<_> = expected.receipts(&charges, next_id).collect();
            receipts.extend(issued.into_iter().zip(expected));
            if !receipts.is_empty() && rng.u32(..settle_one_in) == 0 {
                // Sometimes the receipt remains in the list, to be settled again.
                let index = rng.usize(..receipts.len());
                let (receipt, known) = receipts[index].clone();
                // After a receipt has lapsed, a store may forget that the receipt was settled.
                let is_over = receipt.has_lapsed(now) && settled_before.contains(&receipt.id);
                if receipt.policy.is_concurrency() && !is_over && rng.bool() {
                    let renewed = store.renew(&receipt).await.expect("the store renews");
                    let expected = reference.renew(&known, now);
                    assert_eq!(renewed, expected, "seed {seed}, step {step}: {receipt:?}");
                    let renewed = renewed.unwrap_or(receipt);
                    receipts[index] = (renewed.clone(), renewed);
                    continue;
                }
                if rng.u8(..4) > 0 {
                    receipts.swap_remove(index);
                }
                let actual = Cost::new(rng.u64(0..=2 * receipt.charged.cost.get()));
                settled_before.insert(receipt.id);
                let settled = store.settle(&receipt, actual).await.expect("the store settles");
                let expected = reference.settle(&known, actual, now);
                assert_eq!(
                    settled, expected,
                    "seed {seed}, step {step}: {receipt:?} to {actual:?}"
                );
            }
            if rng.u8(..50) == 0 {
                let (policy, key) = (&policies[0], &keys[0]);
                store.reset(policy, key).await.expect("the store resets");
                reference.reset(policy, key, now);
                // A charge in the same microsecond can be told apart from charges before the reset
                // only if there were none, which a store that has forgotten the key does not know.
                harness.advance(Micros::new(1));
            }
        }
    }
}

/// Returns the verdict without the buckets' counts of refunded units. A store that has forgotten an
/// unused key counts its refunds anew.
pub fn without_refunds(verdict: &Verdict) -> Verdict {
    let decisions = verdict.decisions().iter().map(|decision| match decision.outcome {
        Outcome::Allow { delay, charged_at, .. } => {
            let outcome = Outcome::Allow { delay, charged_at, refunded: 0 };
            Decision { outcome, ..*decision }
        }
        _ => *decision,
    });
    Verdict::new(verdict.is_admitted(), verdict.decided_at(), decisions)
        .with_source(verdict.source())
}

/// Returns one to three policies. Policies with the same name are equal, because different ones
/// would be an error. Half reuse an existing handle like a running service; half are built anew
/// like after a reload.
fn policies(rng: &mut Rng, seed: u64, kept: &mut Vec<Policy>) -> Vec<Policy> {
    let mut policies: Vec<Policy> = Vec::new();
    for _ in 0..rng.usize(1..=3) {
        let mut policy = policy(rng, seed);
        if rng.bool() {
            match kept.iter().find(|kept| kept.shares_state_with(&policy)) {
                Some(kept) => policy = kept.clone(),
                None => kept.push(policy.clone()),
            }
        }
        let same = policies.iter().find(|other| other.name() == policy.name());
        policies.push(same.cloned().unwrap_or(policy));
    }
    policies
}

/// Returns a policy with a name from a set of four, occasionally with a different quota or
/// algorithm.
fn policy(rng: &mut Rng, seed: u64) -> Policy {
    let name = rng.usize(..4);
    let penalty = |counts_denials| {
        Kind::Penalty(Terms {
            block: Micros::new(300),
            factor: 3,
            max_block: Micros::new(2_000),
            forget_after: Micros::new(1_500),
            counts_denials,
        })
    };
    let impatient = LeakyMode::Queue { max_wait: Some(Micros::new(700)) };
    let others = [
        Algorithm::ConcurrentRequests.into(),
        penalty(true),
        Algorithm::LeakyBucket { mode: impatient }.into(),
        penalty(false),
    ];
    let modes = [&MODES.map(Kind::Limit)[..], &others].concat();
    let usual = modes[(name + 2 * seed as usize) % modes.len()];
    let kind = match rng.u8(..20) {
        0 => modes[rng.usize(..modes.len())],
        1 => Algorithm::LeakyBucket {
            mode: LeakyMode::Queue { max_wait: Some(Micros::new(rng.u64(1..2_000))) },
        }
        .into(),
        _ => usual,
    };
    let limit = [1, 2, 7, 30][if rng.u8(..10) == 0 { rng.usize(..4) } else { name }];
    let window = Duration::from_micros([50, 1_000, 10_000][rng.usize(..20).saturating_sub(17)]);
    let quota = Quota::new(limit, window);
    let is_bucket = matches!(kind, Kind::Limit(algorithm) if algorithm.is_bucket());
    let quota = if is_bucket && rng.u8(..4) == 0 { quota.burst(limit * 2) } else { quota };
    Policy::new(format!("{seed}-{name}"), quota, kind).expect("small numbers build")
}

fn key(rng: &mut Rng) -> Key {
    Key::from(["", "a", "b", "a key that is not kept inline"][rng.usize(..4)])
}

/// Usually a short time, sometimes a window or more, sometimes zero.
fn gap(rng: &mut Rng) -> Micros {
    Micros::new(match rng.u8(..10) {
        0..3 => 0,
        3..7 => rng.u64(0..20),
        7..9 => rng.u64(0..1_000),
        _ => rng.u64(0..25_000),
    })
}
