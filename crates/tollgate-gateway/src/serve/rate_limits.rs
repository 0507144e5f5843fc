//! Envoy's Rate Limit Service. The rules are those of the files, the decisions those of the store.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit, rate_limit,
};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::Duration as Seconds;
use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;
use metrics::{Counter, counter};
use tokio::time::{sleep, timeout};
use tollgate::status::Inspect;
use tollgate::store::{Charge, Decision, Timestamp, Verdict};
use tollgate::{Cost, Key, Micros, OnStoreError};
use tonic::Status;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tower_service::Service;

use super::app::{App, Persistent};
use super::error::BuildError;
use super::gateway::Gateway;
use crate::config::read_rate_limit_files;
use crate::plan::{Allowed, Plan, RateLimitDomains, Rule, Unit, descriptor_key};
use crate::proxy::Body;

pub(super) const NAME: &str = "envoy.service.ratelimit.v3.RateLimitService";

pub(super) struct RateLimits<St> {
    store: St,
    domains: RateLimitDomains,
    on_store_error: OnStoreError,
    /// For each domain: the answers `ok`, `over_limit` and `error`.
    answers: HashMap<String, [Counter; 3]>,
}

pub(super) async fn answer<St: Inspect>(
    gateway: &Gateway<St>,
    app: &Arc<App<St>>,
    request: Request<Incoming>,
) -> Response<Body> {
    let deadline = deadline(request.headers());
    let answered = async {
        if request.uri().path().starts_with("/grpc.health.v1.Health/") {
            return gateway.health.clone().call(request).await;
        }
        RateLimitServiceServer::new(Decider(Arc::clone(app))).call(request).await
    };
    let answered = match deadline {
        Some(deadline) => timeout(deadline, answered).await,
        None => Ok(answered.await),
    };
    let answered = answered.map(|answered| answered.unwrap_or_else(|never| match never {}));
    let late = |_| Status::deadline_exceeded("the store did not decide in time").into_http();
    answered.unwrap_or_else(late).map(Body::from)
}

pub(super) async fn keep_health<St: Inspect>(gateway: Arc<Gateway<St>>, health: HealthReporter) {
    let mut told = None;
    loop {
        let app = gateway.app_to_keep();
        let serves = app.rate_limits.as_ref().is_none_or(RateLimits::can_answer);
        drop(app);
        let status = if gateway.draining.initialized() || !serves {
            ServingStatus::NotServing
        } else {
            ServingStatus::Serving
        };
        if told.replace(status) != Some(status) {
            for service in ["", NAME] {
                health.set_service_status(service, status).await;
            }
        }
        tokio::select! {
            _ = gateway.draining.wait(), if !gateway.draining.initialized() => {}
            () = sleep(LOOK) => {}
        }
    }
}

const LOOK: Duration = Duration::from_millis(500);

/// `grpc-timeout`: up to eight digits and a unit.
fn deadline(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number = digits.parse().ok().filter(|_| digits.len() <= 8)?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3_600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

const ANSWERS: &str = "tollgate_gateway_rate_limit_service_total";

struct Decider<St>(Arc<App<St>>);

#[tonic::async_trait]
impl<St: Inspect> RateLimitService for Decider<St> {
    async fn should_rate_limit(
        &self,
        request: tonic::Request<RateLimitRequest>,
    ) -> Result<tonic::Response<RateLimitResponse>, Status> {
        let rules = self.0.rate_limits.as_ref();
        let rules =
            rules.ok_or_else(|| Status::unimplemented("no `rateLimitService` is configured"))?;
        rules.answer(&request.into_inner()).await.map(tonic::Response::new)
    }
}

struct Met {
    rule: Rule,
    key: Key,
    cost: Cost,
}

impl<St: Inspect> RateLimits<St> {
    pub(super) fn new(
        plan: &Plan,
        persistent: &Persistent<St>,
    ) -> Result<Option<Self>, BuildError> {
        let Some(rules) = &plan.rate_limits else { return Ok(None) };
        let domains = read_rate_limit_files(rules.files.iter().map(|file| &**file));
        let domains = domains.map_err(|error| BuildError(error.to_string()))?;
        let is_local = rules.on_store_error == OnStoreError::Local;
        let store = if is_local { &persistent.store } else { &persistent.without_local };
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
        Ok(Some(Self { store: store.clone(), domains, on_store_error, answers }))
    }

    /// Whether requests are decided: by the store, or without it.
    fn can_answer(&self) -> bool {
        self.on_store_error != OnStoreError::Closed || self.store.inspect().is_available
    }

    async fn answer(&self, request: &RateLimitRequest) -> Result<RateLimitResponse, Status> {
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
        let met = request.descriptors.iter().map(|it| self.met(request, it));
        let mut met = met.collect::<Result<Vec<_>, _>>()?;
        let replaced: Vec<_> =
            met.iter().flatten().flat_map(|met| met.rule.replaces.clone()).collect();
        for of_descriptor in &mut met {
            let is_replaced = |it: &mut Met| replaced.contains(&it.rule.name);
            of_descriptor.take_if(is_replaced);
        }
        // A limit of 0 denies the request whatever the store decides, so nothing is charged.
        let is_closed = |met: &Met| {
            let allowed = met.rule.allowed.as_ref();
            !met.rule.shadow && allowed.is_some_and(|allowed| allowed.policy.is_none())
        };
        let is_denied = met.iter().flatten().any(is_closed);
        let charges: Vec<_> = met
            .iter()
            .flatten()
            .filter_map(|met| {
                let policy = met.rule.allowed.as_ref()?.policy.as_ref()?;
                let charge = Charge::new(policy, &met.key, met.cost);
                let charge = if met.rule.shadow { charge.shadow() } else { charge };
                Some(if is_denied { charge.dry() } else { charge })
            })
            .collect();
        let verdict = if charges.is_empty() {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let now = Timestamp::from_micros(Micros::from(now).get());
            Ok(Verdict::new(!is_denied, now, []))
        } else {
            self.store.decide(&charges).await
        };
        let verdict = match verdict {
            Ok(verdict) => verdict,
            Err(error) if self.on_store_error == OnStoreError::Open => {
                tracing::debug!(%error, "the store could not decide");
                let statuses = met.iter().map(|_| ok(None, u32::MAX)).collect();
                return Ok(response(Code::Ok, statuses, Vec::new()));
            }
            Err(error) => return Err(Status::unavailable(error.to_string())),
        };
        Ok(self.told(&met, &verdict))
    }

    fn met(
        &self,
        request: &RateLimitRequest,
        descriptor: &RateLimitDescriptor,
    ) -> Result<Option<Met>, Status> {
        if descriptor.is_negative_hits {
            return Err(Status::unimplemented("`is_negative_hits` is not supported"));
        }
        let entries: Vec<_> = descriptor.entries.iter().map(|it| (&*it.key, &*it.value)).collect();
        let Some(domain) = self.domains.get(&request.domain) else { return Ok(None) };
        // 0 is what the field holds where it was not set.
        let hits = descriptor.hits_addend.as_ref().map(|hits| hits.value);
        let cost = Cost::new(hits.unwrap_or_else(|| request.hits_addend.max(1).into()));
        let found = match &descriptor.limit {
            Some(own) => {
                let wrong = |what: &str| Status::invalid_argument(what.to_owned());
                let unit = Unit::ALL.into_iter().find(|unit| wire(*unit) as i32 == own.unit);
                let unit = unit.ok_or_else(|| wrong("the limit of a descriptor has no unit"))?;
                // With the number in the name, since one request may not hold a key against two.
                let name = format!("{}/{}", request.domain, own.requests_per_unit);
                let allowed = Allowed::new(&name, own.requests_per_unit, unit);
                let allowed = Some(allowed.map_err(|error| wrong(&error.to_string()))?);
                let (name, replaces) = (String::new(), Vec::new());
                Some((Rule { name, replaces, shadow: false, allowed }, descriptor_key(&entries)))
            }
            None => domain.find(&entries).map(|(rule, key)| (rule.clone(), key)),
        };
        Ok(found.map(|(rule, key)| Met { rule, key, cost }))
    }

    fn told(&self, met: &[Option<Met>], verdict: &Verdict) -> RateLimitResponse {
        let mut decisions = verdict.decisions().iter();
        let mut overall = Code::Ok;
        let mut tightest: Option<(u32, u32, u64)> = None;
        // `None` if the request never passes.
        let mut retry_after = Some(0);
        let mut statuses = Vec::with_capacity(met.len());
        for met in met {
            let Some((Met { rule, .. }, allowed)) =
                met.as_ref().and_then(|met| Some((met, met.rule.allowed.as_ref()?)))
            else {
                statuses.push(ok(None, if met.is_some() { u32::MAX } else { 0 }));
                continue;
            };
            let decision = allowed.policy.as_ref().and_then(|_| decisions.next());
            let denies = decision.is_none_or(|decision| !decision.allows());
            let remaining = decision.map_or(0, |decision| decision.remaining);
            let remaining = u32::try_from(remaining).unwrap_or(u32::MAX);
            // Windows begin at multiples of the unit, also where no units were taken.
            let window = allowed.unit.window().as_secs();
            let reset = window - verdict.decided_at().as_micros() / MICROS_PER_SECOND % window;
            let limit = RateLimit {
                name: rule.name.clone(),
                requests_per_unit: allowed.requests,
                unit: wire(allowed.unit) as i32,
            };
            let mut status = ok(Some(limit), remaining);
            status.duration_until_reset =
                Some(Seconds { seconds: i64::try_from(reset).unwrap_or(i64::MAX), nanos: 0 });
            if denies && !rule.shadow {
                status.code = Code::OverLimit as i32;
                overall = Code::OverLimit;
                let wait = decision.and_then(Decision::retry_after);
                let wait = wait.map(|wait| wait.get().div_ceil(MICROS_PER_SECOND));
                retry_after = retry_after.zip(wait).map(|(one, other)| one.max(other));
            }
            if !rule.shadow && tightest.is_none_or(|(_, least, _)| remaining < least) {
                tightest = Some((allowed.requests, remaining, reset));
            }
            statuses.push(status);
        }
        let mut headers = Vec::new();
        if let Some((limit, remaining, reset)) = tightest {
            headers.push(header("ratelimit-limit", &limit.to_string()));
            headers.push(header("ratelimit-remaining", &remaining.to_string()));
            headers.push(header("ratelimit-reset", &reset.to_string()));
        }
        if let Some(wait) = retry_after.filter(|_| overall == Code::OverLimit) {
            headers.push(header("retry-after", &wait.to_string()));
        }
        response(overall, statuses, headers)
    }
}

const MICROS_PER_SECOND: u64 = 1_000_000;

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

/// A unit in messages. That of limits in requests has the same numbers.
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
