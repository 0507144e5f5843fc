//! Whose quota a request uses.

use std::collections::HashMap;

use http::HeaderName;
use tollgate::key::TrustedProxies;

use super::super::problem::Problems;
use super::super::view::{Item, View};
use super::policy::no_effect;
use super::{tokens, values};
use crate::plan::{ApiKeyEntry, ApiKeyPlace, ApiKeysPlan, ForwardingHeader, IdentitySource};

/// The chain of identities, and the proxies that it believes.
pub(super) struct Identity {
    pub(super) chain: Vec<IdentitySource>,
    pub(super) proxies: TrustedProxies,
}

impl Identity {
    /// Whether every request is found to be somebody's.
    pub(super) fn always_finds(&self) -> bool {
        self.chain.iter().any(|source| matches!(source, IdentitySource::Ip { .. }))
    }
}

/// The chain of a file; addresses without one.
pub(super) fn identity(
    limiter: &View<'_>,
    tiers: &[String],
    problems: &mut Problems,
) -> Option<Identity> {
    let mut is_whole = true;
    let proxies = limiter.has("trustedProxies").then(|| {
        networks(limiter).unwrap_or_else(|| {
            is_whole = false;
            TrustedProxies::none()
        })
    });
    let mut reader = Reader { limiter, proxies, tiers, believed: None };
    let items = limiter.items("identity");
    if items.is_empty() {
        let ip = reader.address(None, problems);
        reader.unused(&[], problems);
        let identity = Identity { chain: vec![ip?], proxies: reader.trusted() };
        return is_whole.then_some(identity);
    }
    let mut chain = Vec::new();
    let mut words = Vec::new();
    for item in items {
        let Some(word) = word(&item) else {
            is_whole = false;
            continue;
        };
        if words.contains(&"ip") {
            problems.warn(
                item.place(),
                format!("`{word}` is never asked: every request has an address, and `ip` stands before it"),
                "move `ip` to the end of the list",
            );
        } else if words.contains(&word) && !matches!(word, "header" | "cookie" | "query") {
            problems.warn(item.place(), format!("`{word}` stands here twice"), "remove one");
        }
        words.push(word);
        match reader.source(word, &item, problems) {
            Some(source) => chain.push(source),
            None => is_whole = false,
        }
    }
    reader.unused(&words, problems);
    is_whole.then(|| Identity { chain, proxies: reader.trusted() })
}

/// The word of an item; `ipv4` is `ip`.
fn word<'a>(item: &Item<'a>) -> Option<&'a str> {
    let word = match item.view() {
        Some(view) => view.text("key")?,
        None => item.text()?,
    };
    match word {
        "ip" | "ipv4" => Some("ip"),
        "user" | "apiKey" | "header" | "cookie" | "query" => Some(word),
        _ => None,
    }
}

struct Reader<'a, 'b> {
    limiter: &'b View<'a>,
    /// `rateLimiter.trustedProxies`.
    proxies: Option<TrustedProxies>,
    tiers: &'b [String],
    /// The proxies of the address in the chain.
    believed: Option<TrustedProxies>,
}

impl Reader<'_, '_> {
    fn source(
        &mut self,
        word: &str,
        item: &Item<'_>,
        problems: &mut Problems,
    ) -> Option<IdentitySource> {
        let view = item.view();
        let is_value = matches!(word, "header" | "cookie" | "query");
        if word != "ip"
            && let Some(view) = &view
        {
            for key in ["header", "trustedProxies", "ipv4Prefix", "ipv6Prefix"] {
                if view.has(key) && !(is_value && key == "trustedProxies") {
                    let why = "it is about addresses, `key: ip`";
                    no_effect(view, key, &format!("on `key: {word}`"), why, problems);
                }
            }
        }
        match word {
            "ip" => self.address(view.as_ref(), problems),
            _ if is_value => values::value(word, item, problems).map(IdentitySource::Value),
            "user" => {
                let Some(jwt) = self.limiter.item("jwt") else {
                    problems.error(
                        item.place(),
                        "`user` is whoever a token names, and there is no `jwt`",
                        "add a section `jwt` with `jwksUrl`, `jwksFile`, `keyFile` or `secret`",
                    );
                    return None;
                };
                tokens::jwt(&jwt.view()?, self.tiers, problems).map(IdentitySource::User)
            }
            _ => {
                let Some(keys) = self.limiter.item("apiKeys") else {
                    problems.error(
                        item.place(),
                        "`apiKey` believes the keys of a list, and there is no `apiKeys`",
                        "add `apiKeys` with the `sha256` of each key",
                    );
                    return None;
                };
                api_keys(&keys, self.tiers, problems).map(IdentitySource::ApiKey)
            }
        }
    }

    fn address(
        &mut self,
        view: Option<&View<'_>>,
        problems: &mut Problems,
    ) -> Option<IdentitySource> {
        let header = view.and_then(|view| view.item("header"));
        let own = match view.filter(|view| view.has("trustedProxies")) {
            Some(view) => Some(networks(view)?),
            None => None,
        };
        let proxies = own.or_else(|| self.proxies.clone());
        let (header, trusted_proxies) = match (header, proxies) {
            (Some(header), Some(proxies)) => (Some(forwarding(header.text()?)?), proxies),
            (Some(header), None) => {
                problems.warn(
                    header.place(),
                    "whoever connects can write this header, and no `trustedProxies` are listed: \
                     it is believed of loopback alone, and for all others the address they \
                     connect from counts",
                    "list the proxies in front: `trustedProxies: [10.0.0.0/8]`, or `[loopback]` \
                     if that is what is meant",
                );
                let loopback = TrustedProxies::parse(["loopback"]).ok()?;
                (Some(forwarding(header.text()?)?), loopback)
            }
            (None, Some(proxies)) => (Some(ForwardingHeader::XForwardedFor), proxies),
            (None, None) => (None, TrustedProxies::none()),
        };
        self.believed = Some(trusted_proxies.clone());
        let prefix = |key: &str, default: u8| match view {
            Some(view) => view.whole(key)?.try_into().ok(),
            None => Some(default),
        };
        Some(IdentitySource::Ip {
            trusted_proxies,
            header,
            v4_prefix: prefix("ipv4Prefix", 32)?,
            v6_prefix: prefix("ipv6Prefix", 64)?,
        })
    }

    /// Whose forwarding headers are passed on: of those that the identity believes.
    fn trusted(self) -> TrustedProxies {
        self.believed.or(self.proxies).unwrap_or_else(TrustedProxies::none)
    }

    /// What is written down and never asked.
    fn unused(&self, words: &[&str], problems: &mut Problems) {
        for (key, word) in [("jwt", "user"), ("apiKeys", "apiKey")] {
            if self.limiter.has(key) && !words.contains(&word) {
                problems.warn(
                    self.limiter.place_of_key(key),
                    format!("`{key}` has no effect: nobody is identified by it"),
                    format!("write `identity: [{word}, ip]`, or remove it"),
                );
            }
        }
    }
}

fn forwarding(name: &str) -> Option<ForwardingHeader> {
    let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
    Some(match name.as_str() {
        "x-forwarded-for" => ForwardingHeader::XForwardedFor,
        "forwarded" => ForwardingHeader::Forwarded,
        _ => ForwardingHeader::Single(name),
    })
}

pub(super) fn networks(view: &View<'_>) -> Option<TrustedProxies> {
    let items = view.items("trustedProxies");
    let texts = items.iter().map(Item::text).collect::<Option<Vec<_>>>()?;
    TrustedProxies::parse(texts).ok()
}

fn api_keys(item: &Item<'_>, tiers: &[String], problems: &mut Problems) -> Option<ApiKeysPlan> {
    let (place, items) = match item.view() {
        Some(view) => {
            let place = match view.item("scheme") {
                Some(scheme) => ApiKeyPlace::Authorization(scheme.text()?.to_owned()),
                None => {
                    let name = HeaderName::from_bytes(view.text("header")?.as_bytes());
                    ApiKeyPlace::Header(name.ok()?)
                }
            };
            (place, view.items("keys"))
        }
        None => (ApiKeyPlace::Usual, item.items()),
    };
    let mut keys: Option<Vec<ApiKeyEntry>> = Some(Vec::new());
    let mut digests = HashMap::new();
    for item in items {
        let view = item.view();
        if let Some(digest) = view.as_ref().and_then(|view| view.item("sha256")) {
            let text = digest.text().unwrap_or_default().to_ascii_lowercase();
            if let Some(first) = digests.insert(text, digest.place().path) {
                problems.error(
                    digest.place(),
                    format!("this key stands here already ({first}), perhaps in another tier"),
                    "remove one of the two",
                );
            }
        }
        let key = view.and_then(|view| api_key(&view, tiers, problems));
        keys = keys.zip(key).map(|(mut keys, key)| {
            keys.push(key);
            keys
        });
    }
    Some(ApiKeysPlan { place, keys: keys? })
}

fn api_key(view: &View<'_>, tiers: &[String], problems: &mut Problems) -> Option<ApiKeyEntry> {
    let sha256 = view.text("sha256")?.to_ascii_lowercase();
    let tier = match view.item("tier") {
        None => None,
        Some(item) => {
            let name = item.text()?;
            let tier = tiers.iter().position(|tier| tier == name);
            if tier.is_none() {
                let cure = match tiers {
                    [] => "add it to `tiers`".to_owned(),
                    tiers => {
                        format!("the tiers are {}; add it, or name one of them", tiers.join(", "))
                    }
                };
                let what = format!("there is no tier `{}`", item.shown());
                problems.error(item.place(), what, cure);
                return None;
            }
            tier
        }
    };
    Some(ApiKeyEntry { sha256, tier })
}
