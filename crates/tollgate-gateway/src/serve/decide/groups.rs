//! The groups of requests on levels above clients, such as teams.

use std::borrow::Cow;
use std::sync::Arc;

use tollgate::key::{
    ApiKeyGroups, Chain, ClientIp, Global, KeyError, KeySource, RequestHead, Subject, SubjectKind,
    SubjectName, chain, try_from_fn,
};
use tollgate::limit::OnMissingKey;
use tollgate_config::plan::{GroupSource, KeyPart, LevelPlan, Plan};

use super::body_field::{self, ReadText};
use super::key_sources::{addresses, api_key};
use super::token_limit::{TokenUser, TooManyRefused};
use super::values;
use crate::serve::error::BuildError;

/// A request's client or group.
pub(super) type Found = Result<Option<Subject>, Arc<KeyError>>;

/// Where requests have their group on a level.
pub(super) enum LevelSource {
    Alone {
        chain: Chain,
        reads_body: bool,
    },
    /// Combines the client and groups on other levels.
    Combined {
        parts: Vec<KeyPart>,
        addresses: ClientIp,
        reads_body: bool,
    },
}

impl LevelSource {
    pub(super) fn all(plan: &Plan, users: Option<&TokenUser>) -> Result<Arc<[Self]>, BuildError> {
        let level = |level: &LevelPlan| {
            let reads_body = level.reads_body(&plan.levels);
            Ok(match &level.sources[..] {
                [GroupSource::Parts(parts)] => {
                    let addresses = addresses(plan)?;
                    Self::Combined { parts: parts.clone(), addresses, reads_body }
                }
                _ => Self::Alone { chain: source(level, users)?, reads_body },
            })
        };
        plan.levels.iter().map(level).collect()
    }

    pub(super) const fn reads_body(&self) -> bool {
        match self {
            Self::Alone { reads_body, .. } | Self::Combined { reads_body, .. } => *reads_body,
        }
    }

    /// Finds a request's group, given its client and its groups on the levels before this one.
    pub(super) fn find(
        &self,
        client: Option<&Subject>,
        groups: &[Found],
        head: &RequestHead<'_>,
    ) -> Found {
        let (parts, addresses) = match self {
            Self::Alone { chain, .. } => return chain.subject(head).map_err(Arc::new),
            Self::Combined { reads_body: true, .. } if !was_read(head) => return Ok(None),
            Self::Combined { parts, addresses, .. } => (parts, addresses),
        };
        let mut subjects = Vec::with_capacity(parts.len());
        for part in parts {
            let subject = match part {
                KeyPart::Client => client.cloned(),
                KeyPart::Address => addresses.subject(head)?,
                KeyPart::Group(level) => groups.get(*level).cloned().unwrap_or(Ok(None))?,
            };
            subjects.push(subject.unwrap_or_else(missing));
        }
        Ok(Some(Subject::of_parts(&subjects)))
    }

    /// The group's name at the sources of tenants. A combination has none.
    pub(super) fn name(&self, head: &RequestHead<'_>) -> Option<String> {
        match self {
            Self::Alone { chain, .. } => chain.name(head),
            Self::Combined { .. } => None,
        }
    }

    pub(super) fn can_be_missing(&self) -> bool {
        match self {
            Self::Alone { chain, .. } => chain.can_be_missing(),
            Self::Combined { reads_body, .. } => *reads_body,
        }
    }

    /// The group that an operator names, for example `other:ann@a.example,ip:203.0.113.7`.
    /// `client` finds a client by its name.
    pub(super) fn named(
        &self,
        name: &SubjectName,
        levels: &[Self],
        client: &dyn Fn(&SubjectName) -> Option<Subject>,
    ) -> Option<Subject> {
        let (parts, addresses) = match self {
            Self::Alone { chain, .. } => return chain.named(name),
            Self::Combined { parts, addresses, .. } => (parts, addresses),
        };
        let names = match name {
            SubjectName::Several(names) => &names[..],
            name => std::slice::from_ref(name),
        };
        let part = |(part, name): (&KeyPart, &SubjectName)| match (name, part) {
            (SubjectName::Missing, _) => Some(missing()),
            (_, KeyPart::Client) => client(name),
            (_, KeyPart::Address) => addresses.named(name),
            (_, KeyPart::Group(level)) => levels.get(*level)?.named(name, levels, client),
        };
        let subjects: Option<Vec<_>> = parts.iter().zip(names).map(part).collect();
        subjects
            .filter(|it| it.len() == names.len() && it.len() == parts.len())
            .map(|subjects| Subject::of_parts(&subjects))
    }
}

/// The part of a combination that a request does not have.
fn missing() -> Subject {
    Subject { kind: SubjectKind::Other, key: OnMissingKey::shared_key() }
}

fn was_read(head: &RequestHead<'_>) -> bool {
    head.extensions.get::<ReadText>().is_some()
}

/// The key source for a level. All parts of a request that name a group lead to the same key, so a
/// team's tokens and API keys share its quota.
fn source(plan: &LevelPlan, users: Option<&TokenUser>) -> Result<Chain, BuildError> {
    let reads_body = plan.reads_body(&[]);
    // Otherwise a body that only the service can read would avoid the limit.
    let rest = reads_body.then(|| {
        let rest = try_from_fn(|head: &RequestHead<'_>| Ok(was_read(head).then_some("")));
        Ok(Arc::new(rest) as Arc<dyn KeySource>)
    });
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
            GroupSource::Body(name) => Arc::new(body_field::source(name)),
            GroupSource::Everyone => Arc::new(Global),
            GroupSource::Parts(_) => {
                return Err(BuildError("a combination is not alone on its level".to_owned()));
            }
        })
    });
    Ok(chain(sources.chain(rest).collect::<Result<Vec<_>, BuildError>>()?))
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
