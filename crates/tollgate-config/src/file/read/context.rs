//! Context that several readers need.

use std::cell::RefCell;
use std::collections::HashMap;

use tollgate::limit::Mode;
use tollgate::policy::{Algorithm, LeakyMode};
use tollgate::{Policy, headers};

use crate::code;
use crate::file::tables::{Api, File, RateLimiter, Route};
use crate::plan::{KeyPart, TenantShare, Whose};
use crate::yaml::problem::Checked;
use crate::yaml::typed::{Item, Key, Location};

/// Settings that affect every policy.
pub(super) struct FileContext<'a> {
    pub(super) limiter: &'a RateLimiter,
    /// Whether the store can fail.
    pub(super) can_fail: bool,
    /// Whether different clients' keys may be on different servers.
    pub(super) is_cluster: bool,
    pub(super) an_api_queues: bool,
    /// The names of the levels.
    pub(super) levels: Vec<String>,
    /// The combinations of `per`, whose numbers follow those of the levels.
    pub(super) combined: RefCell<Vec<Vec<KeyPart>>>,
    /// The owners in each entry of `tenants`.
    pub(super) tenants: Vec<Whose>,
    pub(super) names: Names,
}

impl FileContext<'_> {
    /// The mode of limits without their own options.
    pub(super) fn mode(&self) -> Checked<Mode> {
        Ok(if self.limiter.shadow.value()? { Mode::Shadow } else { Mode::Reject })
    }

    /// The tenants whose numbers replace this owner's quotas.
    pub(super) fn tenants_of(
        &self,
        whose: Whose,
        share: Option<(u32, u32)>,
    ) -> Option<TenantShare> {
        let tenants = self.tenants.iter().position(|of| *of == whose)?;
        (whose != Whose::Everybody).then_some(TenantShare { tenants, share })
    }
}

/// The names of all policies, and where they are defined.
#[derive(Debug)]
pub(super) struct Names {
    taken: RefCell<HashMap<String, String>>,
    /// Whether the names are also part of header names.
    in_headers: bool,
}

impl Names {
    pub(super) fn new(in_headers: bool) -> Self {
        Self { taken: RefCell::default(), in_headers }
    }

    /// Reserves a name, because two policies with the same name would share their counters.
    pub(super) fn take(&self, name: &str, location: &Location) {
        let path = location.place.path.clone();
        let mut taken = self.taken.borrow_mut();
        if let Some(first) = taken.insert(name.to_owned(), path) {
            location.error(
                code::SAME_NAME,
                format!("`{}` is the name of another policy ({first})", name.escape_debug()),
                "give each a unique `identifier`, because counters belong to it",
            );
            return;
        }
        let own = headers::names_of(name).filter(|_| self.in_headers);
        let has_own = |other: &&String| *other != name && headers::names_of(other) == own;
        if own.is_some()
            && let Some(other) = taken.keys().find(has_own)
        {
            let (name, other) = (name.escape_debug(), other.escape_debug());
            location.error(code::SAME_HEADERS,
                format!("with `headers.perPolicy`, `{name}` has the same headers as `{other}`"),
                "choose an `identifier` that differs by more than upper case and special characters",
            );
        }
    }

    pub(super) fn take_derived(&self, name: &str, location: &Location) -> Checked<()> {
        if name.len() > Policy::MAX_NAME {
            let what = format!("the policy name `{}` is too long", name.escape_debug());
            let added = name.rfind('/').map_or(0, |slash| name.len() - slash);
            let most = Policy::MAX_NAME - added.min(Policy::MAX_NAME);
            let cure = format!("choose an `identifier` of at most {most} characters");
            return Err(location.error(code::POLICY_NAME, what, cure));
        }
        self.take(name, location);
        Ok(())
    }
}

pub(super) fn inherited<T: Clone>(own: &Key<Option<T>>, outer: &Key<T>) -> Checked<T> {
    own.value()?.map_or_else(|| outer.value(), Ok)
}

impl File {
    pub(super) fn has_target(&self, limiter: &RateLimiter) -> bool {
        self.target.is_set()
            || limiter.target.is_set()
            || limiter.all_routes().any(|route| route.target.is_set())
    }
}

impl RateLimiter {
    pub(super) fn all_routes(&self) -> impl Iterator<Item = &Route> {
        let items = self.routes.items().unwrap_or_default();
        items.iter().filter_map(|item| item.get().ok()).map(|route| &**route)
    }

    /// Whether proxies or programs call the gateway for decisions.
    pub(super) fn has_fronts(&self) -> bool {
        self.forward_auth.is_set() || self.rate_limit_service.is_set() || self.decision_api.is_set()
    }

    /// Whether requests wait in an api's queue.
    pub(super) fn an_api_queues(&self) -> bool {
        let apis = self.all_routes().map(|route| &route.apis).chain([&self.apis]);
        let queues = |api: &Api| {
            let rules = &api.rules;
            (api.limit.is_set() || api.share.is_set())
                && inherited(&rules.strategy, &self.strategy).is_ok_and(is_queue)
                && inherited(&rules.shadow, &self.shadow) != Ok(true)
                && matches!(rules.mode.get(), Ok(LeakyMode::Queue { .. }))
        };
        let items = apis.flat_map(|apis| apis.items().unwrap_or_default());
        items.flat_map(Item::get).any(|api| queues(api))
    }
}

pub(super) const fn is_queue(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::LeakyBucket { mode: LeakyMode::Queue { .. } })
}
