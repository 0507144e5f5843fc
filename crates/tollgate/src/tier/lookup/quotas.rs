//! A limit's policies for clients that have their own quotas.

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tollgate_core::{Cost, Key, Policy, PolicyError, Quota};
use tollgate_engine::{OwnPolicy, SubjectKind, TierIndex};

use super::client_quota::{ClientQuota, QuotaOrTier};
use super::entry::{Answer, Known, Look};
use super::limit_quotas::LimitQuotas;
use super::source::{OnLookupFailure, OnUnknownClient};
use crate::RequestHead;
use crate::grpc::GrpcServices;
use crate::key::{KeyError, KeySource, Subject};
use crate::tier::{Tier, UnlimitedTiers};

/// Builds a limit's policies from look-up results.
pub(crate) struct OwnQuotas {
    quotas: LimitQuotas,
    /// Under which its terms are stored in a result.
    number: u64,
    policy: Policy,
    in_tiers: Box<[(Tier, Policy)]>,
    unlimited: UnlimitedTiers,
    /// Clients with equal quotas share a policy.
    policies: Mutex<Policies>,
    prepare: Box<Prepare>,
}

type Prepare = dyn Fn(&Policy) -> Box<dyn Any + Send + Sync> + Send + Sync;

/// How a limit applies to a client.
#[derive(Clone, Debug)]
pub(crate) enum Terms {
    Tier(TierIndex),
    Own(Arc<OwnPolicy>),
    /// The limit does not apply.
    Unlimited,
    Refused(Refusal),
}

/// Why a limit refuses a client.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refusal {
    Unknown,
    LookUpFailed,
}

#[derive(Default)]
struct Policies {
    by_quota: HashMap<Quota, Weak<OwnPolicy>>,
    /// The count at which unused policies are removed.
    prune_at: usize,
}

impl OwnQuotas {
    /// `in_tiers` and `unlimited` describe the limit's tiers, ordered by number. `prepare` makes the
    /// values that responses to a client need.
    pub(crate) fn new(
        quotas: LimitQuotas,
        policy: Policy,
        in_tiers: Box<[(Tier, Policy)]>,
        unlimited: UnlimitedTiers,
        prepare: impl Fn(&Policy) -> Box<dyn Any + Send + Sync> + Send + Sync + 'static,
    ) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        quotas.lookup.source.limits.fetch_add(1, Ordering::Relaxed);
        Self {
            quotas,
            number: COUNT.fetch_add(1, Ordering::Relaxed),
            policy,
            in_tiers,
            unlimited,
            policies: Mutex::default(),
            prepare: Box::new(prepare),
        }
    }

    /// Looks up the quota for a request. Returns `None` if the request has no owner.
    pub(crate) fn look(
        &self,
        key: &dyn KeySource,
        subject: &Subject,
        head: &RequestHead<'_>,
    ) -> Result<Option<Look>, KeyError> {
        let lookup = &self.quotas.lookup;
        let Some(owner) = &self.quotas.owner else {
            return Ok(Some(lookup.look(subject, || key.name(head))));
        };
        let found = owner.subject(head)?;
        if found.as_ref() == Some(subject) {
            self.quotas.owner_is_key.store(true, Ordering::Relaxed);
        }
        Ok(found.map(|subject| lookup.look(&subject, || owner.name(head))))
    }

    /// Looks up a key's quota. The key is the client's name.
    pub(crate) fn look_by_key(&self, key: &Key, kind: SubjectKind) -> Look {
        let name = || String::from_utf8(key.as_bytes().to_vec()).ok();
        self.quotas.lookup.look(&Subject { kind, key: key.clone() }, name)
    }

    /// Returns the answer for a key whose look-up is late.
    pub(crate) fn late(&self, key: &Key) -> Answer {
        let known = self.quotas.lookup.last(key).and_then(|last| last.known);
        Answer { known, has_failed: true }
    }

    /// Returns how the limit applies to a client in this tier. If the look-up has failed, this grants
    /// no more than the last known quota.
    pub(crate) fn terms(&self, answer: &Answer, tier: TierIndex) -> Terms {
        let limits_own = || self.in_tier(tier);
        let in_force = || match answer.known.as_deref().map(|known| self.of_known(known)) {
            None | Some(Terms::Tier(TierIndex::NONE)) => limits_own(),
            Some(terms) => terms,
        };
        match (answer.has_failed, self.quotas.lookup.source.on_failure) {
            (false, _) | (true, OnLookupFailure::LastKnown) => in_force(),
            (true, OnLookupFailure::Refuse) => Terms::Refused(Refusal::LookUpFailed),
            (true, OnLookupFailure::LimitQuota) => match in_force() {
                terms @ Terms::Refused(_) => terms,
                Terms::Unlimited => limits_own(),
                terms if self.unlimited.contain(tier) => terms,
                terms if !is_within(self.policy_in(tier), self.policy_of(&terms)) => terms,
                _ => limits_own(),
            },
        }
    }

    fn in_tier(&self, tier: TierIndex) -> Terms {
        if self.unlimited.contain(tier) { Terms::Unlimited } else { Terms::Tier(tier) }
    }

    /// Returns the last known quota or tier of a key, without a look-up.
    pub(crate) fn last_known(&self, key: &Key, tier: TierIndex) -> Option<Terms> {
        // With another owner, the key is not the name of a quota.
        let answer = self.quotas.lookup.last(key).filter(|_| self.quotas.owner.is_none())?;
        let terms = self.terms(&answer, tier);
        matches!(terms, Terms::Own(_) | Terms::Tier(_)).then_some(terms)
    }

    /// Returns the client's cost, if the quota that applies to it sets costs.
    pub(crate) fn cost(
        &self,
        answer: &Answer,
        head: &RequestHead<'_>,
        grpc: &GrpcServices,
    ) -> Option<Cost> {
        let known = answer.known.as_ref()?;
        let on_failure = self.quotas.lookup.source.on_failure;
        let has_ended = answer.has_failed && on_failure != OnLookupFailure::LastKnown;
        if has_ended || known.is_unfit.load(Ordering::Relaxed) {
            return None;
        }
        let costs = known.quota.as_ref()?.costs.as_ref()?;
        (!self.policy.is_concurrency()).then(|| costs.among(head, grpc))
    }

    /// Returns the policy under these terms.
    fn policy_of<'a>(&'a self, terms: &'a Terms) -> &'a Policy {
        match terms {
            Terms::Own(own) => &own.policy,
            Terms::Tier(tier) => self.policy_in(*tier),
            Terms::Unlimited | Terms::Refused(_) => &self.policy,
        }
    }

    fn policy_in(&self, TierIndex(tier): TierIndex) -> &Policy {
        self.in_tiers.get(usize::from(tier)).map_or(&self.policy, |(_, policy)| policy)
    }

    fn of_known(&self, known: &Known) -> Terms {
        let mut built = known.terms.lock();
        if let Some((_, terms)) = built.iter().find(|(number, _)| *number == self.number) {
            return terms.clone();
        }
        let terms = self.build(known);
        // Limits that a reload has replaced leave their terms here.
        let limits = self.quotas.lookup.source.limits.load(Ordering::Relaxed);
        if built.len() >= limits.max(MAX_LIMITS) {
            built.clear();
        }
        built.push((self.number, terms.clone()));
        terms
    }

    #[cold]
    fn build(&self, known: &Known) -> Terms {
        self.terms_of(known.quota.as_ref()).unwrap_or_else(|error| {
            let source = &self.quotas.lookup.source;
            let policy = self.policy.name();
            source.unfit.report(|| {
                tracing::warn!(
                    target: "tollgate",
                    policy,
                    %error,
                    "a looked-up quota does not fit its policy",
                );
            });
            known.is_unfit.store(true, Ordering::Relaxed);
            let fit = |before: &Option<ClientQuota>| self.terms_of(before.as_ref()).ok();
            match (source.on_failure, known.before.iter().find_map(fit)) {
                (OnLookupFailure::Refuse, _) => Terms::Refused(Refusal::LookUpFailed),
                (_, Some(terms)) => terms,
                _ => Terms::Tier(TierIndex::NONE),
            }
        })
    }

    fn terms_of(&self, quota: Option<&ClientQuota>) -> Result<Terms, PolicyError> {
        Ok(match quota.map(|quota| quota.numbered(self.quotas.number)) {
            Some(QuotaOrTier::Quota(quota)) => Terms::Own(self.policy(quota)?),
            Some(QuotaOrTier::Tier(tier)) => {
                let number = self.in_tiers.iter().position(|(name, _)| *name == tier);
                let number = number.and_then(|number| u16::try_from(number).ok());
                number
                    .map_or(Terms::Tier(TierIndex::NONE), |number| self.in_tier(TierIndex(number)))
            }
            Some(QuotaOrTier::Unlimited) => Terms::Unlimited,
            None => match self.quotas.lookup.source.on_unknown {
                OnUnknownClient::LimitQuota => Terms::Tier(TierIndex::NONE),
                OnUnknownClient::Refuse => Terms::Refused(Refusal::Unknown),
            },
        })
    }

    fn policy(&self, quota: Quota) -> Result<Arc<OwnPolicy>, PolicyError> {
        let mut policies = self.policies.lock();
        let Policies { by_quota, prune_at } = &mut *policies;
        if let Some(own) = by_quota.get(&quota).and_then(Weak::upgrade) {
            return Ok(own);
        }
        let policy = self.quotas.policy(&self.policy, quota)?;
        let prepared = (self.prepare)(&policy);
        let own = Arc::new(OwnPolicy { prepared, policy, blocked_until: None });
        if by_quota.len() >= *prune_at {
            by_quota.retain(|_, own| own.strong_count() > 0);
            *prune_at = (2 * by_quota.len()).max(64);
        }
        by_quota.insert(quota, Arc::downgrade(&own));
        Ok(own)
    }
}

impl Drop for OwnQuotas {
    fn drop(&mut self) {
        self.quotas.lookup.source.limits.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether a policy grants no more than the other: neither per time, nor together.
fn is_within(policy: &Policy, other: &Policy) -> bool {
    let rate = |policy: &Policy, other: &Policy| {
        u128::from(policy.quota().limit()) * u128::from(other.window().get())
    };
    rate(policy, other) <= rate(other, policy) && policy.capacity() <= other.capacity()
}

/// So that a reload, during which the limits of both versions are in use, seldom exceeds it.
const MAX_LIMITS: usize = 16;
