//! Tenants with their own numbers, and their files.

use std::rc::Rc;

use super::context::{FileContext, is_bucket};
use super::identity;
use super::policy::{self, QuotaKeys};
use super::quotas;
use super::store;
use crate::code;
use crate::file::format;
use crate::file::tables::{
    RateLimiter, TenantOrUnlimited, Tenants, TenantsFile, TenantsHttp, TenantsRedis,
};
use crate::files;
use crate::plan::{
    RedisPlan, Route, StorePlan, TenantQuota, TenantRules, TenantSource, TenantTable, TenantsPlan,
    Whose,
};
use crate::yaml::place::{Place, join};
use crate::yaml::problem::{Checked, Problems, Reported};
use crate::yaml::tree::{self, Value};
use crate::yaml::typed::{Either, Input, Text as _, ValueType as _, all};

/// Returns the owners in each entry of `tenants`.
pub(super) fn whose(limiter: &RateLimiter, levels: &[String]) -> Vec<Whose> {
    let sections = limiter.tenants.items().unwrap_or_default();
    let of = |section: &Tenants| match &*section.of.get().ok()?.value {
        CLIENT => Some(Whose::Client),
        level => levels.iter().position(|name| name == level).map(Whose::Group),
    };
    // An unknown level is reported later, so there is no plan.
    sections
        .iter()
        .map(|item| item.get().ok().and_then(|it| of(it)))
        .map(|it| it.unwrap_or(Whose::Everybody))
        .collect()
}

const CLIENT: &str = "client";

/// Must be called after the limits are read.
pub(super) fn tenants(
    file: &FileContext<'_>,
    tiers: &[String],
    store: Checked<&StorePlan>,
    routes: &[Route],
) -> Checked<Vec<TenantsPlan>> {
    let items = file.limiter.tenants.items()?;
    all(items.iter().enumerate(), |(number, item)| {
        let section = item.get()?;
        let source = source(section, store);
        let of = file.tenants[number];
        if of == Whose::Everybody {
            let shown = &section.of.get()?.shown;
            let mut known = vec![CLIENT];
            known.extend(file.levels.iter().map(String::as_str));
            return Err(section.of.error(
                code::UNKNOWN_LEVEL,
                format!("there is no level `{shown}`"),
                format!("write one of {}, or add it to `levels`", known.join(", ")),
            ));
        }
        if file.tenants[..number].contains(&of) {
            let shown = &section.of.get()?.shown;
            return Err(section.of.error(
                code::TENANT_SOURCE,
                format!("`{shown}` has two sources of numbers"),
                "keep one of the two",
            ));
        }
        let tiers = (of == Whose::Client).then(|| tiers.to_vec());
        let rules = TenantRules::of(number, tiers, routes.iter().map(|route| &route.limits));
        let rules = rules.ok_or_else(|| {
            let (what, cure) = match of {
                Whose::Client => {
                    ("`client` has no quota".to_owned(), "add `client.limit`".to_owned())
                }
                _ => {
                    let level = section.of.get().map(|it| it.shown.clone()).unwrap_or_default();
                    let cure = format!("add `levels: {{{level}: {{limit: …}}}}` to `client`");
                    (format!("`client.levels` has no quota of `{level}`"), cure)
                }
            };
            section.of.location().error(
                code::NO_BASE_QUOTA,
                format!("these numbers would replace no quota: {what}"),
                format!("{cure}, the quota of tenants without their own numbers"),
            )
        })?;
        let source = source?;
        if let TenantSource::File(file) = &source {
            let (file, rules) = (file.clone(), rules.clone());
            section.file.location().check_without_reload(move || {
                files::tenants(&file, &rules).err().unwrap_or_default()
            });
            section.timeout.no_effect("with `file`", "the file is in memory");
        }
        Ok(TenantsPlan {
            of,
            source,
            ttl: section.ttl.value()?,
            timeout: section.timeout.value()?,
            capacity: section.capacity.value()?,
            on_failure: section.on_failure.value()?,
            on_unknown: section.on_unknown.value()?,
            rules,
        })
    })
}

fn source(section: &Tenants, store: Checked<&StorePlan>) -> Checked<TenantSource> {
    if let Some(file) = section.file.value()? {
        return Ok(TenantSource::File(file));
    }
    if let Some(http) = section.http.get()? {
        return self::http(http);
    }
    match section.redis.get()? {
        Some(redis) => self::redis(redis, store),
        None => Err(section.info.location.error(
            code::TENANT_SOURCE,
            "the source of the numbers is missing",
            "write `file: tenants.yaml`, `http: https://…/{tenant}` or `redis: {key: …}`",
        )),
    }
}

fn http(section: &TenantsHttp) -> Checked<TenantSource> {
    let url = section.url.value()?;
    let token = section.token.value()?;
    if token.is_some() && url.starts_with("http://") && !is_local(&url) {
        section.url.warn(
            code::CLEARTEXT,
            "the token is sent without encryption",
            "write https://, unless only trusted machines see this connection",
        );
    }
    Ok(TenantSource::Http { url, token })
}

fn is_local(url: &str) -> bool {
    let host = url.trim_start_matches("http://");
    ["localhost", "127.0.0.1", "[::1]"].iter().any(|local| {
        host.strip_prefix(local)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '/', '?']))
    })
}

fn redis(section: &TenantsRedis, store: Checked<&StorePlan>) -> Checked<TenantSource> {
    let key = section.key.value()?;
    let server = match (section.url.value()?, store?) {
        (Some(url), _) => store::check_url(&section.url, RedisPlan::of_url(url))?,
        (None, StorePlan::Redis(redis)) => redis.clone(),
        (None, StorePlan::Memory(_)) => {
            return Err(section.info.location.error(
                code::TENANT_SOURCE,
                "there is no Redis to read: quotas are stored in memory",
                "add `url: redis://…`, or `store: {redis: …}`",
            ));
        }
    };
    Ok(TenantSource::Redis { server, key })
}

/// Reads a file with tenants, and reports its problems.
pub(crate) fn table(
    text: &str,
    rules: &TenantRules,
    problems: &Rc<Problems>,
) -> Checked<TenantTable> {
    let root = tree::parse_data(text, MOST_VALUES, problems).ok_or(Reported)?;
    let Some(root) = root else {
        return Err(problems.error(code::EMPTY_FILE, Place::START, "the file is empty", CURE));
    };
    TenantsFile::read(Input::root(&root, problems))?.tenants.get()?;
    let pairs = match root.get(TENANTS).map(|tenants| &tenants.value) {
        Some(Value::Map(pairs)) => &pairs[..],
        _ => &[],
    };
    let mut table = TenantTable::with_capacity(pairs.len());
    for pair in pairs {
        let path = join(TENANTS, &pair.key);
        let input = Input::at(&pair.node, &path, problems);
        if let Err(cure) = format::TenantName::parse(&pair.key) {
            input.error(code::INVALID_VALUE, "the name is not valid", cure);
            continue;
        }
        if let Ok(quota) = tenant(input, rules) {
            table.insert(pair.key.as_str().into(), quota);
        }
    }
    if problems.has_errors() { Err(Reported) } else { Ok(table) }
}

const TENANTS: &str = "tenants";
const CURE: &str = "write `tenants: {acme: {limit: 5000, windowSeconds: 60}}`";

/// Enough for about 400 000 tenants.
const MOST_VALUES: usize = 2_000_000;

/// Reads one tenant's numbers, for example from JSON. The error describes the first problem.
pub(crate) fn one(text: &str, rules: &TenantRules) -> Result<TenantQuota, String> {
    let problems = Rc::new(Problems::default());
    let root = tree::parse_first(text, &problems).flatten();
    let quota = root.ok_or(Reported).and_then(|root| tenant(Input::root(&root, &problems), rules));
    // An unknown key may be misspelled, so the other keys are not used without it.
    let quota = quota.and_then(|it| if problems.has_errors() { Err(Reported) } else { Ok(it) });
    quota.map_err(|_| {
        let first = problems.take().into_iter().next();
        first.map_or_else(|| "it is empty".to_owned(), |it| format!("{}; {}", it.what, it.cure))
    })
}

fn tenant(input: Input<'_>, rules: &TenantRules) -> Checked<TenantQuota> {
    let tenant = match TenantOrUnlimited::read(input)? {
        Either::One(()) => return Ok(TenantQuota::Unlimited),
        Either::Other(tenant) => tenant,
    };
    if tenant.tier.is_set() {
        let Some(tiers) = &rules.tiers else {
            let cure = "write `limit` and `windowSeconds`";
            return Err(tenant.tier.name().error(
                code::INVALID_VALUE,
                "only clients have tiers",
                cure,
            ));
        };
        let tier = identity::tier(&tenant.tier, tiers)?;
        return tier.map(TenantQuota::Tier).ok_or(Reported);
    }
    if !tenant.limit.is_set() && !tenant.info.has_unknown {
        let cure = "add `limit: …`, units per window, or `tier: …`";
        return Err(tenant.info.location.error(code::NO_QUOTA, "`limit` is missing", cure));
    }
    let quotas = quotas::of_section(tenant.quota(), &tenant.also, rules.algorithm)?;
    if quotas.len() > rules.most {
        return Err(tenant.also.name().error(
            code::NO_BASE_QUOTA,
            format!("{} quotas at the same time are more than `client` has", quotas.len()),
            "add as many quotas to `client.also`, for tenants without their own numbers",
        ));
    }
    for (number, (keys, quota)) in quotas.iter().enumerate() {
        for base in rules.bases.iter().filter(|base| base.number == number) {
            let policy = base.policy_of(*quota).map_err(|error| policy::refused(&error, *keys))?;
            if policy.capacity() < base.cost {
                return Err(too_small(&policy, base.cost, *keys));
            }
        }
    }
    Ok(TenantQuota::Quotas(quotas.into_iter().map(|(_, quota)| quota).collect()))
}

fn too_small(policy: &tollgate::Policy, cost: u64, keys: QuotaKeys<'_>) -> Reported {
    let is_bucket = policy.algorithm().is_some_and(is_bucket);
    let key = if is_bucket && keys.window.burst.is_set() { "burst" } else { "limit" };
    keys.amount.error(
        code::COST_ABOVE_CAPACITY,
        format!(
            "policy `{}` would grant at most {} units at the same time, but a request costs {cost}",
            policy.name().escape_debug(),
            policy.capacity()
        ),
        format!("raise `{key}`, or lower the request's cost with `costs`"),
    )
}
