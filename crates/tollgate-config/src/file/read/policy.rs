use std::time::Duration;

use tollgate::policy::{Algorithm, Calendar, LeakyMode, OnStoreError, PolicyError};
use tollgate::store::Micros;
use tollgate::{Policy, Quota};

use super::context::{FileContext, inherited, is_queue};
use crate::code;
use crate::file::format;
use crate::file::tables::{Api, PlainQuota, Policy as PolicyKeys, Rules, Tenant, Tier, Window};
use crate::yaml::problem::{Checked, Reported};
use crate::yaml::typed::{Key, SectionInfo, Setting, Text as _};

#[derive(Clone, Copy)]
pub(super) struct Section<'a> {
    pub(super) info: &'a SectionInfo,
    pub(super) limit: &'a Key<Option<u64>>,
    pub(super) share: Option<&'a Key<Option<(u32, u32)>>>,
    pub(super) window: &'a Window,
    pub(super) rules: &'a Rules,
}

impl PolicyKeys {
    pub(super) const fn section(&self) -> Section<'_> {
        let Self { info, limit, window, rules, .. } = self;
        Section { info, limit, share: None, window, rules }
    }
}

impl Api {
    pub(super) const fn section(&self) -> Section<'_> {
        let Self { info, limit, share, window, rules, .. } = self;
        Section { info, limit, share: Some(share), window, rules }
    }
}

/// The keys that define a quota.
#[derive(Clone, Copy)]
pub(super) struct QuotaKeys<'a> {
    pub(super) info: &'a SectionInfo,
    /// `limit`, or `share` instead.
    pub(super) amount: &'a Setting,
    pub(super) limit: Checked<u64>,
    pub(super) window: &'a Window,
}

impl<'a> Section<'a> {
    pub(super) fn quota(self) -> QuotaKeys<'a> {
        let Self { info, limit, share, window, .. } = self;
        let amount = match share {
            Some(share) if !limit.is_set() => share,
            _ => &**limit,
        };
        QuotaKeys { info, amount, limit: limit.given(), window }
    }

    /// The key that bounds the cost of requests.
    pub(super) fn capacity(self) -> Option<&'a Setting> {
        let keys: [Option<&Setting>; 3] =
            [Some(&self.window.burst), Some(self.limit), self.share.map(|share| &**share)];
        keys.into_iter().flatten().find(|key| key.is_set())
    }
}

impl Tier {
    pub(super) fn quota(&self) -> QuotaKeys<'_> {
        let Self { info, limit, window, .. } = self;
        QuotaKeys { info, amount: limit, limit: limit.value(), window }
    }
}

impl Tenant {
    pub(super) fn quota(&self) -> QuotaKeys<'_> {
        let Self { info, limit, window, .. } = self;
        QuotaKeys { info, amount: limit, limit: limit.given(), window }
    }
}

impl PlainQuota {
    pub(super) fn quota(&self) -> QuotaKeys<'_> {
        let Self { info, limit, window } = self;
        QuotaKeys { info, amount: limit, limit: limit.value(), window }
    }
}

pub(super) fn algorithm(rules: &Rules, file: &FileContext<'_>) -> Checked<Algorithm> {
    let mut algorithm = inherited(&rules.strategy, &file.limiter.strategy)?;
    let name = algorithm.name();
    let owned: [(&Setting, _); 4] = [
        (&rules.refill, "token_bucket"),
        (&rules.mode, "leaky_bucket"),
        (&rules.max_wait, "leaky_bucket"),
        (&rules.resolution, "sliding_window_log"),
    ];
    for (key, owner) in owned.into_iter().filter(|(_, owner)| *owner != name) {
        key.no_effect(format_args!("on a {name}"), &format!("it is for {owner}"));
    }
    match &mut algorithm {
        Algorithm::TokenBucket { refill } => *refill = rules.refill.value()?,
        Algorithm::LeakyBucket { mode } => *mode = leaky_mode(rules)?,
        Algorithm::SlidingWindowLog { resolution } => *resolution = rules.resolution.value()?,
        _ => {}
    }
    Ok(algorithm)
}

/// The algorithm for `global` or `client`. A request can wait in only one queue, so if all policies
/// are leaky buckets, these two only meter and the api queues. Older files with a single strategy
/// rely on this.
pub(super) fn algorithm_everywhere(
    section: Section<'_>,
    file: &FileContext<'_>,
) -> Checked<Algorithm> {
    let rules = section.rules;
    let algorithm = algorithm(rules, file)?;
    let says = rules.strategy.is_set() || rules.mode.is_set() || rules.max_wait.is_set();
    if says || !is_queue(algorithm) || !file.an_api_queues {
        return Ok(algorithm);
    }
    section.info.location.warn(code::TWO_QUEUES,
        "this is only a meter, because a request can wait in only one queue and some `apis` have one",
        "write `mode: meter` to make this explicit, or another `strategy`",
    );
    Ok(Algorithm::LeakyBucket { mode: LeakyMode::Meter })
}

fn leaky_mode(rules: &Rules) -> Checked<LeakyMode> {
    Ok(match rules.mode.value()? {
        LeakyMode::Meter => LeakyMode::Meter,
        _ => LeakyMode::Queue { max_wait: rules.max_wait.value()?.map(Micros::from) },
    })
}

pub(super) fn quota(keys: QuotaKeys<'_>, algorithm: Algorithm) -> Checked<Quota> {
    let calendar = calendar(keys.window, algorithm);
    let window = match calendar {
        Ok(None) => window(keys, algorithm),
        _ => Err(Reported),
    };
    let burst = &keys.window.burst;
    if burst.is_set() && !algorithm.is_bucket() {
        return Err(burst.name().error(
            code::BURST,
            format!("a {algorithm} has no burst: its entire limit is available immediately"),
            "remove it, or write `strategy: token_bucket`",
        ));
    }
    let quota = match calendar? {
        Some(calendar) => Quota::per_calendar(keys.limit?, calendar),
        None => Quota::new(keys.limit?, window?),
    };
    Ok(burst.value()?.map_or(quota, |burst| quota.burst(burst)))
}

/// The limit's calendar, if there is no duration.
fn calendar(keys: &Window, algorithm: Algorithm) -> Checked<Option<Calendar>> {
    if !keys.calendar.is_set() {
        return Ok(None);
    }
    if algorithm != Algorithm::FixedWindowCounter {
        return Err(keys.calendar.name().error(
            code::CALENDAR,
            format!(
                "a {algorithm} needs windows of equal length, which days and months do not have"
            ),
            "write `strategy: fixed_window_counter`, or a duration such as `window: 24h`",
        ));
    }
    let why = "the calendar determines when units are refilled";
    keys.refill_seconds.no_effect("beside `calendar`", why);
    let unit = keys.calendar.given()?;
    let zone = keys.time_zone.value()?;
    let calendar = tollgate::policy::calendar::calendar(unit, zone.as_deref().unwrap_or("UTC"));
    calendar.map(Some).map_err(|_| Reported)
}

impl Window {
    /// The limit's window and its key, if it is a duration.
    fn duration(&self) -> Option<(&Setting, Checked<Duration>)> {
        let Self { window, window_seconds, .. } = self;
        let spelled: Option<(&Setting, _)> = window.is_set().then(|| (&**window, window.given()));
        spelled.or_else(|| in_seconds(window_seconds))
    }

    /// The window that the algorithm uses. For buckets, `refillSeconds` replaces the window.
    fn for_algorithm(&self, algorithm: Algorithm) -> Option<(&Setting, Checked<Duration>)> {
        let (window, refill) = (self.duration(), in_seconds(&self.refill_seconds));
        if !algorithm.is_bucket() {
            let why = "its window determines when units are refilled";
            self.refill_seconds.no_effect(format_args!("on a {algorithm}"), why);
            return window;
        }
        // Older files set both keys, usually to the same value.
        if let (Some((key, window)), Some((_, refill))) = (&window, &refill)
            && (refill.is_err() || window != refill)
        {
            let context = format_args!("on a {algorithm} with `refillSeconds`");
            key.no_effect(context, "`refillSeconds` replaces the window");
        }
        refill.or(window)
    }
}

fn in_seconds(key: &Key<Option<u64>>) -> Option<(&Setting, Checked<Duration>)> {
    key.is_set().then(|| (&**key, key.given().map(Duration::from_secs)))
}

fn window(keys: QuotaKeys<'_>, algorithm: Algorithm) -> Checked<Duration> {
    match keys.window.for_algorithm(algorithm) {
        Some((_, window)) => window,
        None if keys.info.has_unknown => Err(Reported),
        None => {
            let cure = "add `windowSeconds: 60`, or `window: 500ms`";
            Err(keys.info.location.error(code::NO_QUOTA, "the limit has no window", cure))
        }
    }
}

pub(super) fn build(
    name: &str,
    quota: Quota,
    algorithm: Algorithm,
    keys: QuotaKeys<'_>,
) -> Checked<Policy> {
    // An invalid name is already reported.
    format::Identifier::parse(name).map_err(|_| Reported)?;
    Policy::new(name, quota, algorithm).map_err(|error| refused(&error, keys))
}

pub(super) fn refused(error: &PolicyError, keys: QuotaKeys<'_>) -> Reported {
    let is_of_window = error.nearest_limit().is_none();
    let window = keys.window.duration().or_else(|| in_seconds(&keys.window.refill_seconds));
    let key = window.filter(|_| is_of_window).map_or(keys.amount, |(key, _)| key);
    out_of_range(key, error, "choose a window of 50us to 400days, in whole microseconds")
}

/// Reports a policy that cannot be made, with the nearest limit or else this cure.
pub(crate) fn out_of_range(key: &Setting, error: &PolicyError, cure: &str) -> Reported {
    let nearest = error.nearest_limit().map(|nearest| format!("write {nearest}"));
    let cure = nearest.unwrap_or_else(|| cure.to_owned());
    key.error(code::QUOTA_RANGE, error.to_string(), cure)
}

/// How policies treat requests while their store is unavailable, and while it sheds requests.
#[derive(Clone, Copy)]
pub(super) struct OnStoreFailure {
    pub(super) on_store_error: OnStoreError,
    pub(super) shed: Option<OnStoreError>,
}

impl OnStoreFailure {
    pub(super) fn of(self, policy: Policy) -> Policy {
        let policy = policy.with_on_store_error(self.on_store_error);
        self.shed.into_iter().fold(policy, Policy::with_shed)
    }
}

pub(super) fn on_store_error(rules: &Rules, file: &FileContext<'_>) -> Checked<OnStoreError> {
    let (own, outer) = (&rules.on_store_error, &file.limiter.on_store_error);
    if !file.can_fail {
        let key: &Setting = if own.is_set() { own } else { outer };
        key.no_effect("in memory", "a memory store does not fail");
    }
    inherited(own, outer)
}

/// The failure policy for requests that are shed, if it differs.
pub(super) fn shed(rules: &Rules, file: &FileContext<'_>) -> Checked<Option<OnStoreError>> {
    let key = if rules.shed.is_set() { &rules.shed } else { &file.limiter.shed };
    if !file.can_fail {
        key.no_effect("in memory", "a memory store is never overloaded");
    }
    key.value()
}
