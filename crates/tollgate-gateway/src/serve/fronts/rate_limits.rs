//! The decisions of Envoy's Rate Limit Service. The rules come from files.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::time::{SystemTime, UNIX_EPOCH};

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit, rate_limit,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::Duration as Seconds;
use metrics::{Counter, counter};
use tollgate::key::Key;
use tollgate::observe::Inspect;
use tollgate::policy::{Cost, OnStoreError};
use tollgate::store::{Charge, Micros, Outcome, StoreError, Timestamp};
use tollgate_config::plan::{Allowed, Plan, RateLimitDomains, Rule, Unit, descriptor_key};
use tollgate_config::read_rate_limit_files;
use tonic::Status;

use crate::serve::error::BuildError;
use crate::serve::operations::summary::Summary;

pub(crate) struct RateLimits<St> {
    store: St,
    domains: RateLimitDomains,
    on_store_error: OnStoreError,
    /// Whether all rules are in shadow mode.
    shadow: bool,
    /// For each domain: the answers `ok`, `over_limit` and `error`.
    answers: HashMap<String, [Counter; 3]>,
    summary: Summary,
}

const ANSWERS: &str = "tollgate_gateway_rate_limit_service_total";

/// A descriptor with its rule and key.
struct Met<'a> {
    rule: Cow<'a, Rule>,
    key: Key,
    hits: Hits,
    /// Whether the descriptor is in shadow mode.
    shadow: bool,
}

/// A descriptor's effect on its quota.
#[derive(Clone, Copy)]
enum Hits {
    /// The request is charged if the quota has these units, and otherwise denied.
    Request(Cost),
    /// The units that Envoy reports in the descriptor's own `hits_addend` when a stream is done
    /// (`apply_on_stream_done`). A denial could not undo the use, so the charge may exceed the
    /// limit. 0 only checks the quota.
    Report(Cost),
}

/// The decision about a descriptor.
struct Decided {
    is_over: bool,
    remaining: u64,
    /// How long until the same request can pass; `None` is never.
    wait: Option<u64>,
}

/// The descriptor in the headers: if some descriptors deny, the denying descriptor with the longest
/// wait, and otherwise the descriptor with the fewest remaining units.
struct TightestRule<'a> {
    allowed: &'a Allowed,
    remaining: u32,
    reset: u64,
    wait: Option<u64>,
}

impl<St: Inspect> RateLimits<St> {
    pub(crate) fn new(
        plan: &Plan,
        [store, without_local]: [&St; 2],
        summary: &Summary,
    ) -> Result<Option<Self>, BuildError> {
        let Some(rules) = &plan.rate_limits else { return Ok(None) };
        let domains = read_rate_limit_files(&rules.files, rules.merges_domains);
        let domains = domains.map_err(|errors| {
            let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
            BuildError(errors.join("\n"))
        })?;
        let is_local = rules.on_store_error == OnStoreError::Local;
        let store = if is_local { store } else { without_local };
        let on_store_error = match rules.on_store_error {
            // A store in memory has no outage.
            OnStoreError::Local if !store.has_local_fallback() => OnStoreError::Open,
            other => other,
        };
        let answers = domains.keys().map(|domain| {
            let count = |outcome: &'static str| {
                let counter = counter!(ANSWERS, "domain" => domain.clone(), "outcome" => outcome);
                counter.increment(0);
                counter
            };
            (domain.clone(), ["ok", "over_limit", "error"].map(count))
        });
        let answers = answers.collect();
        let (store, summary) = (store.clone(), summary.clone());
        let shadow = rules.shadow;
        Ok(Some(Self { store, domains, on_store_error, shadow, answers, summary }))
    }

    /// Whether requests can be decided, with or without the store.
    pub(crate) fn can_answer(&self) -> bool {
        self.on_store_error != OnStoreError::Closed || self.store.inspect().is_available
    }

    pub(crate) async fn answer(
        &self,
        request: &RateLimitRequest,
    ) -> Result<RateLimitResponse, Status> {
        let decided = self.decide(request).await;
        let outcome = match &decided {
            Ok(decided) => usize::from(decided.overall_code == Code::OverLimit as i32),
            Err(_) => 2,
        };
        // Envoy chooses the name of the domain: one that is not in the files is not counted.
        if let Some(answers) = self.answers.get(&request.domain) {
            answers[outcome].increment(1);
        }
        decided
    }

    async fn decide(&self, request: &RateLimitRequest) -> Result<RateLimitResponse, Status> {
        if request.domain.is_empty() {
            return Err(Status::invalid_argument("the request names no domain"));
        }
        let count = request.descriptors.len();
        if count > MAX_DESCRIPTORS {
            return Err(Status::invalid_argument(format!(
                "the request has {count} descriptors, and the most is {MAX_DESCRIPTORS}"
            )));
        }
        let met = request.descriptors.iter().map(|it| self.met(request, it));
        let mut met = met.collect::<Result<Vec<_>, _>>()?;
        let rules = met.iter().flatten();
        let replaced: HashSet<_> = rules.flat_map(|met| met.rule.replaces.clone()).collect();
        for of_descriptor in &mut met {
            of_descriptor.take_if(|it| replaced.contains(&it.rule.name));
        }
        match self.decide_all(&met).await {
            Ok((decided, now)) => Ok(self.response(&met, &decided, now)),
            Err(error) if self.on_store_error == OnStoreError::Open => {
                tracing::debug!(%error, "the store could not decide");
                let statuses = met.iter().map(|_| ok(None, u32::MAX)).collect();
                Ok(response(Code::Ok, statuses, Vec::new()))
            }
            Err(error) => Err(Status::unavailable(error.to_string())),
        }
    }

    fn met(
        &self,
        request: &RateLimitRequest,
        descriptor: &RateLimitDescriptor,
    ) -> Result<Option<Met<'_>>, Status> {
        if descriptor.is_negative_hits {
            return Err(Status::unimplemented("`is_negative_hits` is not supported"));
        }
        let entries: Vec<_> = descriptor.entries.iter().map(|it| (&*it.key, &*it.value)).collect();
        let Some(domain) = self.domains.get(&request.domain) else { return Ok(None) };
        let hits = match &descriptor.hits_addend {
            Some(hits) => Hits::Report(Cost::new(hits.value.min(MAX_HITS))),
            // A missing field reads as 0.
            None => Hits::Request(Cost::new(request.hits_addend.max(1).into())),
        };
        let found = domain.find(&entries);
        let Some(own) = &descriptor.limit else {
            return Ok(found.map(|(rule, key)| {
                let shadow = self.shadow || rule.shadow;
                Met { rule: Cow::Borrowed(rule), key, hits, shadow }
            }));
        };
        let wrong = |what: &str| Status::invalid_argument(what.to_owned());
        let unit = Unit::ALL.into_iter().find(|unit| wire(*unit) as i32 == own.unit);
        let unit = unit.ok_or_else(|| wrong("the limit of a descriptor has no unit"))?;
        let allowed = Allowed::new(&request.domain, own.requests_per_unit, unit);
        let allowed = allowed.map_err(|error| wrong(&error.to_string()))?;
        // With the rule's key, the request's own limit continues the rule's count.
        let key = found.map_or_else(|| descriptor_key(&entries), |(_, key)| key);
        let rule = Cow::Owned(Rule { allowed: Some(allowed), ..Rule::default() });
        Ok(Some(Met { rule, key, hits, shadow: self.shadow }))
    }

    /// Decides about all descriptors, at the returned time.
    async fn decide_all(
        &self,
        met: &[Option<Met<'_>>],
    ) -> Result<(Vec<Option<Decided>>, Timestamp), StoreError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut now = Timestamp::from_micros(Micros::from(now).get());
        // A limit of 0 denies without a call to the store.
        let mut decided: Vec<_> = limited(met)
            .map(|limited| {
                let (_, allowed) = limited?;
                let is_closed = allowed.policy.is_none();
                is_closed.then_some(Decided { is_over: true, remaining: 0, wait: None })
            })
            .collect();

        // Checks are decided first, because a denied request must not be charged.
        let reports: Vec<_> = limited(met)
            .enumerate()
            .filter_map(|(index, limited)| {
                let (met, allowed) = limited?;
                let Hits::Report(cost) = met.hits else { return None };
                allowed.policy.as_ref()?;
                Some((index, allowed, Charge::new(&allowed.counted, &met.key, cost)))
            })
            .collect();
        if !reports.is_empty() {
            let charges: Vec<_> = reports.iter().map(|(_, _, charge)| *charge).collect();
            let verdict = self.store.decide(&charges).await?;
            now = verdict.decided_at();
            for ((index, allowed, _), decision) in reports.iter().zip(verdict.decisions()) {
                let (used, limit) = allowed.counted_by(decision);
                let is_over = decision.denies() || used > limit;
                let remaining = limit.saturating_sub(used);
                let wait = Some(allowed.until_reset(now));
                decided[*index] = Some(Decided { is_over, remaining, wait });
            }
        }

        let requests: Vec<_> = limited(met)
            .enumerate()
            .filter_map(|(index, limited)| {
                let (met, allowed) = limited?;
                let Hits::Request(cost) = met.hits else { return None };
                allowed.policy.as_ref()?;
                Some((index, met, allowed, cost))
            })
            .collect();
        if requests.is_empty() {
            return Ok((decided, now));
        }
        // A store call must not contain different quotas for a key, so the smallest limit applies.
        let mut smallest = HashMap::<_, &Allowed>::new();
        for &(_, met, allowed, _) in &requests {
            let smallest = smallest.entry((allowed.unit, &met.key)).or_insert(allowed);
            if allowed.requests < smallest.requests {
                *smallest = allowed;
            }
        }
        let has_quotas = quotas(met).nth(1).is_some();
        let charges = requests.iter().filter_map(|(_, met, allowed, cost)| {
            let policy = smallest.get(&(allowed.unit, &met.key))?.policy.as_ref()?;
            let charge = Charge::new(policy, &met.key, *cost);
            let watches = met.shadow || (met.rule.quota && has_quotas);
            Some(if watches { charge.shadow() } else { charge })
        });
        let charges: Vec<_> = charges.collect();
        let dry: Vec<_> = charges.iter().map(|charge| charge.dry()).collect();
        let requests: Vec<_> = requests.iter().map(|(index, ..)| *index).collect();
        let is_denied = |decided: &[_]| denials(met, decided).next().is_some();
        // Whether all rules in quota mode are over their limits is known only after they are decided,
        // and a denied request must not be charged. So the store first decides without charges.
        if has_quotas || is_denied(&decided) {
            now = self.decide_requests(&requests, &dry, &mut decided).await?;
            if is_denied(&decided) {
                return Ok((decided, now));
            }
        }
        now = self.decide_requests(&requests, &charges, &mut decided).await?;
        Ok((decided, now))
    }

    /// Decides the charges of the descriptors with these numbers, and returns the time.
    async fn decide_requests(
        &self,
        requests: &[usize],
        charges: &[Charge<'_>],
        decided: &mut [Option<Decided>],
    ) -> Result<Timestamp, StoreError> {
        let verdict = self.store.decide(charges).await?;
        for (index, decision) in requests.iter().zip(verdict.decisions()) {
            // The store has remembered another descriptor's denial and did not check this one.
            if decision.outcome == Outcome::Undecided {
                continue;
            }
            let wait = decision.retry_after().map(|wait| wait.get().div_ceil(SECOND));
            let remaining = decision.remaining;
            decided[*index] = Some(Decided { is_over: decision.denies(), remaining, wait });
        }
        Ok(verdict.decided_at())
    }

    fn response(
        &self,
        all: &[Option<Met<'_>>],
        decided: &[Option<Decided>],
        now: Timestamp,
    ) -> RateLimitResponse {
        let denying: HashSet<_> = denials(all, decided).collect();
        let overall = if denying.is_empty() { Code::Ok } else { Code::OverLimit };
        let mut shown: Option<TightestRule<'_>> = None;
        let mut statuses = Vec::with_capacity(all.len());
        for (index, (limited, decided)) in limited(all).zip(decided).enumerate() {
            let (Some((met, allowed)), Some(decided)) = (limited, decided) else {
                // There is no rule, no limit, or no decision.
                statuses.push(ok(None, if all[index].is_some() { u32::MAX } else { 0 }));
                continue;
            };
            let remaining = u32::try_from(decided.remaining).unwrap_or(u32::MAX);
            let reset = allowed.until_reset(now);
            let limit = RateLimit {
                name: met.rule.name.clone(),
                requests_per_unit: allowed.requests,
                unit: wire(allowed.unit) as i32,
            };
            let mut status = ok(Some(limit), remaining);
            status.duration_until_reset =
                Some(Seconds { seconds: i64::try_from(reset).unwrap_or(i64::MAX), nanos: 0 });
            if met.shadow {
                if decided.is_over {
                    self.summary.rate_limit(allowed.name(), false);
                }
                statuses.push(status);
                continue;
            }
            if decided.is_over {
                status.code = Code::OverLimit as i32;
            }
            let this = TightestRule { allowed, remaining, reset, wait: decided.wait };
            let is_shown = match &shown {
                _ if !denying.is_empty() && !denying.contains(&index) => false,
                None => true,
                Some(shown) if denying.is_empty() => remaining < shown.remaining,
                Some(shown) => {
                    shown.wait.is_some_and(|other| this.wait.is_none_or(|it| it > other))
                }
            };
            if is_shown {
                shown = Some(this);
            }
            statuses.push(status);
        }
        let mut headers = Vec::new();
        if let Some(TightestRule { allowed, remaining, reset, wait }) = shown {
            headers.push(header("ratelimit-limit", &allowed.requests.to_string()));
            headers.push(header("ratelimit-remaining", &remaining.to_string()));
            headers.push(header("ratelimit-reset", &reset.to_string()));
            if overall == Code::OverLimit {
                headers.extend(wait.map(|wait| header("retry-after", &wait.to_string())));
                self.summary.rate_limit(allowed.name(), true);
            }
        }
        response(overall, statuses, headers)
    }
}

/// For each descriptor its limit, if it has one.
fn limited<'a>(
    met: &'a [Option<Met<'a>>],
) -> impl Iterator<Item = Option<(&'a Met<'a>, &'a Allowed)>> {
    met.iter().map(|met| met.as_ref().and_then(|met| Some((met, met.rule.allowed.as_ref()?))))
}

/// The descriptors in `quota_mode`, which deny a request only together.
fn quotas<'a>(met: &'a [Option<Met<'a>>]) -> impl Iterator<Item = usize> {
    let limited = limited(met).enumerate();
    limited.filter_map(|(index, limited)| {
        let (met, _) = limited?;
        (met.rule.quota && !met.shadow).then_some(index)
    })
}

/// The descriptors that deny the request.
fn denials<'a>(
    met: &'a [Option<Met<'a>>],
    decided: &'a [Option<Decided>],
) -> impl Iterator<Item = usize> {
    let is_over = |index: &usize| decided[*index].as_ref().is_some_and(|it| it.is_over);
    let all_quotas = quotas(met).all(|index| is_over(&index));
    let limited = limited(met).enumerate();
    limited.filter_map(move |(index, limited)| {
        let (met, _) = limited?;
        let denies = is_over(&index) && !met.shadow && (!met.rule.quota || all_quotas);
        denies.then_some(index)
    })
}

/// The maximum number of descriptors in a request. Envoy sends a descriptor for each entry in
/// `rate_limits`.
const MAX_DESCRIPTORS: usize = 128;

/// The maximum hits in a report. It exceeds every limit, and all reports in a request together
/// still fit into `Allowed::counted`.
const MAX_HITS: u64 = u32::MAX as u64 + 1;

/// A second in microseconds.
const SECOND: u64 = 1_000_000;

fn response(
    overall: Code,
    statuses: Vec<DescriptorStatus>,
    response_headers_to_add: Vec<HeaderValue>,
) -> RateLimitResponse {
    let overall_code = overall as i32;
    RateLimitResponse { overall_code, statuses, response_headers_to_add, ..Default::default() }
}

fn ok(current_limit: Option<RateLimit>, limit_remaining: u32) -> DescriptorStatus {
    let code = Code::Ok as i32;
    DescriptorStatus { code, current_limit, limit_remaining, ..DescriptorStatus::default() }
}

fn header(key: &str, value: &str) -> HeaderValue {
    HeaderValue { key: key.to_owned(), value: value.to_owned(), ..HeaderValue::default() }
}

/// A unit in messages. The unit of limits in requests has the same numbers.
const fn wire(unit: Unit) -> rate_limit::Unit {
    match unit {
        Unit::Second => rate_limit::Unit::Second,
        Unit::Minute => rate_limit::Unit::Minute,
        Unit::Hour => rate_limit::Unit::Hour,
        Unit::Day => rate_limit::Unit::Day,
        Unit::Week => rate_limit::Unit::Week,
        Unit::Month => rate_limit::Unit::Month,
        Unit::Year => rate_limit::Unit::Year,
    }
}
