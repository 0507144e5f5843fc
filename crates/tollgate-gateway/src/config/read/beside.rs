//! What a policy has beside its quota: how many requests may be under way, what blocks whoever
//! does not stop, and leases.

use std::time::Duration;

use tollgate::policy::{Algorithm, LeakyMode, Lease};
use tollgate::{OnExceeded, Policy, Strikes};

use super::super::format;
use super::super::problem::{Place, Problems};
use super::super::tables::CONCURRENCY;
use super::super::view::{Item, View, default_of};
use super::policy::{Names, no_effect};
use crate::plan::{PenaltyPlan, Statuses, Whose};

/// What the policy is that a block is for.
pub(super) struct Struck<'a> {
    pub(super) whose: Whose,
    pub(super) enforce: bool,
    pub(super) excess: OnExceeded,
    pub(super) counts: Option<&'a Vec<Statuses>>,
}

/// How many requests may be under way at once, if that is limited.
pub(super) fn in_flight(
    view: &View<'_>,
    name: &str,
    names: &mut Names,
    problems: &mut Problems,
) -> Option<Option<Policy>> {
    let Some(item) = view.item("concurrency") else {
        return Some(None);
    };
    let name = format!("{name}/inflight");
    names.take_derived(&name, view.place_of_key("concurrency"), problems)?;
    let (max, lease, place) = match item.view() {
        Some(section) => (section.whole("max")?, section.span("lease")?, section.place_of("lease")),
        None => {
            let lease = format::span(default_of(&CONCURRENCY, "lease")?).ok()?;
            (view.whole("concurrency")?, lease, item.place())
        }
    };
    if lease < SHORT {
        problems.warn(
            place.clone(),
            format!("each request renews a lease of {lease:?} four times in that time"),
            "30s is plenty: it is only for what a gateway that died had under way",
        );
    }
    let policy = Policy::concurrent_requests(name, max, lease).map_err(|error| {
        let cure = "choose 50us to 1h; a request that takes longer renews it";
        problems.error(place, error.to_string(), cure);
    });
    policy.ok().map(Some)
}

/// Shorter ones are mostly meant to limit how long a request may take, which they do not.
const SHORT: Duration = Duration::from_secs(1);

/// What blocks whoever does not stop, if anything does.
pub(super) fn penalty(
    view: &View<'_>,
    name: &str,
    struck: &Struck<'_>,
    names: &mut Names,
    problems: &mut Problems,
) -> Option<Option<PenaltyPlan>> {
    let Some(item) = view.item("penalty") else {
        return Some(None);
    };
    let section = item.view()?;
    let name = format!("{name}/penalty");
    names.take_derived(&name, view.place_of_key("penalty"), problems)?;
    warn_of_penalty(view, struck, problems);
    let of_failures = section.text("of")? == "failures";
    let failures = match of_failures {
        true => Some(failures(&section, struck, problems)?),
        false => None,
    };
    if !of_failures && section.has("countOnly") {
        let why = "denials are strikes, whatever is answered; or write `of: failures`";
        no_effect(&section, "countOnly", "with `of: denials`", why, problems);
    }
    if !of_failures && struck.enforce && matches!(struck.excess, OnExceeded::Wait { .. }) {
        problems.error(
            view.place_of_key("penalty"),
            "a request that waits is denied at first, and is no offence",
            "write `of: failures`, or `excess: reject`",
        );
        return None;
    }
    let strikes = strikes(&section, of_failures, problems)?;
    let policy = Policy::penalty(name, strikes).map_err(|error| {
        let cure = "times are from 50us to 400days, in whole microseconds";
        problems.error(section.place(), error.to_string(), cure);
    });
    Some(Some(PenaltyPlan { policy: policy.ok()?, failures }))
}

/// Which responses are strikes.
fn failures(
    section: &View<'_>,
    struck: &Struck<'_>,
    problems: &mut Problems,
) -> Option<Vec<Statuses>> {
    if let Some(item) = section.item("countOnly") {
        let items = item.view()?.items("status");
        return items.iter().map(Item::text).map(|text| text?.parse().ok()).collect();
    }
    if struck.counts.is_none() {
        problems.error(
            section.place_of("of"),
            "nothing says which responses are failures",
            "add `countOnly: {status: 401}` to the penalty, or to its policy",
        );
    }
    struck.counts.cloned()
}

fn strikes(section: &View<'_>, of_failures: bool, problems: &mut Problems) -> Option<Strikes> {
    let (count, within) = (section.whole("strikes")?, section.span("within")?);
    let block = if section.has("block") { section.span("block")? } else { within };
    let longest = match section.has("longest") {
        true => section.span("longest")?,
        false => DAY.max(block),
    };
    if block > longest {
        problems.error(
            section.place_of("longest"),
            format!("the first block, {}, is longer than the longest", shown(block)),
            "swap `block` and `longest`, or leave out `longest`",
        );
        return None;
    }
    let factor = section.whole("factor")?;
    if block == longest && factor > 1 && section.has("factor") {
        let why = "the first block is as long as the longest";
        no_effect(section, "factor", "here", why, problems);
    }
    let strikes = match of_failures {
        true => Strikes::of_failures(count, within),
        false => Strikes::of_denials(count, within),
    };
    let strikes = strikes.block(block).growing(factor, longest);
    Some(strikes.forgotten_after(section.span("forgetAfter")?))
}

const DAY: Duration = Duration::from_secs(86_400);

fn warn_of_penalty(view: &View<'_>, struck: &Struck<'_>, problems: &mut Problems) {
    if !struck.enforce {
        let why = "what only watches blocks nobody";
        no_effect(view, "penalty", "with `shadow`", why, problems);
    }
    if struck.whose == Whose::Everybody {
        problems.warn(
            view.place_of_key("penalty"),
            "whoever is denied often enough has everybody blocked",
            "put it into `client`, or into an api with `per: client`",
        );
    }
}

/// How units are leased, and where that is said.
pub(super) struct Leased {
    pub(super) lease: Lease,
    section: Place,
    ttl: Place,
}

/// How gateways may take units in blocks, if they may.
pub(super) fn lease(
    view: &View<'_>,
    can_fail: bool,
    problems: &mut Problems,
) -> Option<Option<Leased>> {
    let Some(item) = view.item("lease") else {
        return Some(None);
    };
    let section = item.view()?;
    if !can_fail {
        let why = "one process asks nobody else";
        no_effect(view, "lease", "in memory", why, problems);
    }
    for key in ["concurrency", "penalty"] {
        if can_fail && view.has(key) {
            let why = "what is asked of Redis anyway is asked in one call";
            no_effect(view, "lease", &format!("beside `{key}`"), why, problems);
            break;
        }
    }
    let (part, whole) = format::share(section.text("share")?)?;
    let lease = Lease::of(part, whole).ttl(section.span("ttl")?);
    let (place, ttl) = (view.place_of_key("lease"), section.place_of("ttl"));
    Some(Some(Leased { lease, section: place, ttl }))
}

impl Leased {
    /// The policy under this lease, or why it cannot be.
    pub(super) fn of(&self, policy: Policy, problems: &mut Problems) -> Option<Policy> {
        let ttl = self.lease.time_to_live();
        let (shortest, longest) = (Lease::MIN_TTL.into(), policy.window());
        let (can_be_leased, cure) = match policy.algorithm() {
            Some(Algorithm::LeakyBucket { mode: LeakyMode::Queue { .. } }) => {
                (false, "remove it, or write `mode: meter`")
            }
            Some(Algorithm::TokenBucket { refill: tollgate::policy::Refill::Interval }) => {
                (false, "remove it, or write `refill: greedy`")
            }
            _ if policy.quota().calendar().is_some() => {
                (false, "remove it, or write a `window` in place of `calendar`")
            }
            _ => (true, "choose a `ttl` of 10ms up to the shortest window"),
        };
        let in_bounds = (shortest..=longest).contains(&ttl);
        let place = if can_be_leased && !in_bounds { &self.ttl } else { &self.section };
        let leased = policy.with_lease(self.lease);
        let refused = leased.map_err(|error| {
            let error = error.to_string();
            // What follows is the cure for programs.
            let what = error.split(": drop the lease").next().unwrap_or(&error);
            problems.error(place.clone(), what, cure);
        });
        refused.ok()
    }
}

fn shown(span: Duration) -> humantime::FormattedDuration {
    humantime::format_duration(span)
}
