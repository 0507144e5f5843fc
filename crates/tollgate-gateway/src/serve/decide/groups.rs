//! The groups of requests on levels above clients, such as teams.

use std::borrow::Cow;
use std::sync::Arc;

use tollgate::key::{
    ApiKeyGroups, Chain, Global, KeyError, KeySource, RequestHead, chain, try_from_fn,
};
use tollgate_config::plan::{GroupSource, LevelPlan};

use super::key_sources::api_key;
use super::token_limit::{TokenUser, TooManyRefused};
use super::values;
use crate::serve::error::BuildError;

/// The key source for a level. All parts of a request that name a group lead to the same key, so a
/// team's tokens and API keys share its quota.
pub(super) fn source(plan: &LevelPlan, users: Option<&TokenUser>) -> Result<Chain, BuildError> {
    let sources = plan.sources.iter().map(|source| {
        Ok(match source {
            GroupSource::ApiKey { header, groups } => {
                let groups = groups.iter().map(|(digest, group)| (digest, group));
                let source = api_key(header).by_group(ApiKeyGroups::from_sha256_hex(groups)?);
                Arc::new(source) as Arc<dyn KeySource>
            }
            GroupSource::Claim(name) => {
                let (name, users) = (name.clone(), users.cloned());
                Arc::new(try_from_fn(move |head: &RequestHead<'_>| {
                    claim(users.as_ref(), head, &name)
                }))
            }
            GroupSource::Header(plan) => {
                let plan = plan.clone();
                Arc::new(try_from_fn(move |head: &RequestHead<'_>| {
                    Ok(values::text(&plan, head)?.map(Cow::into_owned))
                }))
            }
            GroupSource::Everyone => Arc::new(Global),
        })
    });
    Ok(chain(sources.collect::<Result<Vec<_>, BuildError>>()?))
}

fn claim(
    users: Option<&TokenUser>,
    head: &RequestHead<'_>,
    name: &str,
) -> Result<Option<String>, KeyError> {
    let Some(users) = users else { return Ok(None) };
    match users.with_claim(head, name) {
        // A token that is not verified has no claims. Whether the client needs one, `identity` says.
        Err(error) if TooManyRefused::of(&error).is_some() => Ok(None),
        found => Ok(found?.and_then(|(_, group)| group)),
    }
}
