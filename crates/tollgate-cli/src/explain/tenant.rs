//! A tenant's own numbers.

use std::fmt::Write as _;

use tollgate::Policy;
use tollgate::tier::OnUnknownClient;
use tollgate_config::plan::{LimitPlan, Plan, TenantNumbers, TenantQuota};
use tollgate_gateway::serve::Tenant;

/// The policies that apply to a client.
pub(super) fn policies(
    limit: &LimitPlan,
    tier: Option<usize>,
    tenant: Option<&Tenant<'_>>,
) -> Vec<Policy> {
    let Some(Tenant { numbers: TenantNumbers::Known(quota), .. }) = tenant else {
        return limit.quotas_in(tier).cloned().collect();
    };
    limit.charges().filter_map(|charge| limit.tenant_policy(charge, quota)).collect()
}

/// Says where a limit's numbers come from.
pub(super) fn write_tenant(
    out: &mut String,
    plan: &Plan,
    Tenant { name, source, numbers }: &Tenant<'_>,
) {
    let name = name.escape_debug();
    let _ = match numbers {
        TenantNumbers::Known(TenantQuota::Tier(tier)) => {
            let tier = plan.tiers.get(*tier).map_or("", String::as_str);
            writeln!(out, "    the tenant `{name}` is in tier {tier}, from {source}")
        }
        TenantNumbers::Known(TenantQuota::Unlimited) => {
            writeln!(out, "    the tenant `{name}` is unlimited, from {source}")
        }
        TenantNumbers::Known(TenantQuota::Quotas(_)) => {
            writeln!(out, "    the tenant `{name}` has its own numbers, from {source}")
        }
        TenantNumbers::Unknown(OnUnknownClient::Refuse) => {
            writeln!(out, "    the tenant `{name}` is not in {source}, so its requests get 403")
        }
        TenantNumbers::Unknown(_) => {
            writeln!(out, "    the tenant `{name}` is not in {source}, so these numbers apply")
        }
        TenantNumbers::Configured => writeln!(
            out,
            "    the tenant `{name}` may have its own numbers in {source}, which is not asked here"
        ),
    };
}
