//! Tenants: clients, or groups of clients, with their own numbers.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use tollgate::policy::{Algorithm, PolicyError};
use tollgate::tier::{OnLookupFailure, OnUnknownClient};
use tollgate::{Policy, Quota};
use tollgate_engine::Methods;

use super::{ChargePlan, LimitPlan, PathMatch, RedisPlan, RouteLimits, Secret, Whose};

#[derive(Clone, Debug)]
pub struct TenantsPlan {
    /// The owners of the numbers: clients, or a level's groups.
    pub of: Whose,
    pub source: TenantSource,
    pub ttl: Duration,
    pub timeout: Duration,
    pub capacity: usize,
    pub on_failure: OnLookupFailure,
    pub on_unknown: OnUnknownClient,
    pub rules: TenantRules,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TenantSource {
    File(PathBuf),
    Http {
        /// Contains `{tenant}`.
        url: String,
        token: Option<Secret>,
    },
    Redis {
        server: RedisPlan,
        /// A hash with a field for each tenant, or with `{tenant}` a string for each tenant.
        key: String,
    },
}

/// "tenants.yaml", without secrets.
impl fmt::Display for TenantSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(file) => write!(f, "{}", file.display()),
            Self::Http { url, .. } => f.write_str(url.split('?').next().unwrap_or_default()),
            Self::Redis { key, .. } => write!(f, "`{key}` in Redis"),
        }
    }
}

/// A tenant's numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TenantQuota {
    /// The quotas that apply at the same time; at least one.
    Quotas(Vec<Quota>),
    Tier(usize),
    Unlimited,
}

/// The tenants in a file, by name.
pub type TenantTable = HashMap<Box<str>, TenantQuota>;

/// The requirements for a tenant's numbers.
#[derive(Clone, Debug)]
pub struct TenantRules {
    pub algorithm: Algorithm,
    /// The names of the tiers; `None` for groups, which have no tiers.
    pub tiers: Option<Vec<String>>,
    /// The maximum number of quotas at the same time.
    pub most: usize,
    /// The quotas that a tenant's numbers replace.
    pub bases: Vec<TenantBase>,
}

/// A quota that a tenant's numbers replace.
#[derive(Clone, Debug)]
pub struct TenantBase {
    pub policy: Policy,
    /// 0, or the number of an additional quota.
    pub number: usize,
    pub share: Option<(u32, u32)>,
    /// The highest request cost.
    pub cost: u64,
}

impl TenantBase {
    /// The policy for a tenant with this quota. An api with a share may have an algorithm without a
    /// burst.
    pub fn policy_of(&self, quota: Quota) -> Result<Policy, PolicyError> {
        own_policy(&self.policy, self.share, quota)
    }
}

/// The policy for a tenant with this quota, of which the limit grants a share.
fn own_policy(
    base: &Policy,
    share: Option<(u32, u32)>,
    quota: Quota,
) -> Result<Policy, PolicyError> {
    let Some((part, of)) = share else { return base.with_quota(quota) };
    let is_bucket = base.algorithm().is_some_and(Algorithm::is_bucket);
    let quota = if is_bucket { quota } else { quota.without_burst() };
    base.with_quota(quota)?.share(part, of)
}

/// How a quota applies to a tenant with its own numbers.
#[derive(Clone, Debug)]
pub enum TenantTerms {
    Tier(usize),
    Own(Policy),
}

impl LimitPlan {
    /// How a charge applies to a tenant. `None` if it does not apply.
    pub fn policy_of(&self, charge: ChargePlan<'_>, numbers: &TenantQuota) -> Option<TenantTerms> {
        let ChargePlan::Quota(quota) = charge else { return None };
        let quotas = match numbers {
            TenantQuota::Unlimited => return None,
            TenantQuota::Tier(tier) => return Some(TenantTerms::Tier(*tier)),
            TenantQuota::Quotas(quotas) => quotas,
        };
        let own = quotas.get(self.number_of(quota)?)?;
        let share = self.tenants.and_then(|tenants| tenants.share);
        // The numbers were checked when they were read.
        own_policy(charge.any_policy()?, share, *own).ok().map(TenantTerms::Own)
    }

    /// A tenant's policy with these numbers. `None` if the charge does not apply.
    pub fn tenant_policy(&self, charge: ChargePlan<'_>, numbers: &TenantQuota) -> Option<Policy> {
        match self.policy_of(charge, numbers)? {
            TenantTerms::Own(policy) => Some(policy),
            TenantTerms::Tier(tier) => charge.policy_in(Some(tier)).cloned(),
        }
    }
}

impl TenantRules {
    /// The rules for the numbers of these tenants, given all routes' limits. `None` if no limit has
    /// a quota that they replace.
    pub(crate) fn of<'p>(
        tenants: usize,
        tiers: Option<Vec<String>>,
        routes: impl Iterator<Item = &'p RouteLimits>,
    ) -> Option<Self> {
        let (mut bases, mut most) = (Vec::<TenantBase>::new(), usize::MAX);
        let (methods, path) = (Methods::default(), PathMatch::any());
        let limits = routes.flat_map(|limits| {
            let everywhere = limits.everywhere().map(|limit| (limit, &methods, &path));
            let apis = limits.apis.iter();
            let of_apis = apis.flat_map(|api| api.limits().map(|it| (it, &api.methods, &api.path)));
            everywhere.chain(of_apis)
        });
        for (limit, methods, path) in limits {
            let Some(share) = limit.tenants.filter(|it| it.tenants == tenants) else { continue };
            most = most.min(limit.quotas.len());
            let cost = limit.costs.highest(methods, path).0.get();
            for (number, quota) in limit.quotas.iter().enumerate() {
                let Some(policy) = quota.policies().next().cloned() else { continue };
                let base = TenantBase { policy, number, share: share.share, cost };
                match bases.iter_mut().find(|other| other.is_like(&base)) {
                    Some(other) => other.cost = other.cost.max(cost),
                    None => bases.push(base),
                }
            }
        }
        let algorithm = bases.first()?.policy.algorithm()?;
        Some(Self { algorithm, tiers, most, bases })
    }
}

impl TenantBase {
    /// Whether the same numbers fit both.
    fn is_like(&self, other: &Self) -> bool {
        let settings = |base: &Self| {
            let policy = &base.policy;
            (base.number, base.share, policy.algorithm(), policy.lease(), policy.max_queue_time())
        };
        settings(self) == settings(other)
    }
}
