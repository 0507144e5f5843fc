//! Tenants with their own numbers, and their files.

use super::context::FileContext;
use super::store;
use super::tenants_file;
use crate::code;
use crate::file::tables::{RateLimiter, Tenants, TenantsHttp, TenantsRedis};
use crate::plan::{RedisPlan, Route, StorePlan, TenantRules, TenantSource, TenantsPlan, Whose};
use crate::yaml::problem::Checked;
use crate::yaml::typed::all;

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
                tenants_file::tenants(&file, &rules).err().unwrap_or_default()
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
