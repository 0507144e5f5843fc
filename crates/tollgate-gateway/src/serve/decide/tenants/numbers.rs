//! A tenant's numbers.

use arc_swap::ArcSwap;
use tollgate::key::{SubjectFormat, SubjectFormatter};
use tollgate::tier::{Client, ClientQuota, Tier};
use tollgate_config::files;
use tollgate_config::plan::{TenantQuota, TenantRules};

/// Reads a tenant's numbers from JSON. The error masks the tenant's name, because it is logged.
pub(super) fn read_one(
    client: &Client,
    json: &[u8],
    rules: &ArcSwap<TenantRules>,
) -> Result<Option<ClientQuota>, String> {
    let rules = rules.load();
    let wrong = |error: &str| {
        let masked = SubjectFormatter::new(SubjectFormat::Masked).format(&client.key, client.kind);
        format!("the numbers of the tenant `{masked}`: {error}")
    };
    let json = std::str::from_utf8(json).map_err(|_| wrong("they are not UTF-8"))?;
    let quota = files::tenant(json, &rules).map_err(|error| wrong(&error))?;
    Ok(client_quota(&quota, &rules))
}

/// Converts a tenant's numbers for the layer.
pub(super) fn client_quota(quota: &TenantQuota, rules: &TenantRules) -> Option<ClientQuota> {
    match quota {
        TenantQuota::Unlimited => Some(ClientQuota::unlimited()),
        TenantQuota::Tier(tier) => {
            rules.tiers.as_ref()?.get(*tier).map(|name| Tier::from(name.clone()).into())
        }
        TenantQuota::Quotas(quotas) => {
            let (first, further) = quotas.split_first()?;
            Some(further.iter().copied().fold((*first).into(), ClientQuota::also))
        }
    }
}
