//! Quotas that hold at the same time, for everybody and in tiers.

use tollgate::policy::Algorithm;
use tollgate::{Policy, Quota};

use super::super::tables::{Bandwidth, RateLimiter};
use super::super::typed::{Checked, Either, Item, Key, Mark, Reported, all};
use super::policy::{self, Names, QuotaKeys, Section, is_bucket, is_queue, no_effect};
use crate::plan;

pub(super) type Said<'a> = (QuotaKeys<'a>, Quota);

/// The quotas of everybody, and then those of each tier: none where it is unlimited.
pub(super) struct Quotas<'a> {
    pub(super) everybody: Vec<Said<'a>>,
    pub(super) tiers: Vec<Vec<Said<'a>>>,
}

#[derive(Clone)]
pub(super) struct Client {
    everybody: Vec<Quota>,
    tiers: Vec<Vec<Quota>>,
}

impl Client {
    pub(super) fn quotas(&self) -> impl Iterator<Item = &Quota> {
        self.everybody.iter().chain(self.tiers.iter().flatten())
    }
}

pub(super) struct Policies {
    pub(super) first: Policy,
    pub(super) tiers: Vec<Option<Policy>>,
    pub(super) also: Vec<plan::Bandwidth>,
}

/// Whether a section without `share` has a quota, or should have one. Keys that are only for
/// quotas are reported for a section without a quota.
pub(super) fn is_in(section: Section<'_>) -> bool {
    if section.limit.is_set() {
        return true;
    }
    let (rules, window) = (section.rules, section.window);
    let besides: [&Mark; 2] = [&rules.concurrency, &rules.penalty];
    let beside = besides.into_iter().find(|key| key.is_set()).map(|key| key.key);
    let meant: [&Mark; 6] = [
        &window.window,
        &window.window_seconds,
        &window.refill_seconds,
        &window.calendar,
        &window.burst,
        &rules.also,
    ];
    let beside = match (meant.into_iter().find(|key| key.is_set()), beside) {
        (None, Some(beside)) => beside,
        _ if section.here.has_unknown => return true,
        (Some(meant), Some(_)) => {
            let cure = format!("add `limit: …`, units per window, or remove `{}`", meant.key);
            meant.name().error("`limit` is missing", cure);
            return true;
        }
        (_, None) => {
            let cure = match section.share {
                Some(_) => {
                    "add `limit: …`, units per window, `share: 1/10`, a part of `client`, or \
                     `concurrency: …`, requests at once"
                }
                None => "add `limit: …`, units per window, or `concurrency: …`, requests at once",
            };
            section.here.spot.error("`limit` is missing", cure);
            return true;
        }
    };
    let says_failures = rules
        .penalty
        .there()
        .is_some_and(|penalty| penalty.of.value() == Ok(true) && !penalty.count_only.is_set());
    let of_quotas: [&Mark; 9] = [
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
    let unused = if says_failures { &of_quotas[..8] } else { &of_quotas };
    for key in unused.iter().filter(|key| key.is_set()) {
        let why = "it is for a quota, and there is no quota";
        no_effect(key, &format!("on `{beside}` without `limit`"), why);
    }
    false
}

/// The quotas of a section: its own, and those of `also`.
pub(super) fn of_section<'a>(
    keys: QuotaKeys<'a>,
    also: &'a Key<Option<Vec<Item<Bandwidth>>>>,
    algorithm: Algorithm,
) -> Checked<Vec<Said<'a>>> {
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
            "a queue has one rate, and `also` adds another",
            "write `mode: meter`, or another `strategy`",
        ));
    }
    let count = items.len() + 1;
    if count > MOST_AT_A_TIME {
        return Err(also.name().error(
            format!("{count} quotas at the same time are more than {MOST_AT_A_TIME}"),
            "keep the quotas that make a difference, for example one for the minute and one for \
             the day",
        ));
    }
    also.get()?;
    quotas
}

/// Each is a charge of every request, and a layer decides 64 at once.
const MOST_AT_A_TIME: usize = 8;

impl<'a> Quotas<'a> {
    pub(super) fn of_client(client: &Client, keys: QuotaKeys<'a>, algorithm: Algorithm) -> Self {
        let fitting = |quota: &Quota| match (quota.burst_units(), is_bucket(algorithm)) {
            (Some(_), false) => (keys, quota.without_burst()),
            _ => (keys, *quota),
        };
        let all = |quotas: &Vec<Quota>| quotas.iter().map(fitting).collect();
        Self { everybody: all(&client.everybody), tiers: client.tiers.iter().map(all).collect() }
    }

    pub(super) fn client(&self) -> Client {
        let all = |said: &Vec<Said<'_>>| said.iter().map(|(_, quota)| *quota).collect();
        Client { everybody: all(&self.everybody), tiers: self.tiers.iter().map(all).collect() }
    }

    pub(super) fn are_several(&self) -> bool {
        self.everybody.len() > 1 || self.tiers.iter().any(|tier| tier.len() > 1)
    }

    /// The policies of a limit of this name: the first quotas have the name itself, the others
    /// one with a number.
    pub(super) fn policies(
        &self,
        name: &str,
        algorithm: Algorithm,
        share: Option<(u32, u32)>,
        names: &Names,
    ) -> Checked<Policies> {
        let build = |name: &str, quotas: &[Said<'_>], number: usize| {
            let Some((keys, quota)) = quotas.get(number) else { return Ok(None) };
            let whole = policy::build(name, *quota, algorithm, *keys)?;
            let Some((part, of)) = share else { return Ok(Some(whole)) };
            let part = whole.share(part, of);
            part.map(Some).map_err(|error| policy::refused(&error, *keys))
        };
        let first = build(name, &self.everybody, 0);
        let tiers = all(&self.tiers, |tier| build(name, tier, 0));
        let quotas = || std::iter::once(&self.everybody).chain(&self.tiers);
        let most = quotas().map(Vec::len).max().unwrap_or_default();
        let also = all(1..most, |number| {
            let name = format!("{name}/{}", number + 1);
            let said = quotas().find_map(|quotas| quotas.get(number));
            let (keys, _) = said.ok_or(Reported)?;
            names.take_derived(&name, &keys.here.spot)?;
            let everybody = build(&name, &self.everybody, number);
            let tiers = all(&self.tiers, |tier| build(&name, tier, number));
            Ok(plan::Bandwidth { everybody: everybody?, tiers: tiers? })
        });
        Ok(Policies { first: first?.ok_or(Reported)?, tiers: tiers?, also: also? })
    }
}

/// The quotas of the tiers, under the algorithm of `client`.
pub(super) fn of_tiers<'a>(
    limiter: &'a RateLimiter,
    algorithm: Algorithm,
) -> Checked<Vec<Vec<Said<'a>>>> {
    let Some(tiers) = limiter.tiers.there() else { return Ok(Vec::new()) };
    all(&tiers.quotas.all, |(_, item)| match item.get()? {
        Either::One(()) => Ok(Vec::new()),
        Either::Other(tier) => of_section(tier.quota(), &tier.also, algorithm),
    })
}
