//! The decisions of Envoy's Rate Limit Service. The rules come from files.
//!
//! | file | content |
//! |---|---|
//! | `charges.rs` | decides and charges a request's descriptors |
//! | `response.rs` | the message with the decisions |
//! | `metadata.rs` | its dynamic metadata |
//! | `json.rs` | the messages as JSON |

mod charges;
pub(super) mod json;
mod metadata;
mod response;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use metrics::{Counter, counter};
use tollgate::observe::Inspect;
use tollgate::policy::{Algorithm, OnStoreError};
use tollgate_config::plan::{
    Allowed, Plan, RateLimitDomains, RateLimitsPlan, Rule, Unit, descriptor_key,
};
use tollgate_config::read_rate_limit_files;
use tonic::Status;

use self::charges::{Hits, Met};
use self::response::wire;
use crate::serve::error::BuildError;
use crate::serve::operations::summary::Summary;

pub(crate) struct RateLimits<St> {
    store: St,
    domains: RateLimitDomains,
    on_store_error: OnStoreError,
    plan: RateLimitsPlan,
    /// For each domain: the answers `ok`, `over_limit` and `error`.
    answers: HashMap<String, [Counter; 3]>,
    summary: Summary,
}

const ANSWERS: &str = "tollgate_gateway_rate_limit_service_total";

impl<St: Inspect> RateLimits<St> {
    pub(crate) fn new(
        plan: &Plan,
        store: &St,
        summary: &Summary,
    ) -> Result<Option<Self>, BuildError> {
        let Some(rules) = &plan.rate_limits else { return Ok(None) };
        let domains = read_rate_limit_files(&rules.files, rules.merges_domains);
        let mut domains = domains.map_err(|errors| {
            let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
            BuildError(errors.join("\n"))
        })?;
        let on_store_error = match rules.on_store_error {
            // A store in memory has no outage.
            OnStoreError::Local if !store.has_local_fallback() => OnStoreError::Open,
            other => other,
        };
        domains.values_mut().for_each(|domain| domain.set_on_store_error(on_store_error));
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
        let plan = rules.clone();
        Ok(Some(Self { store, domains, on_store_error, plan, answers, summary }))
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
        match charges::decide(&self.store, &met).await {
            Ok(decided) => Ok(response::of(&self.plan, &self.summary, request, &met, &decided)),
            Err(error) if self.on_store_error == OnStoreError::Open => {
                tracing::debug!(%error, "the store could not decide");
                let statuses = met.iter().map(|_| response::ok(None, u32::MAX)).collect();
                Ok(response::with(Code::Ok, statuses, Vec::new()))
            }
            Err(error) => Err(Status::unavailable(error.to_string())),
        }
    }

    fn met(
        &self,
        request: &RateLimitRequest,
        descriptor: &RateLimitDescriptor,
    ) -> Result<Option<Met<'_>>, Status> {
        let Some(domain) = self.domains.get(&request.domain) else { return Ok(None) };
        let entries: Vec<_> = descriptor.entries.iter().map(|it| (&*it.key, &*it.value)).collect();
        let found = domain.find(&entries);
        let (rule, key, shadow) = match &descriptor.limit {
            None => match found {
                Some((rule, key)) => (Cow::Borrowed(rule), key, rule.shadow),
                None => return Ok(None),
            },
            Some(own) => {
                let wrong = |what: &str| Status::invalid_argument(what.to_owned());
                let unit = Unit::ALL.into_iter().find(|unit| wire(*unit) as i32 == own.unit);
                let unit = unit.ok_or_else(|| wrong("the limit of a descriptor has no unit"))?;
                // With the rule's key and algorithm, the request's own limit continues the rule's
                // count.
                let (algorithm, key) = match found {
                    Some((rule, key)) => (rule.allowed.as_ref().map(|it| it.algorithm), key),
                    None => (None, descriptor_key(&entries)),
                };
                let algorithm = algorithm.unwrap_or(Algorithm::FixedWindowCounter);
                let requests = own.requests_per_unit;
                let allowed = Allowed::new(&request.domain, requests, unit, algorithm);
                let mut allowed = allowed.map_err(|error| wrong(&error.to_string()))?;
                allowed.set_on_store_error(self.on_store_error);
                (Cow::Owned(Rule { allowed: Some(allowed), ..Rule::default() }), key, false)
            }
        };
        let hits = Hits::new(request, descriptor);
        let algorithm = rule.allowed.as_ref().map(|it| it.algorithm);
        if let (Hits::Refund(_), Some(Algorithm::SlidingWindowLog { .. })) = (hits, algorithm) {
            return Err(Status::unimplemented(
                "`is_negative_hits` has no effect on a sliding_window_log, which finds a charge \
                 only by its time: use fixed_window_counter, sliding_window_counter or \
                 token_bucket",
            ));
        }
        Ok(Some(Met { rule, key, hits, shadow: self.plan.shadow || shadow }))
    }
}

/// The maximum number of descriptors in a request. Envoy sends a descriptor for each entry in
/// `rate_limits`.
const MAX_DESCRIPTORS: usize = 128;
