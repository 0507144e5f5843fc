//! A request's client, found once for all limits.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use tollgate::key::{
    ApiKeys, JwtKey, JwtKeys, JwtUser, JwtVerifier, KeyError, KeySource, RequestHead, Subject,
    SubjectName,
};
use tollgate_config::files;
use tollgate_config::plan::{ApiKeysPlan, IdentitySource, JwtPlan, KeyOrigin, Plan, Whose};

use super::body_field::ReadText;
use super::groups::{Found, LevelSource};
use super::key_sets::{KeySet, KeySets};
use super::key_sources::{addresses, api_key, client_ip};
use super::tenants::naming::Naming;
use super::token_limit::{Addresses, TokenLimit, TokenUser, TooManyRefused};
use super::values::value;
use crate::serve::edge::client_certificate::client_certificate;
use crate::serve::error::BuildError;

/// The request's client. All of a route's limits read it from the request's facts, so `identity` is
/// evaluated only once.
#[derive(Clone, Debug)]
pub struct ClientIdentity {
    pub(super) found: Found,
    pub tier: Option<usize>,
    /// The number of the source that found the client.
    pub(super) link: Option<usize>,
    /// The client's name among the tenants, if only its connection shows it.
    pub(super) name: Option<Arc<str>>,
    /// The request's group on each level.
    groups: Vec<Found>,
    /// The groups' names on levels with tenants.
    group_names: Vec<Option<Arc<str>>>,
}

impl Default for ClientIdentity {
    fn default() -> Self {
        let (groups, group_names) = Default::default();
        Self { found: Ok(None), tier: None, link: None, name: None, groups, group_names }
    }
}

impl ClientIdentity {
    /// The client that one source finds, without a tier.
    pub(crate) fn by(source: &impl KeySource, head: &RequestHead<'_>) -> Self {
        let found = source.subject(head).map_err(Arc::new);
        Self { found, ..Self::default() }
    }

    /// The request's client or group whose quota a limit counts.
    pub fn subject_of(&self, whose: Whose) -> Result<Option<&Subject>, &KeyError> {
        match self.found_of(whose) {
            Some(Ok(found)) => Ok(found.as_ref()),
            Some(Err(error)) => Err(error),
            None => Ok(None),
        }
    }

    pub(super) fn found_of(&self, whose: Whose) -> Option<&Found> {
        match whose {
            Whose::Everybody | Whose::Client => Some(&self.found),
            Whose::Group(level) => self.groups.get(level),
        }
    }

    pub fn subject(&self) -> Result<Option<Subject>, &KeyError> {
        match &self.found {
            Ok(found) => Ok(found.clone()),
            Err(error) => Err(error),
        }
    }

    pub(crate) const fn is_unknown(&self) -> bool {
        matches!(self.found, Ok(None))
    }

    /// The reason, if the client's token was not verified.
    pub(crate) fn too_many_refused(&self) -> Option<&TooManyRefused> {
        TooManyRefused::of(self.found.as_ref().err()?)
    }
}

#[derive(Clone)]
pub(crate) struct Identity {
    pub(super) links: Arc<[Link]>,
    /// Where requests have their groups on each level.
    pub(super) levels: Arc<[LevelSource]>,
    /// The fetched key sets, refreshed until the last clone is dropped.
    pub(crate) key_sets: Arc<[Arc<KeySet>]>,
    /// Whether clients are tenants.
    has_tenants: bool,
    /// Whether the groups of each level are tenants; empty if none are.
    has_tenant_groups: Arc<[bool]>,
}

/// Without its sources, which may contain secrets.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

pub(super) struct Link {
    pub(super) source: Box<dyn KeySource>,
    /// The tier for all clients from this source, unless a claim determines it.
    tier: Option<usize>,
    claim: Option<TierClaim>,
    pub(super) naming: Naming,
}

struct TierClaim {
    user: TokenUser,
    name: String,
    tiers: Arc<[String]>,
}

impl Link {
    fn of(source: impl KeySource, tier: Option<usize>, naming: Naming) -> Self {
        Self { source: Box::new(source), tier, claim: None, naming }
    }

    pub(super) fn find(
        &self,
        head: &RequestHead<'_>,
    ) -> Result<Option<(Subject, Option<usize>)>, KeyError> {
        let Some(TierClaim { user, name, tiers }) = &self.claim else {
            return Ok(self.source.subject(head)?.map(|subject| (subject, self.tier)));
        };
        // An unknown tier counts as no tier.
        Ok(user.with_claim(head, name)?.map(|(subject, said)| {
            (subject, tiers.iter().position(|tier| Some(tier) == said.as_ref()))
        }))
    }
}

impl Identity {
    /// For commands, which neither wait for fetched key sets nor count refused tokens.
    pub(crate) fn for_command(plan: &Plan) -> Result<Self, BuildError> {
        Self::new(plan, &KeySets::default(), None)
    }

    /// With `refused`, tokens from an address that sent too many refused tokens are not verified.
    pub(crate) fn new(
        plan: &Plan,
        known: &KeySets,
        refused: Option<&Addresses>,
    ) -> Result<Self, BuildError> {
        let mut links = Vec::new();
        let mut users = None;
        let mut key_sets = Vec::new();
        for (number, source) in plan.identity.iter().enumerate() {
            let naming = Naming::of(source, number == 0);
            match source {
                IdentitySource::User(jwt) => {
                    let user = user(jwt, known, &mut key_sets)?;
                    let limit = refused.zip(jwt.max_refused).map(|(refused, most)| {
                        TokenLimit::new(refused, most, addresses(plan)?).map(Arc::new)
                    });
                    let user = TokenUser { user, limit: limit.transpose()? };
                    let claim = jwt.tier_claim.as_ref().filter(|_| !plan.tiers.is_empty());
                    let claim = claim.map(|name| TierClaim {
                        user: user.clone(),
                        name: name.clone(),
                        tiers: plan.tiers.clone().into(),
                    });
                    users = Some(user.clone());
                    links.push(Link { claim, ..Link::of(user, None, naming) });
                }
                IdentitySource::ApiKey(keys) => append_keys(&mut links, keys, &naming)?,
                IdentitySource::Certificate => {
                    links.push(Link::of(client_certificate(), None, naming));
                }
                IdentitySource::Value(plan) => links.push(Link::of(value(plan), None, naming)),
                IdentitySource::Ip { trusted_proxies, header, v4_prefix, v6_prefix } => {
                    let source =
                        client_ip(trusted_proxies, header.as_ref(), *v4_prefix, *v6_prefix)?;
                    links.push(Link::of(source, None, naming));
                }
            }
        }
        let levels = LevelSource::all(plan, users.as_ref())?;
        let has = |whose| plan.tenants.iter().any(|tenants| tenants.of == whose);
        let has_tenants = has(Whose::Client);
        let has_groups = plan.tenants.iter().any(|tenants| tenants.of != Whose::Client);
        let numbers = (0..plan.levels.len()).filter(|_| has_groups);
        let has_tenant_groups = numbers.map(|level| has(Whose::Group(level))).collect();
        let (links, key_sets) = (links.into(), key_sets.into());
        Ok(Self { links, levels, key_sets, has_tenants, has_tenant_groups })
    }

    /// The tier for a client that an operator names. `None` for users, because only their token
    /// contains the tier.
    pub(crate) fn tier_of(&self, name: &SubjectName) -> Option<usize> {
        self.links.iter().find(|link| link.source.named(name).is_some())?.tier
    }

    /// The user in a log line, as if a token had named the user. `None` if no source has users.
    pub(crate) fn user(
        &self,
        user: &str,
        tier: Option<usize>,
        head: &RequestHead<'_>,
    ) -> Option<ClientIdentity> {
        let name: SubjectName = format!("user:{user}").parse().ok()?;
        let links = self.links.iter().enumerate();
        let (link, subject) =
            { links }.find_map(|(link, it)| Some((link, it.source.named(&name)?)))?;
        let name = Some(self.links[link].naming.qualified(user).into());
        let client = ClientIdentity {
            found: Ok(Some(subject)),
            tier,
            link: Some(link),
            name,
            ..ClientIdentity::default()
        };
        Some(self.with_groups(client, head))
    }

    pub(crate) fn can_be_missing(&self) -> bool {
        self.links.iter().all(|link| link.source.can_be_missing())
    }

    pub(crate) fn find(&self, head: &RequestHead<'_>) -> ClientIdentity {
        for (number, link) in self.links.iter().enumerate() {
            match link.find(head) {
                Ok(None) => {}
                Ok(Some((subject, tier))) => {
                    let is_named = self.has_tenants && link.naming.is_of_connection();
                    let name = is_named.then(|| link.naming.name(&*link.source, head)).flatten();
                    let client = ClientIdentity {
                        found: Ok(Some(subject)),
                        tier,
                        link: Some(number),
                        name: name.map(Arc::from),
                        ..ClientIdentity::default()
                    };
                    return self.with_groups(client, head);
                }
                Err(error) => {
                    let found = Err(Arc::new(error));
                    return ClientIdentity { found, ..ClientIdentity::default() };
                }
            }
        }
        self.with_groups(ClientIdentity::default(), head)
    }

    fn with_groups(&self, mut client: ClientIdentity, head: &RequestHead<'_>) -> ClientIdentity {
        let found = client.found.as_ref().ok().and_then(Option::as_ref);
        let mut groups = Vec::with_capacity(self.levels.len());
        for level in &*self.levels {
            let group = level.find(found, &groups, head);
            groups.push(group);
        }
        let levels = self.levels.iter().zip(&*self.has_tenant_groups);
        let name = |(level, has): (&LevelSource, &bool)| {
            has.then(|| level.name(head)).flatten().map(Arc::from)
        };
        client.group_names = levels.map(name).collect();
        ClientIdentity { groups, ..client }
    }

    /// Finds the groups that are in the body, or `None` if it is too long.
    pub(crate) fn read_body(
        &self,
        client: &mut ClientIdentity,
        body: Option<Bytes>,
        head: RequestHead<'_>,
    ) {
        let mut extensions = head.extensions.clone();
        extensions.insert(ReadText(body));
        let mut head = head;
        head.extensions = &extensions;
        let ClientIdentity { found, groups, .. } = client;
        let found = found.as_ref().ok().and_then(Option::as_ref);
        for (number, level) in self.levels.iter().enumerate().filter(|(_, it)| it.reads_body()) {
            let group = level.find(found, groups, &head);
            if let Some(known) = groups.get_mut(number) {
                *known = group;
            }
        }
    }

    /// The client or group whose numbers apply, if it can be a tenant.
    pub(crate) fn tenant(&self, client: &ClientIdentity, whose: Whose) -> Option<Subject> {
        let is_tenant = match whose {
            Whose::Client => self.links.get(client.link?)?.naming.names_tenants(),
            Whose::Group(_) => true,
            Whose::Everybody => false,
        };
        client.subject_of(whose).ok().flatten().filter(|_| is_tenant).cloned()
    }

    /// The name of the tenant. `None` for a name that is not UTF-8.
    pub(crate) fn tenant_name(
        &self,
        client: &ClientIdentity,
        whose: Whose,
        head: &RequestHead<'_>,
    ) -> Option<String> {
        match whose {
            Whose::Everybody => None,
            Whose::Group(level) => client.group_names.get(level)?.as_deref().map(str::to_owned),
            Whose::Client => match &client.name {
                Some(name) => Some(name.to_string()),
                None => {
                    let link = self.links.get(client.link?)?;
                    link.naming.name(&*link.source, head)
                }
            },
        }
    }

    /// The client that an operator names.
    pub(super) fn named(&self, name: &SubjectName) -> Option<Subject> {
        self.links.iter().find_map(|link| link.source.named(name))
    }
}

/// Adds a key list for each tier, so the list that contains a key determines its tier.
fn append_keys(
    links: &mut Vec<Link>,
    plan: &ApiKeysPlan,
    naming: &Naming,
) -> Result<(), BuildError> {
    let mut tiers: Vec<_> = plan.keys.iter().map(|key| key.tier).collect();
    tiers.sort_unstable();
    tiers.dedup();
    for tier in tiers {
        let digests = plan.keys.iter().filter(|key| key.tier == tier).map(|key| &key.sha256);
        let source = api_key(&plan.header).one_of(ApiKeys::from_sha256_hex(digests)?);
        links.push(Link::of(source, tier, naming.clone()));
    }
    Ok(())
}

fn user(
    plan: &JwtPlan,
    known: &KeySets,
    key_sets: &mut Vec<Arc<KeySet>>,
) -> Result<JwtUser, BuildError> {
    let mut verifier = match &plan.keys {
        KeyOrigin::JwksUrl(jwks) => {
            let set = known.get(jwks)?;
            let verifier = set.verifier();
            key_sets.push(set);
            verifier
        }
        KeyOrigin::Secret(secret) => {
            let keys = JwtKey::hs256(secret.reveal().as_bytes());
            let keys = keys.and_then(|key| JwtKeys::new([key]));
            JwtVerifier::new(keys.map_err(|error| BuildError(format!("jwt: {error}")))?)
        }
        origin => match files::keys(origin)? {
            Some(keys) => JwtVerifier::new(keys),
            None => JwtVerifier::without_keys(),
        },
    };
    if let Some(issuer) = &plan.issuer {
        verifier = verifier.issuer(issuer);
    }
    for audience in &plan.audiences {
        verifier = verifier.audience(audience);
    }
    Ok(JwtUser::new(verifier))
}

#[cfg(test)]
mod tests;
