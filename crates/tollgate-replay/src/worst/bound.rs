//! Upper bounds: no schedule gets more requests through.

use tollgate_core::{Algorithm, Cost, LeakyMode, Micros, OnStoreError, Policy, Refill};
use tollgate_engine::AppliedLimit;

use super::{Kind, Threat};

/// Returns the most requests that pass within any span with this length, both end points included. `None`
/// means that there is no bound.
///
/// Each request counts under all its kind's policies. So a policy that all kinds share bounds their
/// sum, and each policy bounds its own kind.
pub(super) fn bound(kinds: &[Kind], span: Micros, threat: &Threat) -> Option<u64> {
    let of = |kind: &Kind, applied: &AppliedLimit, cost| {
        policy_bound(kind.limits.policy(applied), span, cost, threat)
    };
    let separate =
        kinds.iter().map(|kind| kind.counted().filter_map(|it| of(kind, it, it.cost)).min());
    let separate = separate.sum::<Option<u64>>();
    let common = kinds.first().into_iter().flat_map(|first| {
        first.counted().filter_map(|applied| {
            let policy = first.limits.policy(applied);
            let cost = kinds.iter().map(|kind| {
                let same = |it: &&AppliedLimit| {
                    it.key == applied.key && kind.limits.policy(it).name() == policy.name()
                };
                kind.counted().find(same).map(|it| it.cost)
            });
            let cost = cost.collect::<Option<Vec<_>>>()?.into_iter().min()?;
            of(first, applied, cost)
        })
    });
    common.chain(separate).min()
}

/// Returns the most requests that a policy lets pass if something may happen to the store.
fn policy_bound(policy: &Policy, span: Micros, cost: Cost, threat: &Threat) -> Option<u64> {
    let replicas = u64::from(threat.fleet.replicas.get());
    let one = passes(policy, span, cost);
    if !threat.fleet.is_shared {
        return Some(one.saturating_mul(replicas));
    }
    let mut total = one;
    if threat.failover {
        // A copy without any charge has an unused quota. Requests that queued before leave besides.
        let unused = policy.capacity() / cost.get().max(1) + u64::from(policy.queues());
        total = total.saturating_add(unused.min(if policy.queues() { one } else { u64::MAX }));
    }
    if let Some(time) = threat.store_lost {
        total =
            total.saturating_add(match policy.on_store_error().unwrap_or(OnStoreError::Local) {
                OnStoreError::Open => return None,
                OnStoreError::Closed => 0,
                OnStoreError::Local => {
                    let divided = (1, threat.fleet.replicas.get());
                    let (part, whole) = threat.fleet.local_share.unwrap_or(divided);
                    let local = policy.share(part, whole).unwrap_or_else(|_| policy.clone());
                    passes(&local, span.min(time), cost).saturating_mul(replicas)
                }
            });
    }
    Some(total)
}

/// Returns the most requests of this cost that pass under a policy alone.
///
/// | algorithm | why no more pass |
/// |---|---|
/// | fixed window | the span meets so many windows, and each allows the limit |
/// | sliding window log | the span is so many windows long, and each allows the limit |
/// | sliding window counter | after a window with a charge, the next allows at most the limit less 1 |
/// | token bucket, leaky meter | a full bucket, and the units that are refilled in the span |
/// | leaky queue, or a queue in the store | a request leaves after the work before it has drained |
fn passes(policy: &Policy, span: Micros, cost: Cost) -> u64 {
    let quota = policy.quota();
    let (limit, capacity) = (quota.limit(), policy.capacity());
    let (span, window) = (span.get(), policy.window().get().max(1));
    let cost = cost.get().max(1);
    let times = |amount: u64, times: u64| amount.saturating_mul(times);
    // The windows that a span meets if it starts at a window's end.
    let windows = |window: u64| span.div_ceil(window) + 1;
    let refilled = u128::from(limit) * u128::from(span) / u128::from(window);
    let refilled = u64::try_from(refilled).unwrap_or(u64::MAX);
    let units = match policy.algorithm() {
        // A month has at least 28 of 31 days, and a day at least 23 of 24 hours.
        Some(Algorithm::FixedWindowCounter) if quota.calendar().is_some() => {
            times(limit, windows(window - window / 8))
        }
        Some(Algorithm::FixedWindowCounter) => times(limit, windows(window)),
        Some(Algorithm::SlidingWindowLog { .. }) => times(limit, span / window + 1),
        Some(Algorithm::SlidingWindowCounter) if limit == 1 => windows(window).div_ceil(2),
        Some(Algorithm::SlidingWindowCounter) => times(limit - 1, windows(window)) + 1,
        Some(Algorithm::TokenBucket { refill: Refill::Greedy })
        | Some(Algorithm::LeakyBucket { mode: LeakyMode::Meter }) => {
            capacity.saturating_add(refilled)
        }
        // The timer starts with a charge: at the start of the span, or before it.
        Some(Algorithm::TokenBucket { refill: Refill::Interval }) => {
            let refill = limit.min(capacity);
            let fresh = capacity.saturating_add(times(refill, span / window));
            let before = (capacity - 1).saturating_add(times(refill, span.div_ceil(window)));
            fresh.max(before)
        }
        Some(Algorithm::LeakyBucket { mode: LeakyMode::Queue { .. } }) => {
            return refilled / cost + 1;
        }
        _ => return u64::MAX,
    };
    units / cost
}
