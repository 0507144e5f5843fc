mod apis;
mod reader;

use std::sync::Arc;

use self::reader::LimitReader;
use super::context::FileContext;
use super::quotas::{QUOTA_KEYS, Quotas};
use super::{costs, llm};
use crate::code;
use crate::file::tables::{Api, Policy as PolicyKeys, Route};
use crate::plan::{CostTable, PathMatch, RouteLimits, Whose};
use crate::yaml::typed::{Item, Key};

pub(super) struct Limits<'a> {
    pub(super) limits: RouteLimits,
    costs: Option<Arc<CostTable>>,
    /// The quotas of `client` and its tiers, for limits with a share.
    client: Option<Quotas<'a>>,
}

pub(super) fn limits<'a>(file: &FileContext<'a>) -> Limits<'a> {
    let limiter = file.limiter;
    let costs = costs::costs(&limiter.costs, None).ok();
    let mut limits = Limits { limits: RouteLimits::default(), costs, client: None };
    if limiter.tiers.is_set() && !limiter.client.is_set() {
        limiter.tiers.name().error(
            code::NO_BASE_QUOTA,
            "`tiers` needs `client`, the quota of clients without a tier",
            format!("add a section `client` with {QUOTA_KEYS}"),
        );
    }
    let keys = Keys { global: &limiter.global, client: &limiter.client, apis: &limiter.apis };
    let (own, client) = own(keys, "", &PathMatch::any(), &limits, file);
    if limiter.tiers.is_set() && own.client.as_ref().is_some_and(|client| client.quotas.is_empty())
    {
        limiter.tiers.name().error(
            code::NO_BASE_QUOTA,
            "`tiers` needs `client.limit`, the quota of clients without a tier",
            format!("add {QUOTA_KEYS} to `client`"),
        );
    }
    limits.limits = own;
    limits.client = client;
    if let Ok(Some(llm)) = llm::api(file) {
        limits.limits.apis = std::iter::once(&llm).chain(&*limits.limits.apis).cloned().collect();
    }
    limits
}

/// A route's own limits, completed with the limits in `rateLimiter`.
pub(super) fn of_route<'a>(
    route: &'a Route,
    name: &str,
    path: &PathMatch,
    outer: &Limits<'a>,
    file: &FileContext<'a>,
) -> RouteLimits {
    let keys = Keys { global: &route.global, client: &route.client, apis: &route.apis };
    let (own, _) = own(keys, &format!("{name}/"), path, outer, file);
    let outer = &outer.limits;
    RouteLimits {
        global: if route.global.is_set() { own.global } else { outer.global.clone() },
        client: if route.client.is_set() { own.client } else { outer.client.clone() },
        apis: if route.apis.is_set() {
            let llm = outer.apis.iter().filter(|api| api.llm.is_some());
            llm.chain(&*own.apis).cloned().collect()
        } else {
            Arc::clone(&outer.apis)
        },
    }
}

#[derive(Clone, Copy)]
struct Keys<'a> {
    global: &'a Key<Option<Box<PolicyKeys>>>,
    client: &'a Key<Option<Box<PolicyKeys>>>,
    apis: &'a Key<Option<Vec<Item<Api>>>>,
}

fn own<'a>(
    keys: Keys<'a>,
    prefix: &str,
    path: &PathMatch,
    outer: &Limits<'a>,
    file: &FileContext<'a>,
) -> (RouteLimits, Option<Quotas<'a>>) {
    let reader = LimitReader { path, costs: outer.costs.as_ref(), file };
    let one = |key: &'a Key<Option<Box<PolicyKeys>>>, whose| {
        let default = format!("{prefix}{}", key.key);
        reader.everywhere(key.there()?, &default, whose).ok()
    };
    let global = one(keys.global, Whose::Everybody);
    let (client, quotas) = one(keys.client, Whose::Client).unzip();
    let quotas = quotas.flatten();
    // A share refers to the nearest `client`.
    let quotas = quotas.or_else(|| outer.client.clone());
    let apis = apis::apis(keys.apis, &reader, quotas.as_ref());
    let global = global.map(|(limit, _)| Arc::new(limit));
    (RouteLimits { global, client: client.map(Arc::new), apis }, quotas)
}
