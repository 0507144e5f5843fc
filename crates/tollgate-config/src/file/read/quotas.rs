//! Quotas that apply at the same time, by default and in tiers.

use std::borrow::Cow;

use tollgate::Quota;
use tollgate::policy::Algorithm;

use super::context::{Names, is_queue};
use super::policy::{self, QuotaKeys, Section};
use crate::code;
use crate::file::tables::{PlainQuota, RateLimiter};
use crate::plan::QuotaPlan;
use crate::yaml::problem::{Checked, Reported};
use crate::yaml::typed::{Either, Item, Key, Setting, all};

pub(super) type ConfiguredQuota<'a> = (QuotaKeys<'a>, Quota);

/// The default quotas, and each tier's quotas, which are empty if the tier is unlimited.
#[derive(Clone)]
pub(super) struct Quotas<'a> {
    pub(super) everybody: Vec<ConfiguredQuota<'a>>,
    pub(super) tiers: Vec<Vec<ConfiguredQuota<'a>>>,
}

/// Whether a section without `share` has a quota, or should have one. If not, reports keys that
/// only apply to quotas.
pub(super) fn is_in(section: Section<'_>) -> bool {
    if section.limit.is_set() {
        return true;
    }
    let (rules, window) = (section.rules, section.window);
    let besides: [&Setting; 2] = [&rules.concurrency, &rules.penalty];
    let beside = besides.into_iter().find(|key| key.is_set()).map(|key| key.key);
    let meant: [&Setting; 6] = [
        &window.window,
        &window.window_seconds,
        &window.refill_seconds,
        &window.calendar,
        &window.burst,
        &rules.also,
    ];
    let beside = match (meant.into_iter().find(|key| key.is_set()), beside) {
        (None, Some(beside)) => beside,
        _ if section.info.has_unknown => return true,
        (Some(meant), Some(_)) => {
            let cure = format!("add `limit: …`, units per window, or remove `{}`", meant.key);
            meant.name().error(code::NO_QUOTA, "`limit` is missing", cure);
            return true;
        }
        (_, None) => {
            let cure = match section.share {
                Some(_) => {
                    "add `limit: …`, units per window, `share: 1/10`, a part of `client`, or \
                     `concurrency: …`, requests in flight"
                }
                None => "add `limit: …`, units per window, or `concurrency: …`, requests in flight",
            };
            section.info.location.error(code::NO_QUOTA, "`limit` is missing", cure);
            return true;
        }
    };
    let says_failures = rules
        .penalty
        .there()
        .is_some_and(|penalty| penalty.of.value() == Ok(true) && !penalty.count_only.is_set());
    let of_quotas: [&Setting; 10] = [
        &rules.levels,
        &window.time_zone,
        &rules.strategy,
        &rules.refill,
        &rules.mode,
        &rules.max_wait,
        &rules.resolution,
        &rules.costs,
        &rules.reserve,
        &rules.count_only,
    ];
    let unused = if says_failures { &of_quotas[..9] } else { &of_quotas };
    for key in unused {
        let why = "it applies to a quota, but there is no quota";
        key.no_effect(format_args!("on `{beside}` without `limit`"), why);
    }
    false
}

/// A section's own quota, and the quotas in `also`.
pub(super) fn of_section<'a>(
    keys: QuotaKeys<'a>,
    also: &'a Key<Option<Vec<Item<PlainQuota>>>>,
    algorithm: Algorithm,
) -> Checked<Vec<ConfiguredQuota<'a>>> {
    let items = also.items().unwrap_or_default();
    let sections = items.iter().map(|item| item.get().map(|section| section.quota()));
    let quotas = all(std::iter::once(Ok(keys)).chain(sections), |keys| {
        Ok((keys?, policy::quota(keys?, algorithm)?))
    });
    if !also.is_set() {
        return quotas;
    }
    if is_queue(algorithm) {
        return Err(also.name().error(
            code::NOT_QUEUED,
            "a queue has one rate, and `also` adds another",
            "write `mode: meter`, or another `strategy`",
        ));
    }
    let count = items.len() + 1;
    if count > MOST_AT_A_TIME {
        return Err(also.name().error(
            code::TOO_MANY,
            format!("{count} quotas at the same time are more than {MOST_AT_A_TIME}"),
            "keep the quotas that make a difference, for example one for the minute and one for \
             the day",
        ));
    }
    also.get()?;
    quotas
}

/// Each quota charges every request, and a layer decides at most 64 charges.
const MOST_AT_A_TIME: usize = 8;

impl<'a> Quotas<'a> {
    /// The quotas that these keys share.
    pub(super) fn shared_by(&self, keys: QuotaKeys<'a>, algorithm: Algorithm) -> Self {
        let fitting = |(_, quota): &ConfiguredQuota<'_>| match quota.burst_units() {
            Some(_) if !algorithm.is_bucket() => (keys, quota.without_burst()),
            _ => (keys, *quota),
        };
        let all = |quotas: &Vec<ConfiguredQuota<'_>>| quotas.iter().map(fitting).collect();
        Self { everybody: all(&self.everybody), tiers: self.tiers.iter().map(all).collect() }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Quota> {
        self.everybody.iter().chain(self.tiers.iter().flatten()).map(|(_, quota)| quota)
    }

    pub(super) fn are_several(&self) -> bool {
        self.everybody.len() > 1 || self.tiers.iter().any(|tier| tier.len() > 1)
    }

    /// A limit's policies. The first has the limit's name, and further policies have a number.
    pub(super) fn plans(
        &self,
        name: &str,
        algorithm: Algorithm,
        share: Option<(u32, u32)>,
        names: &Names,
    ) -> Checked<Vec<QuotaPlan>> {
        let quotas = || std::iter::once(&self.everybody).chain(&self.tiers);
        let most = quotas().map(Vec::len).max().unwrap_or_default();
        all(0..most, |number| {
            let mut numbered = Cow::Borrowed(name);
            if number > 0 {
                numbered = format!("{name}/{}", number + 1).into();
                let (keys, _) = quotas().find_map(|it| it.get(number)).ok_or(Reported)?;
                names.take_derived(&numbered, &keys.info.location)?;
            }
            let policy = |quotas: &Vec<ConfiguredQuota<'_>>| {
                let Some((keys, quota)) = quotas.get(number) else { return Ok(None) };
                let policy = policy::build(&numbered, *quota, algorithm, *keys)?;
                let Some((part, of)) = share else { return Ok(Some(policy)) };
                policy.share(part, of).map(Some).map_err(|error| policy::refused(&error, *keys))
            };
            let everybody = policy(&self.everybody);
            let tiers = all(&self.tiers, policy);
            Ok(QuotaPlan { everybody: everybody?, tiers: tiers? })
        })
    }
}

/// The tiers' quotas, with the algorithm of `client`.
pub(super) fn of_tiers<'a>(
    limiter: &'a RateLimiter,
    algorithm: Algorithm,
) -> Checked<Vec<Vec<ConfiguredQuota<'a>>>> {
    let Some(tiers) = limiter.tiers.there() else { return Ok(Vec::new()) };
    all(&tiers.quotas.all, |(_, item)| match item.get()? {
        Either::One(()) => Ok(Vec::new()),
        Either::Other(tier) => of_section(tier.quota(), &tier.also, algorithm),
    })
}

/// The keys of a quota, for cures.
pub(super) const QUOTA_KEYS: &str = "`limit` and `windowSeconds`";
