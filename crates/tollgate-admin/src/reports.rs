//! The state of policies, stores and clients across all layers.

use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

use http::StatusCode;
use tollgate::key::Key;
use tollgate::observe::{self, DeniedClient, LayerHandle, ObservedPolicy};
use tollgate::store::{Decision, Micros, Outcome, Timestamp, Verdict};
use tollgate::tier::Tier;
use tollgate::{Limit, Policy};

use super::answers::{
    PolicyStatus, Status, StoreStatus, SubjectStatus, TopOfPolicy, TopSubject, seconds,
};
use super::problem::Problem;
use super::state::State;

/// A policy that several layers share appears once, with the sum of their decisions.
pub(super) async fn status(state: &State) -> Status {
    let (mut shown, mut stores, mut identities) = (Vec::<PolicyRow>::new(), Vec::new(), Vec::new());
    // Held until the end because `address` only identifies counters while their layer is alive.
    let layers = state.layers();
    for layer in &layers {
        let report = layer.store();
        if !identities.contains(&report.identity) {
            identities.push(report.identity);
            stores.push(StoreStatus::new(&report));
        }
        for (limit, observed) in layer.limits().into_iter().zip(layer.counts()) {
            let is_same = |shown: &PolicyRow| {
                shown.policy == *limit.policy() && shown.status.enforced == limit.is_enforced()
            };
            let row = match shown.iter().position(is_same) {
                Some(row) => row,
                None => {
                    let status = policy_status(layer, limit, report.name).await;
                    let (policy, counters) = (limit.policy().clone(), BTreeSet::new());
                    shown.push(PolicyRow { policy, status, counters });
                    shown.len() - 1
                }
            };
            let shown = &mut shown[row];
            if shown.counters.insert(address(observed)) {
                shown.status.add(observed);
            }
        }
    }
    Status::new(shown.into_iter().map(|shown| shown.status).collect(), stores)
}

/// A policy's status without its counts.
async fn policy_status(layer: &LayerHandle, limit: &Limit, store: &'static str) -> PolicyStatus {
    if !limit.is_global() {
        // The policy of a quota per key does not depend on one key's override.
        return PolicyStatus::new(limit, limit.policy(), store, None, now());
    }
    let policy = layer.policy_of(limit, None, &Key::GLOBAL);
    match peek(layer, limit, None, &Key::GLOBAL).await {
        // The store's clock determines the calendar period.
        Ok((decision, verdict)) => {
            PolicyStatus::new(limit, &policy, store, Some(decision), verdict.decided_at())
        }
        Err(_) => PolicyStatus::new(limit, &policy, store, None, now()),
    }
}

fn now() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::EPOCH + Micros::from(since_epoch)
}

struct PolicyRow {
    policy: Policy,
    status: PolicyStatus,
    /// The counters that are already summed. Layers can share counters.
    counters: BTreeSet<usize>,
}

/// Identifies counters while their layer is alive.
fn address(observed: &ObservedPolicy) -> usize {
    std::ptr::from_ref(observed).addr()
}

/// The most denied clients of each policy across all layers.
pub(super) fn top_of(state: &State, most: usize) -> Vec<TopOfPolicy> {
    let layers = state.layers();
    let mut policies: Vec<(&str, Vec<&ObservedPolicy>)> = Vec::new();
    for layer in &layers {
        for (limit, observed) in layer.limits().into_iter().zip(layer.counts()) {
            let name = limit.policy().name();
            match policies.iter_mut().find(|(known, _)| *known == name) {
                Some((_, all)) => all.push(observed),
                None => policies.push((name, vec![observed])),
            }
        }
    }
    let subject = |denied: DeniedClient| TopSubject {
        subject: state.0.subjects.format(&denied.key, denied.kind),
        client: denied.kind.as_str(),
        count: denied.count,
        error: denied.error,
    };
    let top = |(policy, observed): (&str, Vec<&ObservedPolicy>)| TopOfPolicy {
        policy: policy.to_owned(),
        denied: observe::most_denied(observed, most).into_iter().map(subject).collect(),
    };
    policies.into_iter().map(top).collect()
}

pub(super) async fn peek(
    layer: &LayerHandle,
    limit: &Limit,
    tier: Option<&Tier>,
    key: &Key,
) -> Result<(Decision, Verdict), Problem> {
    let verdict = layer.peek(limit, tier, key).await?;
    let decision = verdict.decisions().first().map(|it| match layer.blocked_for(limit, key) {
        Some(left) => it.blocked_for(left),
        None => *it,
    });
    match decision.filter(|decision| decision.outcome != Outcome::Undecided) {
        Some(decision) => Ok((decision, verdict)),
        None => {
            let detail = "The store is unavailable, and the policy fails open.";
            Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail))
        }
    }
}

/// A key's standing under a limit.
pub(super) async fn subject(
    layer: &LayerHandle,
    limit: &Limit,
    tier: Option<&Tier>,
    key: &Key,
) -> Result<SubjectStatus, Problem> {
    let is_unlimited = layer.is_unlimited(limit, tier, key);
    // A tier without a quota here has no effect.
    let tier = tier.filter(|tier| has_tier(limit, tier));
    let (decision, verdict) = peek(layer, limit, tier, key).await?;
    let decision = (!is_unlimited).then_some(decision);
    let mut status = SubjectStatus::new(limit, tier, decision, verdict.source());
    status.blocked = layer.blocked_for(limit, key).is_some();
    status.override_ends_after = layer.overridden_for(limit, key).map(seconds);
    Ok(status)
}

/// Whether the limit has its own quota for this tier.
pub(super) fn has_tier(limit: &Limit, tier: &Tier) -> bool {
    limit.tiers().any(|(name, _)| name == tier)
}
