//! Builds a plan from the values in a file.
//!
//! Reading continues after a problem, so one run reports all problems.

mod context;
mod costs;
mod decision_api;
mod identity;
mod levels;
mod limits;
mod llm;
mod options;
mod paths;
pub(crate) mod policy;
mod preflights;
mod quotas;
mod routes;
mod server;
mod settling;
mod store;
mod subjects;
mod target;
mod tenants;
pub(crate) mod tenants_file;
mod tokens;

use std::cell::RefCell;

use http::StatusCode;
use tollgate::denial::{Members, Reason};
use tollgate::headers::HeaderOptions;
use tollgate::limit::OnMissingKey;

use self::context::FileContext;
use self::identity::Identity;
use crate::code;
use crate::file::tables::{File, RateLimiter};
use crate::plan::{Plan, StorePlan};
use crate::yaml::problem::{Checked, Reported};
use crate::yaml::typed::{Either, values};

pub(crate) fn plan(root: &File, has_admin_token: bool) -> Checked<Plan> {
    let limiter = root.rate_limiter.get()?;
    let store = store::store(limiter);
    let is_cluster = store.as_ref().is_ok_and(StorePlan::is_cluster);
    let can_fail = !matches!(store, Ok(StorePlan::Memory { .. }));
    let an_api_queues = limiter.an_api_queues();
    let per_policy = limiter.headers.get().is_ok_and(|headers| headers.per_policy);
    let names = context::Names::new(per_policy);
    let levels = levels::names(limiter);
    let tenants = tenants::whose(limiter, &levels);
    let combined = RefCell::default();
    let file = FileContext {
        limiter,
        can_fail,
        is_cluster,
        an_api_queues,
        levels,
        combined,
        tenants,
        names,
    };

    let tiers = tiers(limiter)?;
    let limits = limits::limits(&file);
    let routes = routes::routes(root, &file, &limits);
    let identity = identity::identity(limiter, &tiers);
    let paths = paths::rules(limiter);
    let exempt = paths::exempt(limiter, paths);
    let preflights = preflights::preflights(&file);
    let listen = server::listeners(root, limiter);
    let status_path = paths::status_path(limiter, &listen);
    let forward_auth = server::forward_auth(limiter);
    if let Ok(admin) = limiter.admin.get() {
        server::check_admin(admin.address, has_admin_token, &listen, limiter);
    }
    let rate_limits = server::rate_limits(limiter);
    let decision_api = decision_api::decision_api(&file);
    server::check_only_rate_limits(root, limiter);
    let chain = identity.as_ref().map(|it| &*it.chain).map_err(|reported| *reported);
    let levels = chain.and_then(|chain| levels::levels(&file, chain));
    let lists = subjects::lists(limiter, chain);
    if let (Ok(routes), Ok(levels)) = (&routes, &levels) {
        levels::check_bodies(limiter, levels, routes);
    }
    let tenants = match &routes {
        Ok(routes) => {
            levels::warn_of_unused(&file, routes);
            tenants::tenants(&file, &tiers, store.as_ref().map_err(|it| *it), routes)
        }
        Err(reported) => Err(*reported),
    };
    let on_missing_key = on_missing_key(limiter, identity.as_ref().ok());

    let identity = identity?;
    let (deny, allow) = lists?;
    let (on_missing_key, missing_key_status) = on_missing_key?;
    if on_missing_key == OnMissingKey::Deny
        && !identity.always_finds()
        && let Ok(routes) = &routes
    {
        levels::check_clients(&file, routes);
    }
    Ok(Plan {
        listen,
        forward_auth: forward_auth?,
        rate_limits: rate_limits?,
        decision_api: decision_api?,
        admin: limiter.admin.value()?,
        timeouts: limiter.timeouts.value()?,
        max_tunnels: limiter.max_tunnels.value()?,
        trusted_proxies: identity.proxies,
        paths: paths?,
        routes: routes?,
        exempt: exempt?,
        preflights: preflights?,
        status_path: status_path?,
        grpc: values(limiter.grpc.items()?)?.into(),
        identity: identity.chain,
        levels: levels?,
        on_missing_key,
        missing_key_status,
        tiers,
        tenants: tenants?,
        deny,
        allow,
        waiting: limiter.waiting.value()?,
        store: store?,
        headers: headers(limiter)?,
        members: members(limiter)?,
        log: limiter.log.value()?,
        access_log: limiter.access_log.value()?,
        tracing: limiter.tracing.value()?,
        files: Vec::new(),
    })
}

fn tiers(limiter: &RateLimiter) -> Checked<Vec<String>> {
    let Some(tiers) = limiter.tiers.there() else { return Ok(Vec::new()) };
    let names: Vec<_> = tiers.quotas.all.iter().map(|(name, _)| name.clone()).collect();
    if names.len() > MOST_TIERS {
        return Err(limiter.tiers.name().error(
            code::TOO_MANY,
            format!("{} tiers are more than {MOST_TIERS}", names.len()),
            "write each customer's own numbers into `tenants`",
        ));
    }
    Ok(names)
}

/// Each tier has a policy for each route and api.
const MOST_TIERS: usize = 64;

/// The action for requests without a client, and the status of rejections.
fn on_missing_key(
    limiter: &RateLimiter,
    identity: Option<&Identity>,
) -> Checked<(OnMissingKey, StatusCode)> {
    if limiter.on_missing_key.is_set() && identity.is_some_and(Identity::always_finds) {
        limiter.on_missing_key.name().warn(
            code::NEVER_MISSING,
            "`onMissingKey` has no effect: every request has an address",
            "remove it, or remove `ip` from `identity`",
        );
    }
    let section = match limiter.on_missing_key.get()? {
        Either::One(word) => return Ok((*word, Reason::MissingKey.status())),
        Either::Other(section) => section,
    };
    let status = StatusCode::from_u16(section.deny.value()?).map_err(|_| Reported)?;
    if status == StatusCode::TOO_MANY_REQUESTS {
        return Err(section.deny.error(
            code::INVALID_VALUE,
            "429 means that waiting helps, but it does not help a request without a client",
            "write 401 or 403",
        ));
    }
    Ok((OnMissingKey::Deny, status))
}

fn headers(limiter: &RateLimiter) -> Checked<HeaderOptions> {
    let keys = limiter.headers.get()?;
    let headers = HeaderOptions::all().ratelimit(keys.rate_limit);
    let headers = headers.x_ratelimit(keys.x_rate_limit).retry_jitter(keys.retry_jitter);
    Ok(if keys.per_policy { headers.x_ratelimit_by_policy() } else { headers })
}

fn members(limiter: &RateLimiter) -> Checked<Members> {
    let mut members = Members::new();
    let Some(response) = limiter.response.get()? else { return Ok(members) };
    let Some(texts) = response.members.get()? else { return Ok(members) };
    for (name, item) in &texts.texts.all {
        members = members.with(name, item.get()?).map_err(|_| Reported)?;
    }
    Ok(members)
}
