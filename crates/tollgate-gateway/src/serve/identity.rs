//! Whose quota a request uses, found out once for all its limits.

use std::fs;
use std::sync::Arc;

use tollgate::key::{
    ApiKey, ApiKeys, ClientIp, JwtKey, JwtKeys, JwtUser, JwtVerifier, KeyError, KeySource,
};
use tollgate::{Head, Subject};

use super::build::BuildError;
use crate::plan::{ApiKeyPlace, ApiKeysPlan, ForwardingHeader, IdentitySource, JwtPlan, KeyOrigin};

/// Who asks, as an extension of the request: the limits of a route read it instead of each
/// looking for itself.
#[derive(Clone)]
pub(super) struct Asker {
    found: Result<Option<Subject>, Arc<KeyError>>,
    /// Which of the tiers, if any.
    pub(super) tier: Option<usize>,
}

/// The sources, in their order. Clones share them.
#[derive(Clone)]
pub(super) struct Identity(Arc<[Link]>);

struct Link {
    source: Box<dyn KeySource>,
    tier: Option<usize>,
}

impl Identity {
    pub(super) fn new(plan: &[IdentitySource]) -> Result<Self, BuildError> {
        let mut links = Vec::new();
        for source in plan {
            match source {
                IdentitySource::User(jwt) => {
                    links.push(Link { source: Box::new(user(jwt)?), tier: None });
                }
                IdentitySource::ApiKey(keys) => append_keys(&mut links, keys)?,
                IdentitySource::Ip { trusted_proxies, header, v4_prefix, v6_prefix } => {
                    let source = match header {
                        None => ClientIp::peer(),
                        Some(header) => {
                            let source = ClientIp::behind(trusted_proxies.clone());
                            match header {
                                ForwardingHeader::XForwardedFor => source,
                                ForwardingHeader::Forwarded => source.in_forwarded(),
                                ForwardingHeader::Single(name) => {
                                    source.in_single_header(name.clone())
                                }
                            }
                        }
                    };
                    let source =
                        source.v4_prefix(*v4_prefix).and_then(|it| it.v6_prefix(*v6_prefix));
                    let source = source.map_err(|error| BuildError(error.to_string()))?;
                    links.push(Link { source: Box::new(source), tier: None });
                }
            }
        }
        Ok(Self(links.into()))
    }

    pub(super) fn can_be_missing(&self) -> bool {
        self.0.iter().all(|link| link.source.can_be_missing())
    }

    pub(super) fn find(&self, head: &Head<'_>) -> Asker {
        for link in &*self.0 {
            match link.source.subject(head) {
                Ok(None) => {}
                found => return Asker { found: found.map_err(Arc::new), tier: link.tier },
            }
        }
        Asker { found: Ok(None), tier: None }
    }
}

/// The source that the limits of a route have: whoever was found.
pub(super) struct Found {
    pub(super) can_be_missing: bool,
}

impl KeySource for Found {
    fn subject(&self, head: &Head<'_>) -> Result<Option<Subject>, KeyError> {
        match head.extensions.get::<Asker>() {
            Some(Asker { found: Ok(found), .. }) => Ok(found.clone()),
            Some(Asker { found: Err(error), .. }) => {
                Err(KeyError::Other(Box::new(Arc::clone(error))))
            }
            None => Ok(None),
        }
    }

    fn can_be_missing(&self) -> bool {
        self.can_be_missing
    }
}

/// A list for each tier, so that the list that has a key says which tier it is.
fn append_keys(links: &mut Vec<Link>, plan: &ApiKeysPlan) -> Result<(), BuildError> {
    let mut tiers: Vec<_> = plan.keys.iter().map(|key| key.tier).collect();
    tiers.sort_unstable();
    tiers.dedup();
    for tier in tiers {
        let digests = plan.keys.iter().filter(|key| key.tier == tier).map(|key| &key.sha256);
        let keys =
            ApiKeys::from_sha256_hex(digests).map_err(|error| BuildError(error.to_string()))?;
        let place = match &plan.place {
            ApiKeyPlace::Header(name) => ApiKey::in_header(name.clone()),
            ApiKeyPlace::Authorization(scheme) => ApiKey::in_authorization(scheme.as_str()),
        };
        links.push(Link { source: Box::new(place.one_of(keys)), tier });
    }
    Ok(())
}

fn user(plan: &JwtPlan) -> Result<JwtUser, BuildError> {
    let wrong = |error: &dyn std::fmt::Display| BuildError(format!("jwt: {error}"));
    let keys = match &plan.keys {
        KeyOrigin::Secret(secret) => JwtKey::hs256(secret.reveal().as_bytes())
            .and_then(|key| JwtKeys::new([key]))
            .map_err(|error| wrong(&error))?,
        KeyOrigin::Pem { file, algorithm } => {
            let pem = read(file)?;
            let key = match *algorithm {
                "RS256" => JwtKey::rs256_pem(&pem),
                "ES256" => JwtKey::es256_pem(&pem),
                _ => JwtKey::eddsa_pem(&pem),
            };
            key.and_then(|key| JwtKeys::new([key])).map_err(|error| wrong(&error))?
        }
        KeyOrigin::JwksFile(file) => {
            let json = String::from_utf8(read(file)?).map_err(|error| wrong(&error))?;
            JwtKeys::from_jwks(&json).map_err(|error| wrong(&error))?
        }
        KeyOrigin::JwksUrl { url, .. } => {
            return Err(BuildError(format!(
                "jwt: key sets from a URL ({url}) are not read yet; put the set into a file and \
                 name it as `jwksFile`, which is read again whenever it changes"
            )));
        }
    };
    let mut verifier = JwtVerifier::new(keys);
    if let Some(issuer) = &plan.issuer {
        verifier = verifier.issuer(issuer);
    }
    for audience in &plan.audiences {
        verifier = verifier.audience(audience);
    }
    Ok(JwtUser::new(verifier))
}

fn read(file: &std::path::Path) -> Result<Vec<u8>, BuildError> {
    fs::read(file).map_err(|error| BuildError(format!("{}: {error}", file.display())))
}
