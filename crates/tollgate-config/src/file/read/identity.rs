use std::collections::HashMap;

use http::HeaderName;
use tollgate::key::TrustedProxies;

use super::tokens;
use crate::code;
use crate::file::tables::{self, ApiKey, ApiKeys, ClientKey, RateLimiter};
use crate::plan::{
    ApiKeyEntry, ApiKeyHeader, ApiKeysPlan, ForwardingHeader, IdentitySource, Parameter, ValuePlan,
};
use crate::yaml::problem::{Checked, Reported};
use crate::yaml::typed::{Item, Key, Location, Setting, Written, all};

pub(super) struct Identity {
    pub(super) chain: Vec<IdentitySource>,
    pub(super) proxies: TrustedProxies,
}

impl Identity {
    pub(super) fn always_finds(&self) -> bool {
        self.chain.iter().any(|source| matches!(source, IdentitySource::Ip { .. }))
    }
}

/// The sources that identify clients; addresses by default.
pub(super) fn identity(limiter: &RateLimiter, tiers: &[String]) -> Checked<Identity> {
    let proxies = limiter.trusted_proxies.value();
    let known = proxies.clone().unwrap_or_else(|_| Some(TrustedProxies::none()));
    let mut reader = Reader { limiter, proxies: known, tiers, believed: None };
    let mut kinds = Vec::new();
    let chain = all(limiter.identity.get()?, |item| {
        let section = item.get()?;
        let key = section.key.get()?;
        let (kind, name) = (key.value, &key.text);
        if kinds.contains(&ClientKey::Ip) {
            let what = format!(
                "`{name}` is never used: every request has an address, and `ip` comes first"
            );
            item.location.warn(code::UNREACHABLE, what, "move `ip` to the end of the list");
        } else if kinds.contains(&kind) && !kind.is_value() {
            let what = format!("`{name}` is listed twice");
            item.location.warn(code::LISTED_TWICE, what, "remove one");
        }
        kinds.push(kind);
        reader.source(section, &item.location)
    });
    let unused: [(&Setting, _, _); 2] =
        [(&limiter.jwt, ClientKey::User, "user"), (&limiter.api_keys, ClientKey::ApiKey, "apiKey")];
    for (key, kind, word) in unused {
        if key.is_set() && !kinds.contains(&kind) {
            key.name().warn(
                code::NO_EFFECT,
                format!("`{}` has no effect: it identifies no client", key.key),
                format!("write `identity: [{word}, ip]`, or remove it"),
            );
        }
    }
    proxies?;
    Ok(Identity { chain: chain?, proxies: reader.trusted() })
}

struct Reader<'a> {
    limiter: &'a RateLimiter,
    proxies: Option<TrustedProxies>,
    tiers: &'a [String],
    believed: Option<TrustedProxies>,
}

impl Reader<'_> {
    fn source(
        &mut self,
        section: &tables::Identity,
        location: &Location,
    ) -> Checked<IdentitySource> {
        match section.key.get()?.value {
            ClientKey::Ip => self.address(section),
            ClientKey::User => match self.limiter.jwt.get()? {
                Some(jwt) => tokens::jwt(jwt, self.tiers).map(IdentitySource::User),
                None => Err(location.error(
                    code::IDENTITY_SOURCE,
                    "`user` is a token's subject, but there is no `jwt`",
                    "add a section `jwt` with `jwksUrl`, `jwksFile`, `keyFile` or `secret`",
                )),
            },
            ClientKey::ApiKey => match self.limiter.api_keys.get()? {
                Some(keys) => api_keys(keys, self.tiers).map(IdentitySource::ApiKey),
                None => Err(location.error(
                    code::IDENTITY_SOURCE,
                    "`apiKey` needs a list of keys, but there is no `apiKeys`",
                    "add `apiKeys` with the `sha256` of each key",
                )),
            },
            ClientKey::Certificate if asks_for_certificates(self.limiter) => {
                Ok(IdentitySource::Certificate)
            }
            ClientKey::Certificate => Err(location.error(
                code::IDENTITY_SOURCE,
                "`certificate` needs client certificates, but no listener asks for them",
                "add `clientCa` to `listen[].tls`",
            )),
            ClientKey::Header | ClientKey::Cookie | ClientKey::Query => {
                value(section, location).map(IdentitySource::Value)
            }
        }
    }

    fn address(&mut self, section: &tables::Identity) -> Checked<IdentitySource> {
        let proxies = section.trusted_proxies.value()?.or_else(|| self.proxies.clone());
        let (header, trusted_proxies) = match (section.header.value()?, proxies) {
            (Some(header), Some(proxies)) => (Some(forwarding(header)), proxies),
            (Some(header), None) => {
                section.header.warn(
                    code::FORGEABLE,
                    "every client can write this header, and no `trustedProxies` are listed: \
                     the header counts only from loopback, and other clients count by the \
                     address that they connect from",
                    "list the proxies in front: `trustedProxies: [10.0.0.0/8]`, or `[loopback]` \
                     if they run on this machine",
                );
                let loopback = TrustedProxies::parse(["loopback"]).map_err(|_| Reported)?;
                (Some(forwarding(header)), loopback)
            }
            (None, Some(proxies)) => (Some(ForwardingHeader::XForwardedFor), proxies),
            (None, None) => (None, TrustedProxies::none()),
        };
        self.believed = Some(trusted_proxies.clone());
        Ok(IdentitySource::Ip {
            trusted_proxies,
            header,
            v4_prefix: section.ipv4_prefix.value()?,
            v6_prefix: section.ipv6_prefix.value()?,
        })
    }

    /// The proxies that may send forwarding headers to the target. The identity trusts these too.
    fn trusted(self) -> TrustedProxies {
        self.believed.or(self.proxies).unwrap_or_else(TrustedProxies::none)
    }
}

fn value(section: &tables::Identity, location: &Location) -> Checked<ValuePlan> {
    let key = section.key.get()?;
    let name = named(&key.text, &section.name, location)?;
    let parameter = match key.value {
        ClientKey::Header => Parameter::Header(name.value.clone()),
        ClientKey::Cookie => Parameter::Cookie(name.text.clone()),
        _ => Parameter::Query(name.text.clone()),
    };
    let proxies = section.trusted_proxies.value()?;
    if proxies.is_none() {
        location.warn(
            code::FORGEABLE,
            format!(
                "clients can write any value into the {} `{}`, and each value has its own \
                 quota",
                key.text, name.shown
            ),
            "list the proxies that verify it in `trustedProxies`, use `user` or `apiKey`, or add \
             a `global` limit",
        );
    }
    Ok(ValuePlan { parameter, proxies })
}

/// Returns the name of the request part that `key` reads, such as a header's.
pub(super) fn named<'n, T>(
    key: &str,
    name: &'n Key<Option<Written<T>>>,
    location: &Location,
) -> Checked<&'n Written<T>> {
    name.get()?.as_ref().ok_or_else(|| {
        let cure = format!("write `{{key: {key}, name: …}}`");
        location.error(code::MISSING_KEY, format!("`{key}` needs a `name`"), cure)
    })
}

fn asks_for_certificates(limiter: &RateLimiter) -> bool {
    let listeners = limiter.listen.get().into_iter().flatten().flat_map(Item::get);
    listeners.filter_map(|listener| listener.tls.as_ref()).any(|tls| tls.client_ca.is_some())
}

fn forwarding(name: HeaderName) -> ForwardingHeader {
    match name.as_str() {
        "x-forwarded-for" => ForwardingHeader::XForwardedFor,
        "forwarded" => ForwardingHeader::Forwarded,
        _ => ForwardingHeader::Single(name),
    }
}

fn api_keys(section: &ApiKeys, tiers: &[String]) -> Checked<ApiKeysPlan> {
    let header = match section.scheme.value()? {
        Some(scheme) => ApiKeyHeader::Authorization(scheme),
        None => ApiKeyHeader::Header(section.header.value()?),
    };
    let mut digests = HashMap::new();
    let keys = all(section.keys.get()?, |item| {
        let key = item.get()?;
        let location = key.sha256.location();
        if let Ok(digest) = key.sha256.get()
            && let Some(first) = digests.insert(digest, location.place.path.clone())
        {
            location.error(
                code::API_KEY_TWICE,
                format!("this key is already at {first}, perhaps in another tier"),
                "remove one of the two",
            );
        }
        api_key(key, tiers)
    });
    Ok(ApiKeysPlan { header, keys: keys? })
}

fn api_key(key: &ApiKey, tiers: &[String]) -> Checked<ApiKeyEntry> {
    let sha256 = key.sha256.value();
    let tier = tier(&key.tier, tiers);
    let tenant = key.tenant.value();
    Ok(ApiKeyEntry { sha256: sha256?, tier: tier?, tenant: tenant? })
}

/// The number of the tier that a key names.
pub(super) fn tier(key: &Key<Option<Written<String>>>, tiers: &[String]) -> Checked<Option<usize>> {
    let Some(name) = key.get()? else { return Ok(None) };
    let tier = tiers.iter().position(|tier| *tier == name.value);
    if tier.is_none() {
        let cure = match tiers {
            [] => "add it to `tiers`".to_owned(),
            tiers => format!("the tiers are {}; add it, or name one of them", tiers.join(", ")),
        };
        return Err(key.error(
            code::UNKNOWN_TIER,
            format!("there is no tier `{}`", name.shown),
            cure,
        ));
    }
    Ok(tier)
}
