//! The limits that apply to a request. `serve`, `replay` and `explain` all decide here, so they
//! agree.

use std::sync::{Arc, LazyLock};

use http::Method;
use tollgate::access::Listed;
use tollgate::key::{Key, KeyError, Subject, SubjectKind};
use tollgate::limit::OnMissingKey;
use tollgate::policy::Cost;
use tollgate::tier::OnUnknownClient;
use tollgate_engine::{AppliedLimit, Charges, Limit, Limits, OwnPolicy, TierIndex};

use super::{
    ApiPlan, ChargePlan, LimitPlan, Plan, Preflights, RouteLimits, TenantQuota, TenantTerms, Whose,
};
use tollgate_proxy::path::{PathFault, RequestPath};

/// The limits that apply to a request on its route.
#[derive(Clone, Copy, Debug)]
pub enum Meeting<'p> {
    /// The client is on the blocklist, so the request gets 403.
    Blocked,
    /// No limit applies.
    Unlimited(Unlimited),
    /// A CORS preflight, to which only this limit applies.
    Preflight(&'p LimitPlan),
    /// The route's `global` and `client`, and the api with this index.
    Limits { api: Option<usize> },
}

/// Why no limit applies to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unlimited {
    /// The client is on the allowlist.
    Allowlist,
    /// The path is exempt.
    Exempt,
    /// Neither the route nor the api has a limit.
    NoLimit,
    /// CORS preflights are unlimited.
    Preflight,
}

/// A limit needs a client, but the request does not name exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoClient {
    Missing,
    /// The request names its client more than once.
    Ambiguous,
    /// The client's tenant is unknown, and unknown tenants are denied.
    UnknownTenant,
}

/// The contents of a tenant's source.
#[derive(Clone, Copy, Debug)]
pub enum TenantNumbers<'p> {
    /// The client is not a tenant, or commands do not query its source.
    Configured,
    Unknown(OnUnknownClient),
    Known(&'p TenantQuota),
}

impl Plan {
    /// Finds the limits for a path. Blocklist and allowlist also apply to exempt paths,
    /// so the caller looks up the client in both lists first.
    ///
    /// # Errors
    /// Two readings of the path match different apis.
    pub fn meets(
        &self,
        limits: &RouteLimits,
        listed: Listed,
        method: &Method,
        path: &RequestPath<'_>,
        is_preflight: bool,
    ) -> Result<Meeting<'_>, PathFault> {
        match listed {
            Listed::Blocked => return Ok(Meeting::Blocked),
            Listed::Allowed => return Ok(Meeting::Unlimited(Unlimited::Allowlist)),
            _ if self.is_exempt(path) => return Ok(Meeting::Unlimited(Unlimited::Exempt)),
            _ => {}
        }
        let api = limits.api(method, &path.normal)?;
        if api.is_none() && limits.everywhere().next().is_none() {
            return Ok(Meeting::Unlimited(Unlimited::NoLimit));
        }
        Ok(match &self.preflights {
            Preflights::Limited(limit) if is_preflight => Meeting::Preflight(limit),
            Preflights::Unlimited if is_preflight => Meeting::Unlimited(Unlimited::Preflight),
            _ => Meeting::Limits { api },
        })
    }

    /// The key under which a limit counts a request of this subject: its client, or its group on
    /// the limit's level. `None` if the limit does not apply because the request has no subject. A
    /// subject that could not be found for another reason than ambiguity counts as missing.
    ///
    /// # Errors
    /// The request is rejected, because it has no client.
    pub fn key<'k>(
        &self,
        limit: &LimitPlan,
        subject: Result<Option<&'k Subject>, &KeyError>,
    ) -> Result<Option<&'k Key>, NoClient> {
        static SHARED: LazyLock<Key> = LazyLock::new(OnMissingKey::shared_key);
        let denied = |reason| if limit.enforces() { Err(reason) } else { Ok(None) };
        match (limit.whose, subject, self.on_missing_key) {
            (Whose::Everybody, ..) => Ok(Some(const { &Key::GLOBAL })),
            (_, Ok(Some(subject)), _) => Ok(Some(&subject.key)),
            (_, Err(KeyError::Ambiguous), _) => denied(NoClient::Ambiguous),
            (Whose::Group(_), ..) => Ok(None),
            (Whose::Client, _, OnMissingKey::Share) => Ok(Some(&SHARED)),
            (Whose::Client, _, OnMissingKey::Deny) => denied(NoClient::Missing),
            (Whose::Client, ..) => Ok(None),
        }
    }
}

impl RouteLimits {
    /// The charges of all limits for requests that match this api, numbered.
    pub fn charges(
        &self,
        api: Option<usize>,
    ) -> impl Iterator<Item = (u8, &LimitPlan, ChargePlan<'_>)> {
        let api = api.and_then(|api| self.apis.get(api));
        let limits = self.everywhere().chain(api.into_iter().flat_map(ApiPlan::limits));
        let charges = limits.flat_map(|limit| limit.charges().map(move |charge| (limit, charge)));
        let charges = charges.filter(|(_, charge)| charge.any_policy().is_some());
        #[expect(clippy::cast_possible_truncation, reason = "a layer has at most 64 limits")]
        charges.enumerate().map(|(number, (limit, charge))| (number as u8, limit, charge))
    }

    /// What the engine needs of these limits, given the number of tiers.
    pub fn rules(&self, api: Option<usize>, tiers: usize) -> Limits {
        let rules = self.charges(api).filter_map(|(_, limit, charge)| {
            let in_tier = |tier| charge.policy_in(Some(tier)).or_else(|| charge.any_policy());
            let rule = Limit::new(charge.any_policy()?.clone()).mode(limit.mode_of(charge));
            let in_tiers = (0..tiers).filter_map(in_tier).cloned().collect();
            Some(Limit { in_tiers, ..rule })
        });
        Limits::new(rules)
    }
}

impl Plan {
    /// A request's charges under its limits, if `cost` returns its cost under each. `subject`
    /// returns the request's client or group.
    ///
    /// # Errors
    /// The request is rejected, because it has no client.
    #[expect(clippy::too_many_arguments, reason = "each is a part of the same request")]
    pub fn charges<'s, 't>(
        &self,
        limits: &RouteLimits,
        api: Option<usize>,
        rules: &Limits,
        subject: impl Fn(Whose) -> Result<Option<&'s Subject>, &'s KeyError>,
        tier: Option<usize>,
        tenant: impl Fn(&LimitPlan) -> TenantNumbers<'t>,
        mut cost: impl FnMut(&LimitPlan) -> Option<Cost>,
    ) -> Result<Charges, NoClient> {
        let mut charges = Charges::default();
        // Internal iteration, because `next` of these nested iterators takes 500 instructions.
        limits.charges(api).try_for_each(|(number, limit, charge)| {
            let Some(cost) = cost(limit) else { return Ok(()) };
            let subject = subject(limit.whose);
            let Some(key) = self.key(limit, subject)? else { return Ok(()) };
            let numbers = match (charge, limit.tenants) {
                (ChargePlan::Quota(_), Some(_)) => tenant(limit),
                _ => TenantNumbers::Configured,
            };
            let Some((tier, own)) = terms(limit, charge, tier, numbers)? else { return Ok(()) };
            let cost = if let ChargePlan::Quota(_) = charge { cost } else { Cost::ONE };
            let kind = match (limit.whose, subject) {
                (Whose::Everybody, _) => SubjectKind::Global,
                (_, Ok(Some(subject))) => subject.kind,
                _ => SubjectKind::Other,
            };
            let mut applied = AppliedLimit::new(number, kind, key.clone(), cost);
            let index = tier.and_then(|tier| u16::try_from(tier).ok());
            applied.tier = index.map_or_else(TierIndex::default, TierIndex);
            applied.own = own;
            charges.push(applied, rules);
            Ok(())
        })?;
        Ok(charges)
    }
}

/// The tier with which a charge applies to a client, and its own policy, which overrides the tier.
type Terms = (Option<usize>, Option<Arc<OwnPolicy>>);

/// How a charge applies to a tenant, as in the layer. `None` if it does not apply.
fn terms(
    limit: &LimitPlan,
    charge: ChargePlan<'_>,
    tier: Option<usize>,
    numbers: TenantNumbers<'_>,
) -> Result<Option<Terms>, NoClient> {
    let in_tier = |tier| Ok(charge.policy_in(tier).map(|_| (tier, None)));
    match numbers {
        TenantNumbers::Unknown(OnUnknownClient::Refuse) if limit.enforces() => {
            Err(NoClient::UnknownTenant)
        }
        TenantNumbers::Unknown(OnUnknownClient::Refuse) => Ok(None),
        TenantNumbers::Configured | TenantNumbers::Unknown(_) => in_tier(tier),
        TenantNumbers::Known(quota) => match limit.policy_of(charge, quota) {
            None => Ok(None),
            Some(TenantTerms::Tier(tier)) => in_tier(Some(tier)),
            Some(TenantTerms::Own(policy)) => {
                let own = OwnPolicy { policy, prepared: Box::new(()), blocked_until: None };
                Ok(Some((tier, Some(Arc::new(own)))))
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Source, read};

    #[test]
    fn lists_precede_exemptions() {
        let yaml = "rateLimiter:
  target: http://localhost
  exempt: [/healthz, /login]
  apis:
    - {identifier: login, path: /login, limit: 1, windowSeconds: 60}
    - {identifier: search, path: /search, limit: 1, windowSeconds: 60}
";
        let plan = read(&Source::new("test", yaml), &|_| None).plan.unwrap();
        let meets = |listed, path, is_preflight| {
            let limits = &plan.routes[0].limits;
            let path = plan.paths.read(path).unwrap();
            match plan.meets(limits, listed, &Method::OPTIONS, &path, is_preflight).unwrap() {
                Meeting::Blocked => "blocked".to_owned(),
                Meeting::Unlimited(why) => format!("{why:?}"),
                Meeting::Preflight(limit) => limit.name.clone(),
                Meeting::Limits { api } => format!("{api:?}"),
            }
        };
        for (listed, path, is_preflight, expected) in [
            (Listed::Blocked, "/healthz", true, "blocked"),
            (Listed::Allowed, "/search", true, "Allowlist"),
            (Listed::Neither, "/login", false, "Exempt"),
            (Listed::Neither, "/search", false, "Some(1)"),
            (Listed::Neither, "/search", true, Preflights::NAME),
            // Preflights are only limited if other requests are limited.
            (Listed::Neither, "/", true, "NoLimit"),
        ] {
            assert_eq!(meets(listed, path, is_preflight), expected, "{path}");
        }
    }
}
