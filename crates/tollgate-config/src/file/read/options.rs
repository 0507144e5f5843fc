//! Concurrency limits, penalties and leases.

use std::time::Duration;

use tollgate::Policy;
use tollgate::limit::Mode;
use tollgate::policy::{Algorithm, LeakyMode, Lease, Strikes};

use super::context::Names;
use crate::code;
use crate::file::tables::{Concurrency, Penalty, Rules};
use crate::plan::{PenaltyPlan, Statuses, Whose};
use crate::yaml::problem::{Checked, Reported};
use crate::yaml::typed::{Key, Location, Setting};

pub(super) struct PenaltyTarget<'a> {
    pub(super) whose: Whose,
    pub(super) mode: Mode,
    pub(super) counts: Option<&'a Vec<Statuses>>,
}

pub(super) fn in_flight(
    key: &Key<Option<Box<Concurrency>>>,
    name: &str,
    names: &Names,
) -> Checked<Option<Policy>> {
    if !key.is_set() {
        return Ok(None);
    }
    let name = format!("{name}/inflight");
    names.take_derived(&name, &key.name())?;
    let Some(section) = key.get()? else { return Ok(None) };
    let (max, lease) = (section.max.value()?, section.lease.value()?);
    let ttl = lease.map_or_else(|| section.ttl.value(), Ok)?;
    let location = if lease.is_some() { section.lease.location() } else { section.ttl.location() };
    if ttl < SHORT {
        location.warn(
            code::PERMIT_TTL,
            format!("each request renews its time to live of {ttl:?} four times in that time"),
            "30s is enough: it matters only after a gateway crash",
        );
    }
    let policy = Policy::concurrent_requests(name, max, ttl).map_err(|error| {
        let cure = "choose 50us to 1h; longer requests renew it";
        location.error(code::PERMIT_TTL, error.to_string(), cure)
    });
    policy.map(Some)
}

/// A shorter time is usually a mistake, because it does not limit a request's duration.
const SHORT: Duration = Duration::from_secs(1);

pub(super) fn penalty(
    rules: &Rules,
    name: &str,
    target: &PenaltyTarget<'_>,
    names: &Names,
) -> Checked<Option<PenaltyPlan>> {
    let key = &rules.penalty;
    let Some(section) = key.get()? else { return Ok(None) };
    let name = format!("{name}/penalty");
    names.take_derived(&name, &key.name())?;
    warn_of_penalty(key, target);
    let of_failures = section.of.value()?;
    let failures = match of_failures {
        true => Some(failures(section, target)?),
        false => None,
    };
    if !of_failures && target.mode.max_wait().is_some() {
        return Err(key.name().error(
            code::PENALTY_BESIDE_WAITING,
            "a waiting request is first denied, which would count as a strike",
            "write `of: failures`, or `excess: reject`",
        ));
    }
    let strikes = strikes(section, of_failures)?;
    let policy = Policy::penalty(name, strikes).map_err(|error| {
        let cure = "times are from 50us to 400days, in whole microseconds";
        section.info.location.error(code::PENALTY, error.to_string(), cure)
    });
    Ok(Some(PenaltyPlan { policy: policy?, failures }))
}

fn failures(section: &Penalty, target: &PenaltyTarget<'_>) -> Checked<Vec<Statuses>> {
    if let Some(own) = section.count_only.value()? {
        return Ok(own.status);
    }
    target.counts.cloned().ok_or_else(|| {
        section.of.error(
            code::NO_STRIKES,
            "the penalty does not define which responses are failures",
            "add `countOnly: {status: 401}` to the penalty, or to its policy",
        )
    })
}

fn strikes(section: &Penalty, of_failures: bool) -> Checked<Strikes> {
    let (count, within) = (section.strikes.value()?, section.within.value()?);
    let block = section.block.value()?.unwrap_or(within);
    let longest = section.longest.value()?.unwrap_or_else(|| DAY.max(block));
    if block > longest {
        let block = humantime::format_duration(block);
        return Err(section.longest.error(
            code::PENALTY,
            format!("the first block, {block}, is longer than `longest`"),
            "swap `block` and `longest`, or leave out `longest`",
        ));
    }
    let factor = section.factor.value()?;
    if block == longest && factor > 1 {
        section.factor.no_effect("here", "the first block is as long as the longest");
    }
    let strikes = match of_failures {
        true => Strikes::of_failures(count, within),
        false => Strikes::of_denials(count, within),
    };
    let strikes = strikes.block(block).growing(factor, longest);
    Ok(strikes.forgotten_after(section.forget_after.value()?))
}

const DAY: Duration = Duration::from_secs(86_400);

fn warn_of_penalty(key: &Setting, target: &PenaltyTarget<'_>) {
    if target.mode == Mode::Shadow {
        key.no_effect("with `shadow`", "with `shadow` no client is blocked");
    }
    if target.whose == Whose::Everybody {
        key.name().warn(
            code::SHARED_BY_ALL,
            "a single client with many denials blocks all clients",
            "put it into `client`, or into an api with `per: client`",
        );
    }
}

pub(super) struct LeaseOption {
    pub(super) lease: Lease,
    section: Location,
    ttl: Location,
}

pub(super) fn lease(rules: &Rules, can_fail: bool) -> Checked<Option<LeaseOption>> {
    let key = &rules.lease;
    let Some(section) = key.get()? else { return Ok(None) };
    if !can_fail {
        key.no_effect("in memory", "a single process needs no lease");
    }
    let called: [&Setting; 2] = [&rules.concurrency, &rules.penalty];
    if let Some(other) = called.into_iter().find(|key| key.is_set())
        && can_fail
    {
        let why = "Redis is called anyway, and a single call decides all policies";
        key.no_effect(format_args!("with `{}`", other.key), why);
    }
    let (part, whole) = section.share.value()?;
    let lease = Lease::of(part, whole).ttl(section.ttl.value()?);
    Ok(Some(LeaseOption { lease, section: key.name(), ttl: section.ttl.location() }))
}

impl LeaseOption {
    pub(super) fn of(&self, policy: Policy) -> Checked<Policy> {
        let ttl = self.lease.time_to_live();
        let (shortest, longest) = (Lease::MIN_TTL.into(), policy.window());
        let (can_be_leased, cure) = match policy.algorithm() {
            Some(Algorithm::LeakyBucket { mode: LeakyMode::Queue { .. } }) => {
                (false, "remove it, or write `mode: meter`")
            }
            Some(Algorithm::TokenBucket { refill: tollgate::policy::Refill::Interval }) => {
                (false, "remove it, or write `refill: greedy`")
            }
            _ if policy.max_queue_time().is_some() => {
                (false, "remove it, or write `excess: {wait: 30s}`")
            }
            _ if policy.quota().calendar().is_some() => {
                (false, "remove it, or write a `window` instead of `calendar`")
            }
            _ => (true, "choose a `ttl` of 10ms up to the shortest window"),
        };
        let in_bounds = (shortest..=longest).contains(&ttl);
        let location = if can_be_leased && !in_bounds { &self.ttl } else { &self.section };
        policy.with_lease(self.lease).map_err(|error| {
            let error = error.to_string();
            // The rest is advice for programs.
            let what = error.split(": drop ").next().unwrap_or(&error);
            location.error(code::LEASE, what, cure)
        })
    }
}

pub(super) struct QueueOption {
    pub(super) max: Duration,
    pub(super) key: Location,
}

impl QueueOption {
    pub(super) fn of(&self, policy: Policy) -> Checked<Policy> {
        let cure = match policy.algorithm() {
            Some(Algorithm::LeakyBucket { .. }) => {
                "write `maxWait` instead of `excess`, or `mode: meter`"
            }
            _ => "write `excess: {wait: 30s}`, or a `window` instead of `calendar`",
        };
        policy.with_queue(self.max).map_err(|error| {
            let error = error.to_string();
            // The rest is advice for programs.
            let what = error.rsplit_once(": ").map_or(&*error, |(what, _)| what);
            self.key.error(code::NOT_QUEUED, what, cure)
        })
    }

    pub(super) fn without_quota(&self) -> Reported {
        self.key.error(
            code::NO_QUOTA,
            "requests queue for a quota, but there is no quota",
            "add `limit: …`, or write `excess: {wait: 30s}` for `concurrency`",
        )
    }
}
