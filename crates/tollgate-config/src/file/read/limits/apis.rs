//! Limits for some requests: the entries of `apis`.

use std::sync::Arc;

use tollgate::policy::Algorithm;

use super::super::context::is_queue;
use super::super::levels;
use super::super::quotas::{self, QUOTA_KEYS, Quotas};
use super::super::{paths, policy};
use super::reader::{LimitReader, NamedLimit};
use crate::code;
use crate::file::tables::Api;
use crate::plan::{ApiPlan, PathMatch, Whose};
use crate::yaml::problem::Checked;
use crate::yaml::typed::{Item, Key, Location};

pub(super) fn apis<'a>(
    apis: &'a Key<Option<Vec<Item<Api>>>>,
    reader: &LimitReader<'a, '_>,
    client: Option<&Quotas<'a>>,
) -> Arc<[ApiPlan]> {
    let mut found: Vec<(ApiPlan, Location)> = Vec::new();
    for keys in apis.items().unwrap_or_default().iter().flat_map(Item::get) {
        if let Ok(api) = api(keys, reader, client) {
            found.push((api, keys.path.location()));
        }
    }
    warn_of_shadowed(&found);
    found.into_iter().map(|(api, _)| api).collect()
}

fn api<'a>(
    keys: &'a Api,
    reader: &LimitReader<'a, '_>,
    client: Option<&Quotas<'a>>,
) -> Checked<ApiPlan> {
    let section = keys.section();
    let name = keys.identifier.get().map(String::as_str);
    if let Ok(name) = name {
        reader.file.names.take(name, &keys.identifier.location());
    }
    let path = keys.path.get();
    let path = path.and_then(|path| paths::path(path, &keys.path.location()));
    let methods = paths::methods(&keys.method);
    let whose = levels::owner(&keys.per, reader.file)?;
    if !keys.share.is_set() && !quotas::is_in(section) {
        let named = NamedLimit { name, whose, algorithm: None };
        let options = reader.options(section, named);
        let limit = options?.limit(Vec::new(), Vec::new())?;
        return Ok(ApiPlan { methods: methods?, path: path?, limit, llm: None });
    }
    let algorithm = policy::algorithm(section.rules, reader.file);
    let named = NamedLimit { name, whose, algorithm: algorithm.ok() };
    let options = reader.options(section, named);
    let quotas = algorithm.and_then(|algorithm| quotas(keys, algorithm, client));
    let (algorithm, mut quotas, name) = (algorithm?, quotas?, name?);
    if whose == Whose::Everybody {
        // A quota that all clients share has no tiers.
        quotas.tiers.clear();
    }
    let plans = quotas.plans(name, algorithm, keys.share.value()?, &reader.file.names)?;
    let levels = levels::plans(&section.rules.levels, name, whose, algorithm, reader.file)?;
    let mut limit = options?.limit(plans, levels)?;
    if let Some(share) = keys.share.value()? {
        limit.tenants = reader.file.tenants_of(whose, Some(share));
    }
    let (methods, path) = (methods?, path?);
    // The limit applies to paths that match both the api and the route.
    let narrower = if path.covers(reader.path) { reader.path } else { &path };
    reader.check_costs(&limit, section, &methods, narrower);
    Ok(ApiPlan { methods, path, limit, llm: None })
}

/// An api's quotas. For a share, these are the full quotas of `client` and its tiers.
fn quotas<'a>(
    keys: &'a Api,
    algorithm: Algorithm,
    client: Option<&Quotas<'a>>,
) -> Checked<Quotas<'a>> {
    let section = keys.section();
    if !keys.share.is_set() {
        let also = &section.rules.also;
        let everybody = quotas::of_section(section.quota(), also, algorithm)?;
        return Ok(Quotas { everybody, tiers: Vec::new() });
    }
    let Some(client) = client else {
        return Err(keys.share.name().error(
            code::NO_BASE_QUOTA,
            "`client` has no quota that this could be a share of",
            format!("write a section `client` with a `limit`, or {QUOTA_KEYS} here"),
        ));
    };
    if let Some(quota) = client.all().find(|quota| quota.calendar().is_some())
        && algorithm != Algorithm::FixedWindowCounter
    {
        return Err(keys.share.error(
            code::CALENDAR,
            format!(
                "this is a part of a quota per {}, which a {algorithm} cannot count",
                quota.span()
            ),
            format!("write `strategy: fixed_window_counter`, or {QUOTA_KEYS}"),
        ));
    }
    let quotas = client.shared_by(section.quota(), algorithm);
    if quotas.are_several() && is_queue(algorithm) {
        return Err(keys.share.name().error(
            code::NOT_QUEUED,
            "a queue has one rate, and `client` has several quotas at the same time",
            "write `mode: meter`, another `strategy`, or a `limit` instead of the share",
        ));
    }
    Ok(quotas)
}

fn warn_of_shadowed(apis: &[(ApiPlan, Location)]) {
    let mut comparisons = 0;
    for (index, (api, location)) in apis.iter().enumerate() {
        // Comparing thousands of expressions with thousands of paths would take minutes.
        comparisons += index;
        if comparisons > MOST_COMPARISONS {
            return;
        }
        let earlier = apis[..index].iter().find(|(earlier, _)| {
            earlier.methods.cover(&api.methods) && earlier.path.covers(&api.path)
        });
        if let Some((earlier, _)) = earlier {
            location.warn(
                code::UNREACHABLE,
                format!(
                    "this is never reached: `{}` before it matches every such request",
                    earlier.limit.name
                ),
                if api.path == PathMatch::any() || earlier.path == api.path {
                    "only the first match counts: remove either"
                } else {
                    "only the first match counts: move the narrower path up"
                },
            );
        }
    }
}

/// Takes a few seconds at most.
const MOST_COMPARISONS: usize = 1_000_000;
