use tollgate::access::{AccessLists, SubjectList};
use tollgate::key::{ApiKey, ApiKeys, UnverifiedApiKey};
use tollgate_config::files;
use tollgate_config::plan::{IdentitySource, Plan, SubjectsPlan};

use super::client_identity::Identity;
use super::facts::Users;
use super::key_sources::{addresses, api_key};
use crate::serve::error::BuildError;

/// The blocklist and the allowlist, if the plan has any.
pub(crate) fn lists(plan: &Plan, identity: &Identity) -> Result<Option<AccessLists>, BuildError> {
    if plan.deny.is_empty() && plan.allow.is_empty() {
        return Ok(None);
    }
    let wrong = |error: &dyn std::fmt::Display| BuildError(format!("`deny` or `allow`: {error}"));
    let lists = AccessLists::new()
        // A recorded line without an address has a Unix peer, see `Recorded`.
        .addresses_by(addresses(plan)?.skip_unix_peer())
        .api_keys_in(api_keys(plan))
        .users_by(Users(identity.clone()));
    let (deny, allow) = (list("deny", &plan.deny)?, list("allow", &plan.allow)?);
    lists.replace(&deny, &allow).map_err(|error| wrong(&error))?;
    Ok(Some(lists))
}

fn api_keys(plan: &Plan) -> UnverifiedApiKey {
    let place_of_keys = plan.identity.iter().find_map(|source| match source {
        IdentitySource::ApiKey(keys) => Some(api_key(&keys.header)),
        _ => None,
    });
    place_of_keys.unwrap_or_else(ApiKey::in_x_api_key)
}

fn list(key: &str, plan: &SubjectsPlan) -> Result<SubjectList, BuildError> {
    let wrong = |error: &dyn std::fmt::Display| BuildError(format!("`{key}`: {error}"));
    let mut list = SubjectList::new();
    for address in &plan.addresses {
        list = list.network(address).map_err(|error| wrong(&error))?;
    }
    let keys = ApiKeys::from_sha256_hex(&plan.api_keys).map_err(|error| wrong(&error))?;
    list = list.api_keys(&keys);
    for user in &plan.users {
        list = list.user(user).map_err(|error| wrong(&error))?;
    }
    match &plan.file {
        Some(file) => Ok(list.and(files::subjects(file)?)),
        None => Ok(list),
    }
}
