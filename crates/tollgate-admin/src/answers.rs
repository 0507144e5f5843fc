//! The JSON bodies of responses. A test compares the members with `docs/admin-api.md`.

use std::collections::{BTreeMap, BTreeSet};

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use serde::{Deserialize, Serialize};
use tollgate::observe::{Counters, CurrentPause, ObservedPolicy, ServiceNumbers, StoreReport};
use tollgate::store::{Decision, Micros, Source, Timestamp};
use tollgate::tier::Tier;
use tollgate::{Limit, Policy};

use super::problem::Problem;

/// `GET /status`.
#[derive(Debug, Serialize)]
pub(super) struct Status {
    pub(super) policies: Vec<PolicyStatus>,
    pub(super) stores: Vec<StoreStatus>,
}

#[derive(Debug, Serialize)]
pub(super) struct PolicyStatus {
    pub(super) policy: String,
    pub(super) level_of: Option<String>,
    pub(super) algorithm: &'static str,
    #[serde(flatten)]
    quota: QuotaStatus,
    pub(super) store: &'static str,
    pub(super) on_store_error: &'static str,
    shed: &'static str,
    pub(super) enforced: bool,
    pub(super) global: bool,
    pub(super) remaining: Option<u64>,
    pub(super) reset_after: Option<f64>,
    decisions: BTreeMap<&'static str, u64>,
    waiting: u64,
    pause: Option<PauseStatus>,
    service: Option<ServiceStatus>,
    tiers: Vec<TierStatus>,
}

impl Status {
    pub(super) fn new(mut policies: Vec<PolicyStatus>, stores: Vec<StoreStatus>) -> Self {
        let names: BTreeSet<_> = policies.iter().map(|status| status.policy.clone()).collect();
        for status in &mut policies {
            status.level_of = level_of(&status.policy, &names);
        }
        Self { policies, stores }
    }
}

impl PolicyStatus {
    /// Adds the waiting calls, the pause and the called service's quota.
    pub(super) fn add(&mut self, observed: &ObservedPolicy) {
        for (outcome, count) in observed.decisions() {
            *self.decisions.entry(outcome).or_default() += count;
        }
        self.waiting += observed.waiting();
        self.pause = self.pause.take().or_else(|| observed.pause().map(Into::into));
        self.service = self.service.take().or_else(|| observed.service().map(Into::into));
    }
}

#[derive(Debug, Serialize)]
struct PauseStatus {
    left: f64,
    header: Option<String>,
}

impl From<CurrentPause> for PauseStatus {
    fn from(pause: CurrentPause) -> Self {
        Self { left: pause.left.as_secs_f64(), header: pause.header }
    }
}

#[derive(Debug, Serialize)]
struct ServiceStatus {
    limit: Option<u64>,
    remaining: u64,
    age: f64,
}

impl From<ServiceNumbers> for ServiceStatus {
    fn from(numbers: ServiceNumbers) -> Self {
        let ServiceNumbers { limit, remaining, age, .. } = numbers;
        Self { limit, remaining, age: age.as_secs_f64() }
    }
}

#[derive(Debug, Serialize)]
struct TierStatus {
    tier: String,
    #[serde(flatten)]
    quota: QuotaStatus,
}

#[derive(Debug, Serialize)]
struct QuotaStatus {
    limit: u64,
    window: f64,
    calendar: Option<CalendarStatus>,
    capacity: u64,
}

impl QuotaStatus {
    fn of(policy: &Policy, now: Timestamp) -> Self {
        Self {
            limit: policy.quota().limit(),
            window: seconds(policy.window()),
            calendar: CalendarStatus::of(policy, now),
            capacity: policy.capacity(),
        }
    }
}

#[derive(Debug, Serialize)]
struct CalendarStatus {
    name: &'static str,
    period: f64,
    ends_after: f64,
}

impl CalendarStatus {
    fn of(policy: &Policy, now: Timestamp) -> Option<Self> {
        let calendar = policy.quota().calendar()?;
        let period = calendar.period(now);
        Some(Self {
            name: calendar.name(),
            period: seconds(period.end().since(period.start())),
            ends_after: seconds(period.end().since(now)),
        })
    }
}

impl PolicyStatus {
    pub(super) fn new(
        limit: &Limit,
        policy: &Policy,
        store: &'static str,
        global: Option<Decision>,
        now: Timestamp,
    ) -> Self {
        let on_store_error = policy.on_store_error().unwrap_or_default();
        Self {
            policy: policy.name().to_owned(),
            level_of: None,
            algorithm: policy.kind().name(),
            quota: QuotaStatus::of(policy, now),
            store,
            on_store_error: on_store_error.name(),
            shed: policy.shed().unwrap_or(on_store_error).name(),
            enforced: limit.is_enforced(),
            global: limit.is_global(),
            remaining: global.map(|decision| decision.remaining),
            reset_after: global.map(|decision| seconds(decision.reset_after)),
            decisions: BTreeMap::new(),
            waiting: 0,
            pause: None,
            service: None,
            tiers: limit
                .tiers()
                .map(|(tier, policy)| TierStatus {
                    tier: tier.to_string(),
                    quota: QuotaStatus::of(policy, now),
                })
                .collect(),
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct StoreStatus {
    store: &'static str,
    available: bool,
    breaker: Option<&'static str>,
    memory: Option<Counters>,
    redis: Option<RedisStatus>,
    local: Option<Box<Self>>,
}

impl StoreStatus {
    pub(super) fn new(report: &StoreReport) -> Self {
        Self {
            store: report.name,
            available: report.is_available,
            breaker: report.breaker,
            memory: report.memory.clone(),
            redis: RedisStatus::of(report),
            local: report.local.as_deref().map(|local| Box::new(Self::new(local))),
        }
    }
}

#[derive(Debug, Serialize)]
struct RedisStatus {
    #[serde(flatten)]
    counters: Counters,
    /// A server's name is unknown before the first connection.
    servers: Vec<ServerStatus>,
}

#[derive(Debug, Serialize)]
struct ServerStatus {
    name: Option<&'static str>,
    version: Option<String>,
    warnings: Vec<String>,
}

impl RedisStatus {
    fn of(report: &StoreReport) -> Option<Self> {
        let servers = report.servers.iter().map(|server| ServerStatus {
            name: server.name,
            version: server.version.clone(),
            warnings: server.warnings.clone(),
        });
        Some(Self { counters: report.redis.clone()?, servers: servers.collect() })
    }
}

/// `GET /status/{policy}/{subject}`.
#[derive(Debug, Serialize)]
pub(super) struct SubjectStatus {
    pub(super) policy: String,
    tier: Option<String>,
    /// `None` if the policy does not apply to the subject.
    limit: Option<u64>,
    remaining: Option<u64>,
    reset_after: Option<f64>,
    source: &'static str,
    pub(super) blocked: bool,
    /// Of the block too.
    pub(super) override_ends_after: Option<f64>,
}

impl SubjectStatus {
    pub(super) fn new(
        limit: &Limit,
        tier: Option<&Tier>,
        decision: Option<Decision>,
        source: Source,
    ) -> Self {
        Self {
            policy: limit.policy().name().to_owned(),
            tier: tier.map(ToString::to_string),
            limit: decision.map(|decision| decision.limit),
            remaining: decision.map(|decision| decision.remaining),
            reset_after: decision.map(|decision| seconds(decision.reset_after)),
            source: source.name(),
            blocked: false,
            override_ends_after: None,
        }
    }
}

/// `GET /subjects/{subject}`.
#[derive(Debug, Serialize)]
pub(super) struct SubjectPolicies {
    pub(super) policies: Vec<SubjectPolicy>,
}

#[derive(Debug, Serialize)]
pub(super) struct SubjectPolicy {
    #[serde(flatten)]
    status: SubjectStatus,
    level_of: Option<String>,
}

impl SubjectPolicies {
    pub(super) fn new(policies: Vec<SubjectStatus>) -> Self {
        let names: BTreeSet<_> = policies.iter().map(|status| status.policy.clone()).collect();
        let of = |status: SubjectStatus| SubjectPolicy {
            level_of: level_of(&status.policy, &names),
            status,
        };
        Self { policies: policies.into_iter().map(of).collect() }
    }
}

/// The level's base policy, if the list contains it.
fn level_of(policy: &str, names: &BTreeSet<String>) -> Option<String> {
    Policy::base_of_level(policy).filter(|base| names.contains(*base)).map(ToOwned::to_owned)
}

/// The body of `POST /status/{policy}/{subject}`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Settle {
    pub(super) id: String,
    pub(super) cost: u64,
    /// The time of the charge in microseconds since 1970, as in the decision.
    pub(super) charged_at: u64,
    /// The time at which the request left the queue, if it waited.
    pub(super) leaves_at: Option<u64>,
    #[serde(default)]
    pub(super) local: bool,
    pub(super) actual: u64,
}

/// `GET /top`.
#[derive(Debug, Serialize)]
pub(super) struct Top {
    pub(super) policies: Vec<TopOfPolicy>,
}

#[derive(Debug, Serialize)]
pub(super) struct TopOfPolicy {
    pub(super) policy: String,
    pub(super) denied: Vec<TopSubject>,
}

#[derive(Debug, Serialize)]
pub(super) struct TopSubject {
    pub(super) subject: String,
    pub(super) client: &'static str,
    pub(super) count: u64,
    pub(super) error: u64,
}

#[expect(clippy::cast_precision_loss, reason = "a microsecond is lost after 285 years")]
pub(super) fn seconds(span: Micros) -> f64 {
    span.get() as f64 / 1e6
}

pub(super) fn json(answer: &impl Serialize) -> Result<Response, Problem> {
    let body = serde_json::to_string_pretty(answer).map_err(|error| {
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, format!("The answer: {error}."))
    })?;
    let mut response = format!("{body}\n").into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}
