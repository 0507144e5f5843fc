//! Describes a limit.

use std::fmt::{self, Write as _};

use tollgate::Policy;
use tollgate::limit::Mode;
use tollgate::policy::{Algorithm, Kind, LeakyMode, OnStoreError, Refill};
use tollgate::store::Micros;

use super::Count;
use crate::plan::{
    CostRule, CostTable, IdentitySource, LimitPlan, Plan, SettleBy, StorePlan, Whose,
};

/// Indents the lines about a limit if it is a level of another of these limits.
#[must_use]
pub fn as_branch(limits: &[&LimitPlan], limit: &LimitPlan, lines: String) -> String {
    let base = Policy::base_of_level(&limit.name);
    if matches!(limit.whose, Whose::Group(_))
        && limits.iter().any(|other| Some(&*other.name) == base)
    {
        return lines.lines().fold(String::new(), |out, line| out + "  " + line + "\n");
    }
    lines
}

/// For example `POST ^/api/item/\d+/comment$: 5 units per 60 s per client IP, …`.
pub fn write_limit(out: &mut String, plan: &Plan, what: &str, limit: &LimitPlan) -> fmt::Result {
    let whose = match limit.whose {
        Whose::Everybody => "for all clients together".to_owned(),
        Whose::Client => format!("per {}", client(&plan.identity)),
        Whose::Group(level) => match plan.levels.get(level) {
            Some(level) => format!("per {}", level.name),
            None => "per group".to_owned(),
        },
    };
    let fails = match (&plan.store, limit.on_store_error()) {
        (StorePlan::Memory { .. }, _) => "memory",
        (_, OnStoreError::Open) => "Redis, fail open",
        (_, OnStoreError::Closed) => "Redis, fail closed",
        (_, OnStoreError::Local) => "Redis, local fallback",
    };
    let fails = match (&plan.store, limit.shed()) {
        (StorePlan::Redis(_), Some(shed)) => format!("{fails}, shed {}", shed.name()),
        _ => fails.to_owned(),
    };
    write!(out, "  {}: {what}: ", limit.name)?;
    match limit.policy() {
        Some(policy) => {
            let amount = amount_of(limit, policy);
            write!(out, "{amount} {whose}, {}, {fails}", counted(policy))?;
        }
        None => write!(out, "{whose}, {fails}")?,
    }
    if limit.mode == Mode::Shadow {
        write!(out, ", not enforced")?;
    } else if limit.hide_headers {
        write!(out, ", hidden from headers")?;
    }
    writeln!(out)?;
    let also: Vec<_> = limit.quotas_in(None).skip(1).collect();
    if !also.is_empty() {
        writeln!(out, "    and at the same time {}", amounts(also))?;
    }
    let has_tiers = limit.quotas.first().is_some_and(|quota| !quota.tiers.is_empty());
    for (tier, name) in plan.tiers.iter().enumerate().filter(|_| has_tiers) {
        match amounts(limit.quotas_in(Some(tier))) {
            unlimited if unlimited.is_empty() => writeln!(out, "    tier {name}: unlimited")?,
            amounts => writeln!(out, "    tier {name}: {amounts}")?,
        }
    }
    write_options(out, plan, limit)?;
    write_outcome(out, limit)?;
    if *limit.costs != CostTable::flat(tollgate::policy::Cost::ONE) {
        writeln!(out, "    {}", costs(&limit.costs))?;
    }
    Ok(())
}

/// Writes a limit's remaining parts: permits, penalties, and leases.
fn write_options(out: &mut String, plan: &Plan, limit: &LimitPlan) -> fmt::Result {
    if let Some(policy) = &limit.in_flight {
        writeln!(out, "    {}: {}", policy.name(), amount(policy))?;
    }
    if let Some(penalty) = &limit.penalty {
        write!(out, "    {}: {}", penalty.policy.name(), amount(&penalty.policy))?;
        let statuses = penalty.failures.iter().flatten().map(ToString::to_string);
        match statuses.collect::<Vec<_>>() {
            of_denials if of_denials.is_empty() => writeln!(out, "; denials are strikes")?,
            statuses => writeln!(out, "; responses with {} are strikes", statuses.join(", "))?,
        }
    }
    let lease = limit.policy().and_then(Policy::lease);
    if let (Some(lease), StorePlan::Redis(_)) = (lease, &plan.store) {
        let ((part, whole), ttl) = (lease.share(), span(lease.time_to_live()));
        writeln!(out, "    a busy gateway holds up to {part}/{whole} of it for {ttl} at a time")?;
    }
    Ok(())
}

fn write_outcome(out: &mut String, limit: &LimitPlan) -> fmt::Result {
    let queue = limit.max_queue_time();
    if let Some(max) = queue {
        let max = span(max);
        writeln!(out, "    a request beyond the quota queues in the store for at most {max}")?;
    }
    match limit.mode {
        Mode::Wait(max) => {
            let denied = match queue {
                Some(_) => "request beyond the concurrency limit",
                None => "denied request",
            };
            writeln!(out, "    a {denied} waits for at most {}", span(max.into()))?;
        }
        Mode::Annotate => {
            let header = tollgate::headers::X_RATELIMIT_EXCEEDED;
            writeln!(out, "    a request beyond the quota passes with the header {header}")?;
        }
        Mode::Reject | Mode::Shadow => {}
    }
    if let Some(counts) = &limit.counts {
        let counts: Vec<_> = counts.iter().map(ToString::to_string).collect();
        writeln!(out, "    counts only responses with {}", counts.join(", "))?;
    }
    if let Some(forgives) = &limit.forgives {
        let statuses: Vec<_> = forgives.status.iter().map(ToString::to_string).collect();
        let statuses = statuses.join(", ");
        write!(out, "    forgets what the key has used after responses with {statuses}")?;
        match &forgives.header {
            Some((name, Some(value))) => {
                write!(out, " and {name}: {}", String::from_utf8_lossy(value.as_bytes()))?;
            }
            Some((name, None)) => write!(out, " and the header {name}")?,
            None => {}
        }
        for (name, value) in forgives.body.iter().flatten() {
            write!(out, " and the body's {name}: {value}")?;
        }
        writeln!(out)?;
    }
    if let Some(reserve) = &limit.reserve {
        let actual = match reserve.settle {
            SettleBy::Header => "the response header x-tollgate-cost".to_owned(),
            SettleBy::Trailer => "the trailer x-tollgate-cost".to_owned(),
            SettleBy::Bytes(bytes) => format!("the body size, 1 unit per {bytes} bytes"),
            SettleBy::Tokens => "the tokens in the response's usage".to_owned(),
            SettleBy::Money => "the price of the response's usage".to_owned(),
        };
        let lapse = span(reserve.lapse.into());
        writeln!(out, "    charged as an estimate, corrected within {lapse} by {actual}")?;
    }
    Ok(())
}

/// For example "100 units per 60 s and 20 units per 10 s".
fn amounts<'a>(policies: impl IntoIterator<Item = &'a Policy>) -> String {
    let amounts: Vec<_> = policies.into_iter().map(amount).collect();
    amounts.join(" and ")
}

/// For example "5 units per 60 s, burst 10".
pub fn amount(policy: &Policy) -> String {
    let quota = policy.quota();
    match policy.kind() {
        Kind::Limit(Algorithm::ConcurrentRequests) => {
            let lease = span(policy.window());
            return format!(
                "{} requests in flight, held for {lease} if their gateway crashes",
                quota.limit()
            );
        }
        Kind::Limit(_) => {}
        Kind::Penalty(_) => return blocks(policy),
    }
    per_window(&Count(quota.limit(), "unit").to_string(), policy)
}

/// Like [`amount`], but a budget for language models is in tokens or money.
pub fn amount_of(limit: &LimitPlan, policy: &Policy) -> String {
    let quota = policy.quota().limit();
    match limit.usage() {
        Some(SettleBy::Money) => {
            let (whole, fraction) = (quota / 1_000_000, quota % 1_000_000);
            let fraction = format!(".{fraction:06}");
            let fraction = fraction.trim_end_matches('0').trim_end_matches('.');
            per_window(&format!("a price of {whole}{fraction}"), policy)
        }
        Some(_) => per_window(&format!("{quota} tokens"), policy),
        None => amount(policy),
    }
}

fn per_window(quantity: &str, policy: &Policy) -> String {
    let quota = policy.quota();
    let window = match quota.calendar() {
        Some(calendar) => format!("calendar {calendar}"),
        None => span(policy.window()),
    };
    let amount = format!("{quantity} per {window}");
    match quota.burst_units() {
        Some(burst) => format!("{amount}, burst {burst}"),
        None => amount,
    }
}

/// For example "10 strikes within 60 s block for 600 s, then 2 times as long each time, …".
fn blocks(policy: &Policy) -> String {
    let Kind::Penalty(terms) = policy.kind() else { return String::new() };
    let (strikes, within) = (policy.quota().limit(), span(policy.window()));
    let (block, longest) = (span(terms.block), span(terms.max_block));
    let (factor, forgotten) = (terms.factor, span(terms.forget_after));
    let (noun, verb) = if strikes == 1 { ("strike", "blocks") } else { ("strikes", "block") };
    let first = format!("{strikes} {noun} within {within} {verb} for {block}");
    match factor == 1 || terms.block == terms.max_block {
        true => first,
        false => format!(
            "{first}, then {factor} times as long each time, up to {longest}, until {forgotten} \
             pass without a block"
        ),
    }
}

pub(super) fn span(span: Micros) -> String {
    match (span.as_whole_secs(), span.get()) {
        (Some(seconds), _) => format!("{seconds} s"),
        (None, micros) if micros.is_multiple_of(1_000) => format!("{} ms", micros / 1_000),
        (None, micros) => format!("{micros} µs"),
    }
}

/// For example "sliding window counter".
pub(super) fn counted(policy: &Policy) -> String {
    let Some(algorithm) = policy.algorithm() else { return String::new() };
    let words = algorithm.name().replace('_', " ");
    match algorithm {
        Algorithm::TokenBucket { refill: Refill::Interval } => {
            format!("{words} that refills at intervals")
        }
        Algorithm::LeakyBucket { mode: LeakyMode::Meter } => format!("{words} without a queue"),
        Algorithm::LeakyBucket { mode: LeakyMode::Queue { max_wait: Some(wait) } } => {
            format!("{words} (a queue up to {})", span(wait))
        }
        Algorithm::LeakyBucket { .. } => format!("{words} (a queue)"),
        _ => words,
    }
}

fn costs(costs: &CostTable) -> String {
    let CostTable { paths, methods } = costs;
    let path = |rule: &CostRule| format!("{} {} {}, ", rule.methods, rule.path, rule.cost.get());
    format!("units: {}{methods}", paths.iter().map(path).collect::<String>())
}

fn client(chain: &[IdentitySource]) -> &'static str {
    match chain {
        [IdentitySource::Ip { .. }] => "client IP",
        [IdentitySource::User(_)] => "user",
        [IdentitySource::ApiKey(_)] => "API key",
        [IdentitySource::Certificate] => "client certificate",
        _ => "client",
    }
}
