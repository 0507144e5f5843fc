//! Decides and charges a request's descriptors.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use tollgate::key::Key;
use tollgate::policy::Cost;
use tollgate::store::{
    Charge, Charged, Decision, Micros, Outcome, Receipt, ReceiptId, Settlement, StoreError,
    Timestamp, Verdict,
};
use tollgate::{Policy, Store, StoreExt as _};
use tollgate_config::plan::{Allowed, Rule, Unit};

/// A descriptor with its rule and key.
pub(super) struct Met<'a> {
    pub(super) rule: Cow<'a, Rule>,
    pub(super) key: Key,
    pub(super) hits: Hits,
    /// Whether the descriptor is in shadow mode.
    pub(super) shadow: bool,
}

/// A descriptor's effect on its quota.
#[derive(Clone, Copy)]
pub(super) enum Hits {
    /// The request is charged if the quota has these units, and otherwise denied.
    Request(Cost),
    /// The units that Envoy reports in the descriptor's own `hits_addend` when a stream is done
    /// (`apply_on_stream_done`). A denial could not undo the use, so the charge may exceed the
    /// limit. 0 only checks the quota.
    Report(Cost),
    /// The units that Envoy returns (`is_negative_hits`), followed by a check.
    Refund(Cost),
}

impl Hits {
    pub(super) fn new(request: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> Self {
        let own = descriptor.hits_addend.as_ref();
        let own = own.map(|hits| Cost::new(hits.value.min(MAX_HITS)));
        // A missing field reads as 0.
        let of_request = Cost::new(request.hits_addend.max(1).into());
        match own {
            _ if descriptor.is_negative_hits => Self::Refund(own.unwrap_or(of_request)),
            Some(own) => Self::Report(own),
            None => Self::Request(of_request),
        }
    }
}

/// The decision about a descriptor.
pub(super) struct Decided {
    pub(super) is_over: bool,
    pub(super) remaining: u64,
    /// The seconds until the quota resets.
    pub(super) reset: u64,
    /// How many seconds until the same request can pass; `None` is never.
    pub(super) wait: Option<u64>,
}

impl Decided {
    fn new(allowed: &Allowed, decision: &Decision, now: Timestamp) -> Self {
        Self {
            is_over: decision.denies(),
            remaining: decision.remaining,
            reset: allowed.reset(decision, now),
            wait: decision.retry_after().map(|wait| wait.get().div_ceil(1_000_000)),
        }
    }
}

/// A descriptor that is charged like a request.
struct Requested<'a> {
    index: usize,
    met: &'a Met<'a>,
    allowed: &'a Allowed,
    cost: Cost,
}

pub(super) async fn decide<St: Store>(
    store: &St,
    met: &[Option<Met<'_>>],
) -> Result<Vec<Option<Decided>>, StoreError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = Timestamp::from_micros(Micros::from(now).get());
    // A limit of 0 denies without a call to the store.
    let closed = |allowed: &Allowed| Decided {
        is_over: true,
        remaining: 0,
        reset: allowed.until_reset(now),
        wait: None,
    };
    let is_closed = |(_, allowed): &(_, &Allowed)| allowed.requests == 0;
    let mut decided: Vec<_> = limited(met)
        .map(|limited| limited.filter(is_closed).map(|(_, allowed)| closed(allowed)))
        .collect();
    correct(store, met).await?;
    // Checks are decided first, because a denied request must not be charged.
    let policies = policies(met);
    decide_reports(store, met, &policies, &mut decided).await?;

    let requests: Vec<_> = limited(met)
        .enumerate()
        .filter_map(|(index, limited)| {
            let (met, allowed) = limited?;
            let Hits::Request(cost) = met.hits else { return None };
            (allowed.requests > 0).then_some(Requested { index, met, allowed, cost })
        })
        .collect();
    if requests.is_empty() {
        return Ok(decided);
    }
    let has_quotas = quotas(met).nth(1).is_some();
    let charges = requests.iter().map(|Requested { met, allowed, cost, .. }| {
        let charge = Charge::new(policies[&(allowed.unit, &met.key)], &met.key, *cost);
        let watches = met.shadow || (met.rule.quota && has_quotas);
        if watches { charge.shadow() } else { charge }
    });
    let charges: Vec<_> = charges.collect();
    // Whether all rules in quota mode are over their limits is known only after they are decided,
    // and a denied request must not be charged. So the store first decides without charges.
    let is_denied = |decided: &[_]| denials(met, decided).next().is_some();
    if has_quotas || is_denied(&decided) {
        let dry: Vec<_> = charges.iter().map(|charge| charge.dry()).collect();
        decide_requests(store, &requests, &dry, &mut decided).await?;
        if is_denied(&decided) {
            return Ok(decided);
        }
    }
    decide_requests(store, &requests, &charges, &mut decided).await?;
    Ok(decided)
}

/// Makes the charges that are no decision: refunds, and reports to buckets.
///
/// Envoy does not identify the charge that it returns, so the receipt is for a charge now. A
/// counter then takes the units from the current window, and a bucket refills them.
async fn correct<St: Store>(store: &St, met: &[Option<Met<'_>>]) -> Result<(), StoreError> {
    for (met, allowed) in limited(met).flatten() {
        let (cost, actual) = match (met.hits, &allowed.counted) {
            (Hits::Refund(units), Some(_)) => (units, Cost::ZERO),
            // A bucket owes at most twice its capacity.
            (Hits::Refund(units), None) => {
                (units.min(Cost::new(2 * u64::from(allowed.requests))), Cost::ZERO)
            }
            (Hits::Report(units), None) => (Cost::ZERO, units),
            _ => continue,
        };
        if cost == actual || allowed.requests == 0 {
            continue;
        }
        let verdict = store.peek(&allowed.policy, &met.key).await?;
        let charged_at = verdict.decided_at();
        // The key is held under the policy of its last charge: a request's, or a report's.
        for policy in [Some(&allowed.policy), allowed.counted.as_ref()].into_iter().flatten() {
            let receipt = Receipt {
                id: next_id(&verdict),
                source: verdict.source(),
                policy: policy.clone(),
                key: met.key.clone(),
                charged: Charged::new(policy, cost, charged_at),
            };
            let settled = store.settle(&receipt, actual).await?;
            if settled != (Settlement::Returned { units: 0 }) {
                break;
            }
        }
    }
    Ok(())
}

/// Charges the reports, and decides the checks.
async fn decide_reports<St: Store>(
    store: &St,
    met: &[Option<Met<'_>>],
    policies: &Policies<'_>,
    decided: &mut [Option<Decided>],
) -> Result<(), StoreError> {
    let reports: Vec<_> = limited(met)
        .enumerate()
        .filter_map(|(index, limited)| {
            let (met, allowed) = limited.filter(|(_, allowed)| allowed.requests > 0)?;
            let cost = match met.hits {
                Hits::Request(_) => return None,
                Hits::Report(cost) => cost,
                Hits::Refund(_) => Cost::ZERO,
            };
            let charge = match &allowed.counted {
                Some(counted) => Charge::new(counted, &met.key, cost),
                None => {
                    let policy = policies[&(allowed.unit, &met.key)];
                    Charge::new(policy, &met.key, Cost::ONE).dry()
                }
            };
            Some((index, allowed, charge))
        })
        .collect();
    if reports.is_empty() {
        return Ok(());
    }
    let charges: Vec<_> = reports.iter().map(|(_, _, charge)| *charge).collect();
    let verdict = store.decide(&charges).await?;
    for ((index, allowed, _), decision) in reports.iter().zip(verdict.decisions()) {
        let mut of_report = Decided::new(allowed, decision, verdict.decided_at());
        if allowed.counted.is_some() {
            let (used, limit) = allowed.counted_by(decision);
            of_report.is_over |= used > limit;
            of_report.remaining = limit.saturating_sub(used);
            of_report.wait = Some(of_report.reset);
        }
        decided[*index] = Some(of_report);
    }
    Ok(())
}

async fn decide_requests<St: Store>(
    store: &St,
    requests: &[Requested<'_>],
    charges: &[Charge<'_>],
    decided: &mut [Option<Decided>],
) -> Result<(), StoreError> {
    let verdict = store.decide(charges).await?;
    for (request, decision) in requests.iter().zip(verdict.decisions()) {
        // The store has remembered another descriptor's denial and did not check this one.
        if decision.outcome == Outcome::Undecided {
            continue;
        }
        let Requested { index, allowed, .. } = *request;
        decided[index] = Some(Decided::new(allowed, decision, verdict.decided_at()));
    }
    Ok(())
}

type Policies<'a> = HashMap<(Unit, &'a Key), &'a Policy>;

/// A store call must not contain different quotas for a key, so the smallest limit applies.
fn policies<'a>(met: &'a [Option<Met<'a>>]) -> Policies<'a> {
    let mut policies = Policies::new();
    for (met, allowed) in limited(met).flatten().filter(|(_, allowed)| allowed.requests > 0) {
        let policy = policies.entry((allowed.unit, &met.key)).or_insert(&allowed.policy);
        if allowed.policy.capacity() < policy.capacity() {
            *policy = &allowed.policy;
        }
    }
    policies
}

fn next_id(verdict: &Verdict) -> ReceiptId {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let process = *PROCESS.get_or_init(|| RandomState::new().hash_one("rate limit service"));
    ReceiptId::new(process, verdict.decided_at(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// For each descriptor its limit, if it has one.
pub(super) fn limited<'a>(
    met: &'a [Option<Met<'a>>],
) -> impl Iterator<Item = Option<(&'a Met<'a>, &'a Allowed)>> {
    met.iter().map(|met| met.as_ref().and_then(|met| Some((met, met.rule.allowed.as_ref()?))))
}

/// The descriptors in `quota_mode`, which deny a request only together.
fn quotas<'a>(met: &'a [Option<Met<'a>>]) -> impl Iterator<Item = usize> {
    let limited = limited(met).enumerate();
    limited.filter_map(|(index, limited)| {
        let (met, _) = limited?;
        (met.rule.quota && !met.shadow).then_some(index)
    })
}

/// The descriptors that deny the request.
pub(super) fn denials<'a>(
    met: &'a [Option<Met<'a>>],
    decided: &'a [Option<Decided>],
) -> impl Iterator<Item = usize> {
    let is_over = |index: &usize| decided[*index].as_ref().is_some_and(|it| it.is_over);
    let all_quotas = quotas(met).all(|index| is_over(&index));
    let limited = limited(met).enumerate();
    limited.filter_map(move |(index, limited)| {
        let (met, _) = limited?;
        let denies = is_over(&index) && !met.shadow && (!met.rule.quota || all_quotas);
        denies.then_some(index)
    })
}

/// The maximum hits in a report. It exceeds every limit, and all reports in a request together
/// still fit into `Allowed::counted`.
const MAX_HITS: u64 = u32::MAX as u64 + 1;
