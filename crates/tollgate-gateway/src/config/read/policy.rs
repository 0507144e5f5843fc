use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

use tollgate::policy::{Algorithm, Calendar, LeakyMode, OnStoreError, PolicyError};
use tollgate::store::Micros;
use tollgate::{Policy, Quota};

use super::super::format;
use super::super::tables::{
    Api, Bandwidth, Policy as PolicyKeys, RateLimiter, Rules, Tier, Window,
};
use super::super::typed::{Checked, Here, Item, Key, Mark, Reported, Spot, Text as _};
use super::routes::all_routes;
use super::{Shared, inherited};

#[derive(Clone, Copy)]
pub(super) struct Section<'a> {
    pub(super) here: &'a Here,
    pub(super) limit: &'a Key<Option<u64>>,
    pub(super) share: Option<&'a Key<Option<(u32, u32)>>>,
    pub(super) window: &'a Window,
    pub(super) rules: &'a Rules,
}

impl PolicyKeys {
    pub(super) const fn section(&self) -> Section<'_> {
        let Self { here, limit, window, rules, .. } = self;
        Section { here, limit, share: None, window, rules }
    }
}

impl Api {
    pub(super) const fn section(&self) -> Section<'_> {
        let Self { here, limit, share, window, rules, .. } = self;
        Section { here, limit, share: Some(share), window, rules }
    }
}

/// How much per how long, as the file has it.
#[derive(Clone, Copy)]
pub(super) struct QuotaKeys<'a> {
    pub(super) here: &'a Here,
    /// `limit`, or `share` in its place.
    amount: &'a Mark,
    limit: Checked<u64>,
    window: &'a Window,
}

impl<'a> Section<'a> {
    pub(super) fn quota(self) -> QuotaKeys<'a> {
        let Self { here, limit, share, window, .. } = self;
        let amount = match share {
            Some(share) if !limit.is_set() => share,
            _ => &**limit,
        };
        let limit = limit.value().and_then(|limit| limit.ok_or(Reported));
        QuotaKeys { here, amount, limit, window }
    }

    /// The key that says how much a request may cost.
    pub(super) fn capacity(self) -> Option<&'a Mark> {
        let keys: [Option<&Mark>; 3] =
            [Some(&self.window.burst), Some(self.limit), self.share.map(|share| &**share)];
        keys.into_iter().flatten().find(|key| key.is_set())
    }
}

impl Tier {
    pub(super) fn quota(&self) -> QuotaKeys<'_> {
        let Self { here, limit, window, .. } = self;
        QuotaKeys { here, amount: limit, limit: limit.value(), window }
    }
}

impl Bandwidth {
    pub(super) fn quota(&self) -> QuotaKeys<'_> {
        let Self { here, limit, window } = self;
        QuotaKeys { here, amount: limit, limit: limit.value(), window }
    }
}

#[derive(Debug, Default)]
pub(super) struct Names(RefCell<HashMap<String, String>>);

impl Names {
    /// Takes a name, which two policies cannot share: they would share their counters.
    pub(super) fn take(&self, name: &str, spot: &Spot) {
        let path = spot.place.path.clone();
        if let Some(first) = self.0.borrow_mut().insert(name.to_owned(), path) {
            spot.error(
                format!("`{}` is the name of another policy ({first})", name.escape_debug()),
                "give each an `identifier` of its own: counters belong to it",
            );
        }
    }

    pub(super) fn take_derived(&self, name: &str, spot: &Spot) -> Checked<()> {
        if name.len() > Policy::MAX_NAME {
            let what =
                format!("this is the policy `{}`, a name that is too long", name.escape_debug());
            let added = name.rfind('/').map_or(0, |slash| name.len() - slash);
            let most = Policy::MAX_NAME - added.min(Policy::MAX_NAME);
            let cure = format!("choose an `identifier` of at most {most} characters");
            return Err(spot.error(what, cure));
        }
        self.take(name, spot);
        Ok(())
    }
}

pub(super) fn algorithm(rules: &Rules, shared: &Shared<'_>) -> Checked<Algorithm> {
    let mut algorithm = inherited(&rules.strategy, &shared.limiter.strategy)?;
    let name = algorithm.name();
    let owned: [(&Mark, _); 4] = [
        (&rules.refill, "token_bucket"),
        (&rules.mode, "leaky_bucket"),
        (&rules.max_wait, "leaky_bucket"),
        (&rules.resolution, "sliding_window_log"),
    ];
    for (key, owner) in owned {
        if key.is_set() && owner != name {
            no_effect(key, &format!("on a {name}"), &format!("it is for {owner}"));
        }
    }
    match &mut algorithm {
        Algorithm::TokenBucket { refill } => *refill = rules.refill.value()?,
        Algorithm::LeakyBucket { mode } => *mode = leaky_mode(rules)?,
        Algorithm::SlidingWindowLog { resolution } => *resolution = rules.resolution.value()?,
        _ => {}
    }
    Ok(algorithm)
}

/// The algorithm of `global` or `client`. A request waits in one queue only. Where all policies
/// are leaky buckets, these two measure, and requests wait for the policy of their own rate. Files
/// for an older gateway, which name one strategy for everything, run by that.
pub(super) fn algorithm_everywhere(
    section: Section<'_>,
    shared: &Shared<'_>,
) -> Checked<Algorithm> {
    let rules = section.rules;
    let algorithm = algorithm(rules, shared)?;
    let says = rules.strategy.is_set() || rules.mode.is_set() || rules.max_wait.is_set();
    if says || !is_queue(algorithm) || !shared.an_api_queues {
        return Ok(algorithm);
    }
    section.here.spot.warn(
        "this only measures, because a request waits in one queue and some `apis` have a queue",
        "write `mode: meter` to say so, or another `strategy`",
    );
    Ok(Algorithm::LeakyBucket { mode: LeakyMode::Meter })
}

/// Whether an api of the file is a queue, in which requests do wait.
pub(super) fn an_api_queues(limiter: &RateLimiter) -> bool {
    let apis = all_routes(limiter).map(|route| &route.apis).chain([&limiter.apis]);
    let queues = |api: &Api| {
        let rules = &api.rules;
        (api.limit.is_set() || api.share.is_set())
            && inherited(&rules.strategy, &limiter.strategy).is_ok_and(is_queue)
            && inherited(&rules.shadow, &limiter.shadow) != Ok(true)
            && matches!(rules.mode.get(), Ok(LeakyMode::Queue { .. }))
    };
    let items = apis.flat_map(|apis| apis.items().unwrap_or_default());
    items.flat_map(Item::get).any(|api| queues(api))
}

pub(super) const fn is_queue(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::LeakyBucket { mode: LeakyMode::Queue { .. } })
}

fn leaky_mode(rules: &Rules) -> Checked<LeakyMode> {
    let max_wait = rules.max_wait.value()?.map(Micros::from);
    let mode = rules.mode.value()?;
    if mode != LeakyMode::Meter {
        return Ok(LeakyMode::Queue { max_wait });
    }
    if max_wait.is_some() {
        no_effect(&rules.max_wait, "in mode meter", "no request waits there");
    }
    Ok(mode)
}

pub(super) fn quota(keys: QuotaKeys<'_>, algorithm: Algorithm) -> Checked<Quota> {
    let calendar = calendar(keys.window, algorithm);
    let window = match calendar {
        Ok(None) => window(keys, algorithm),
        _ => Err(Reported),
    };
    let burst = &keys.window.burst;
    if burst.is_set() && !is_bucket(algorithm) {
        return Err(burst.name().error(
            format!("a {algorithm} has no burst: its whole limit may pass at once"),
            "remove it, or write `strategy: token_bucket`",
        ));
    }
    let quota = match calendar? {
        Some(calendar) => Quota::per_calendar(keys.limit?, calendar),
        None => Quota::new(keys.limit?, window?),
    };
    Ok(burst.value()?.map_or(quota, |burst| quota.burst(burst)))
}

/// The calendar of the limit, if it has one in place of a time.
fn calendar(keys: &Window, algorithm: Algorithm) -> Checked<Option<Calendar>> {
    if !keys.calendar.is_set() {
        if keys.time_zone.is_set() {
            let why = "a duration is the same in every time zone";
            no_effect(&keys.time_zone, "without `calendar`", why);
        }
        return Ok(None);
    }
    if algorithm != Algorithm::FixedWindowCounter {
        return Err(keys.calendar.name().error(
            format!(
                "a {algorithm} needs windows of equal length, which days and months do not have"
            ),
            "write `strategy: fixed_window_counter`, or a duration such as `window: 24h`",
        ));
    }
    if keys.refill_seconds.is_set() {
        let why = "the calendar says when units are refilled";
        no_effect(&keys.refill_seconds, "beside `calendar`", why);
    }
    let unit = keys.calendar.value()?.ok_or(Reported)?;
    let zone = keys.time_zone.value()?;
    let calendar = tollgate::policy::calendar::calendar(unit, zone.as_deref().unwrap_or("UTC"));
    calendar.map(Some).map_err(|_| Reported)
}

fn window(keys: QuotaKeys<'_>, algorithm: Algorithm) -> Checked<Duration> {
    let Window { window, window_seconds, refill_seconds, .. } = keys.window;
    let seconds = |key: &Key<Option<u64>>| key.value().map(|it| it.map(Duration::from_secs));
    let given: Option<(&Mark, _)> = if window.is_set() {
        Some((window, window.value()))
    } else {
        window_seconds.is_set().then(|| (&**window_seconds, seconds(window_seconds)))
    };
    if refill_seconds.is_set() {
        let refill = seconds(refill_seconds);
        if !is_bucket(algorithm) {
            let why = "its window says when units are refilled";
            no_effect(refill_seconds, &format!("on a {algorithm}"), why);
        } else {
            // Older files have both, and mostly the same value.
            if let Some((key, given)) = given
                && (refill.is_err() || given != refill)
            {
                let at = format!("on a {algorithm} with `refillSeconds`");
                no_effect(key, &at, "`refillSeconds` says how long");
            }
            return refill?.ok_or(Reported);
        }
    }
    match given {
        Some((_, given)) => given?.ok_or(Reported),
        None if keys.here.has_unknown => Err(Reported),
        None => Err(keys
            .here
            .spot
            .error("the limit has no window", "add `windowSeconds: 60`, or `window: 500ms`")),
    }
}

pub(super) fn build(
    name: &str,
    quota: Quota,
    algorithm: Algorithm,
    keys: QuotaKeys<'_>,
) -> Checked<Policy> {
    // A name that is not valid is already reported.
    format::Identifier::parse(name).map_err(|_| Reported)?;
    Policy::new(name, quota, algorithm).map_err(|error| refused(&error, keys))
}

pub(super) fn refused(error: &PolicyError, keys: QuotaKeys<'_>) -> Reported {
    if let Some(nearest) = error.nearest_limit() {
        return keys.amount.error(error.to_string(), format!("write {nearest}"));
    }
    let Window { window, window_seconds, refill_seconds, .. } = keys.window;
    let spans: [&Mark; 3] = [window, window_seconds, refill_seconds];
    let key = spans.into_iter().find(|key| key.is_set()).unwrap_or(keys.amount);
    let cure = "choose a window of 50us to 400days, in whole microseconds";
    key.error(error.to_string(), cure)
}

pub(super) fn on_store_error(rules: &Rules, shared: &Shared<'_>) -> Checked<OnStoreError> {
    let (own, outer) = (&rules.on_store_error, &shared.limiter.on_store_error);
    let key: &Mark = if own.is_set() { own } else { outer };
    if key.is_set() && !shared.can_fail {
        no_effect(key, "in memory", "such a store does not fail");
    }
    inherited(own, outer)
}

/// The failure policy for requests that are shed, if it differs.
pub(super) fn shed(rules: &Rules, shared: &Shared<'_>) -> Checked<Option<OnStoreError>> {
    let key = if rules.shed.is_set() { &rules.shed } else { &shared.limiter.shed };
    if key.is_set() && !shared.can_fail {
        no_effect(key, "in memory", "such a store is never overloaded");
    }
    key.value()
}

pub(super) fn no_effect(key: &Mark, at: &str, why: &str) {
    let what = format!("`{}` has no effect {at}", key.key);
    key.name().warn(what, format!("remove it: {why}"));
}

pub(super) const fn is_bucket(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. })
}
