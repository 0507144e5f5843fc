//! Levels above clients, and where requests have their groups.

use tollgate::policy::Algorithm;

use super::context::{FileContext, is_queue};
use super::{identity, policy};
use crate::code;
use crate::file::format;
use crate::file::tables::{ApiKey, GroupKey, Level, LimitLevels, RateLimiter};
use crate::plan::{
    GroupSource, IdentitySource, KeyPart, LevelPlan, LimitPlan, Parameter, QuotaPlan, Route,
    RouteLimits, ValuePlan, Whose,
};
use crate::yaml::problem::Checked;
use crate::yaml::typed::{Item, Key, Location, Text as _, all};

/// The names of the levels, in order.
pub(super) fn names(limiter: &RateLimiter) -> Vec<String> {
    let levels = limiter.levels.there().map(|levels| &*levels.levels.all);
    levels.unwrap_or_default().iter().map(|(name, _)| name.clone()).collect()
}

/// The number of the level with this name.
pub(super) fn number(levels: &[String], name: &str, location: &Location) -> Checked<usize> {
    levels.iter().position(|level| level == name).ok_or_else(|| {
        let cure = match levels {
            [] => format!("add `levels: {{{name}: apiKey}}` to `rateLimiter`"),
            levels => format!("the levels are {}; add it to `levels`", levels.join(", ")),
        };
        location.error(code::UNKNOWN_LEVEL, format!("there is no level `{name}`"), cure)
    })
}

/// Who shares an api's quota. All combinations and addresses are groups of their own levels.
pub(super) fn owner(per: &Key<Vec<Item<format::Owner>>>, file: &FileContext<'_>) -> Checked<Whose> {
    let items = per.get()?;
    let mut parts = all(items, |item| {
        Ok(match item.get()?.as_str() {
            "everyone" if items.len() > 1 => {
                let what = "`everyone` is in a list, but all clients together have one quota";
                return Err(item.location.error(
                    code::EXCLUSIVE_KEYS,
                    what,
                    "remove it, or write `per: everyone`",
                ));
            }
            "everyone" => None,
            "client" => Some(KeyPart::Client),
            "ip" => Some(KeyPart::Address),
            level => Some(KeyPart::Group(number(&file.levels, level, &item.location)?)),
        })
    })?;
    parts.sort_unstable();
    parts.dedup();
    match parts[..] {
        [None] => return Ok(Whose::Everybody),
        [Some(KeyPart::Client)] => return Ok(Whose::Client),
        _ => {}
    }
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    let mut combined = file.combined.borrow_mut();
    let known = combined.iter().position(|known| *known == parts).unwrap_or_else(|| {
        combined.push(parts);
        combined.len() - 1
    });
    Ok(Whose::Group(file.levels.len() + known))
}

/// The levels, followed by the combinations of `per`.
pub(super) fn levels(file: &FileContext<'_>, chain: &[IdentitySource]) -> Checked<Vec<LevelPlan>> {
    let mut levels = declared(file.limiter, chain)?;
    for parts in file.combined.borrow().iter() {
        let name = |part: &KeyPart| match part {
            KeyPart::Client => "client",
            KeyPart::Address => "ip",
            KeyPart::Group(level) => file.levels.get(*level).map_or("group", |name| name),
        };
        let name = parts.iter().map(name).collect::<Vec<_>>().join(" and ");
        levels.push(LevelPlan { name, sources: vec![GroupSource::Parts(parts.clone())] });
    }
    Ok(levels)
}

fn declared(limiter: &RateLimiter, chain: &[IdentitySource]) -> Checked<Vec<LevelPlan>> {
    let names = names(limiter);
    check_api_keys(limiter, &names);
    let Some(section) = limiter.levels.get()? else { return Ok(Vec::new()) };
    let levels = &section.levels.all;
    if levels.len() > MOST {
        return Err(limiter.levels.name().error(
            code::TOO_MANY,
            format!("{} levels are more than {MOST}", levels.len()),
            "a level is for example all teams, not one of them",
        ));
    }
    all(levels, |(name, item)| {
        let sources =
            all(item.get()?, |item| source(limiter, chain, name, item.get()?, &item.location));
        Ok(LevelPlan { name: name.clone(), sources: sources? })
    })
}

/// Each request looks for its group on each level.
const MOST: usize = 8;

fn api_keys(limiter: &RateLimiter) -> impl Iterator<Item = &ApiKey> {
    let keys = limiter.api_keys.there().and_then(|section| section.keys.get().ok());
    keys.into_iter().flatten().filter_map(|item| item.get().ok()).map(|key| &**key)
}

fn check_api_keys(limiter: &RateLimiter, names: &[String]) {
    for groups in api_keys(limiter).filter_map(|key| key.levels.there()) {
        for (name, item) in &groups.groups.all {
            let _ = number(names, name, &item.location);
        }
    }
}

fn source(
    limiter: &RateLimiter,
    chain: &[IdentitySource],
    level: &str,
    section: &Level,
    location: &Location,
) -> Checked<GroupSource> {
    let key = section.key.get()?;
    let named = || identity::named(&key.text, &section.name, location);
    match key.value {
        GroupKey::Everyone => Ok(GroupSource::Everyone),
        GroupKey::Body => Ok(GroupSource::Body(named()?.text.clone())),
        GroupKey::ApiKey => {
            let header = chain.iter().find_map(|source| match source {
                IdentitySource::ApiKey(keys) => Some(keys.header.clone()),
                _ => None,
            });
            let header = header.ok_or_else(|| {
                location.error(
                    code::EMPTY_LEVEL,
                    format!(
                        "no request has a group on the level `{level}`: `identity` has no API keys"
                    ),
                    "add `apiKeys`, and `apiKey` to `identity`, or find the group elsewhere",
                )
            })?;
            let group = |key: &ApiKey| {
                let (_, item) =
                    key.levels.there()?.groups.all.iter().find(|(name, _)| name == level)?;
                Some((key.sha256.value().ok()?, item.get().ok()?.clone()))
            };
            let groups: Vec<_> = api_keys(limiter).filter_map(group).collect();
            if groups.is_empty() {
                return Err(location.error(
                    code::EMPTY_LEVEL,
                    format!("no request has a group on the level `{level}`: no API key has one"),
                    format!("write `levels: {{{level}: …}}` at the keys in `apiKeys`"),
                ));
            }
            Ok(GroupSource::ApiKey { header, groups })
        }
        GroupKey::Claim => {
            let name = named()?.text.clone();
            if !chain.iter().any(|source| matches!(source, IdentitySource::User(_))) {
                return Err(location.error(
                    code::EMPTY_LEVEL,
                    format!(
                        "no request has a group on the level `{level}`: `identity` has no tokens"
                    ),
                    "add `jwt`, and `user` to `identity`, or find the group elsewhere",
                ));
            }
            Ok(GroupSource::Claim(name))
        }
        GroupKey::Header => {
            let name = named()?;
            let proxies = section.trusted_proxies.value()?;
            if proxies.is_none() {
                return Err(location.error(
                    code::FORGEABLE,
                    format!(
                        "clients can write any value into the header `{}`, and choose another \
                         group's quota or none",
                        name.shown
                    ),
                    "list the proxies that set it in `trustedProxies`",
                ));
            }
            let header = format::Header::parse(&name.text).map_err(|cure| {
                section.name.error(code::INVALID_VALUE, "expected the name of a header", cure)
            })?;
            Ok(GroupSource::Header(ValuePlan { parameter: Parameter::Header(header), proxies }))
        }
    }
}

/// A limit's quotas for the groups of levels.
pub(super) fn plans(
    keys: &Key<Option<Box<LimitLevels>>>,
    limit: &str,
    whose: Whose,
    algorithm: Algorithm,
    file: &FileContext<'_>,
) -> Checked<Vec<(Whose, QuotaPlan)>> {
    let Some(section) = keys.get()? else { return Ok(Vec::new()) };
    if whose == Whose::Everybody {
        return Err(keys.name().error(
            code::EMPTY_LEVEL,
            "these quotas would be shared by groups of clients, but all clients share this limit",
            "move `levels` to `client`",
        ));
    }
    if is_queue(algorithm) {
        return Err(keys.name().error(
            code::NOT_QUEUED,
            "a queue has one rate, and `levels` adds another",
            "write `mode: meter`, or another `strategy`",
        ));
    }
    all(&section.levels.all, |(level, item)| {
        let number = number(&file.levels, level, &item.location)?;
        let keys = item.get()?.quota();
        let name = format!("{limit}/{level}");
        file.names.take_derived(&name, &item.location)?;
        let policy = policy::build(&name, policy::quota(keys, algorithm)?, algorithm, keys)?;
        Ok((Whose::Group(number), QuotaPlan::of(policy)))
    })
}

/// Reports limits by a field of the body where no body is read.
pub(super) fn check_bodies(limiter: &RateLimiter, levels: &[LevelPlan], routes: &[Route]) {
    let reads_body = |limit: &&LimitPlan| match limit.whose {
        Whose::Group(level) => levels.get(level).is_some_and(|level| level.reads_body(levels)),
        Whose::Everybody | Whose::Client => false,
    };
    let limits = || routes.iter().map(|route| &route.limits);
    let models = limits().flat_map(|it| &*it.apis).filter_map(|api| api.llm.as_ref());
    let everywhere = limits().flat_map(RouteLimits::everywhere);
    if let Some(limit) =
        everywhere.chain(models.flat_map(|llm| &llm.budgets)).find(|limit| reads_body(limit))
    {
        limiter.levels.name().error(
            code::NEEDS_TARGET,
            format!("`{}` would read the body of every request", limit.name.escape_debug()),
            "use a level with `key: body` only in `apis`",
        );
    }
    let limit = limits().flat_map(RouteLimits::all).find(|limit| reads_body(limit));
    if let Some(limit) = limit.filter(|_| limiter.forward_auth.is_set()) {
        limiter.forward_auth.name().error(
            code::NEEDS_TARGET,
            format!("`{}` needs the body, which no proxy sends here", limit.name.escape_debug()),
            "find the group in a header, or forward its requests with a target and without \
             `forwardAuth`",
        );
    }
}

/// A limit of a level skips requests without a group, so another limit must deny requests without a
/// client.
pub(super) fn check_clients(file: &FileContext<'_>, routes: &[Route]) {
    let limiter = file.limiter;
    // A combination applies to all requests.
    let is_combined = |whose| matches!(whose, Whose::Group(level) if level >= file.levels.len());
    let lets_pass = |met: Vec<&LimitPlan>| {
        let mut enforced = met.iter().filter(|limit| limit.enforces());
        enforced.clone().any(|limit| matches!(limit.whose, Whose::Group(_)))
            && !enforced.any(|limit| {
                (limit.whose == Whose::Client || is_combined(limit.whose))
                    && limit.charges().count() > 0
            })
    };
    if routes.iter().flat_map(|route| route.limits.met()).any(lets_pass) {
        limiter.llm.name().error(
            code::LLM_NO_KEY,
            "requests without a client would reach the model, because only levels limit them",
            "add `requestsPerMinute` to `llm`, a section `client`, or `ip` to `identity`",
        );
    }
}

/// Warns of levels that no limit uses.
pub(super) fn warn_of_unused(file: &FileContext<'_>, routes: &[Route]) {
    let combined = file.combined.borrow();
    let levels = file.limiter.levels.there().map(|levels| &*levels.levels.all);
    for (number, (name, item)) in levels.unwrap_or_default().iter().enumerate() {
        let mut limits = routes.iter().flat_map(|route| route.limits.all());
        if limits.all(|limit| limit.whose != Whose::Group(number))
            && !combined.iter().flatten().any(|part| *part == KeyPart::Group(number))
            && let Ok([first, ..]) = item.get().map(|items| &items[..])
        {
            first.location.warn(
                code::NO_EFFECT,
                format!("the level `{name}` has no effect: no limit has a quota for its groups"),
                format!("add `levels: {{{name}: …}}` to `client` or `llm`, or remove it"),
            );
        }
    }
}
