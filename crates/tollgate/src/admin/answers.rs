//! The JSON of responses. `docs/admin-api.md` documents the members, and a test compares.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tollgate_core::{Decision, Micros, Policy, Settlement, Source, Timestamp};

use crate::Limit;
use crate::observe::source_name;
use crate::status::StoreReport;
use crate::store::BreakerState;
use crate::tier::Tier;

/// `GET /status`.
#[derive(Debug, Serialize)]
pub(super) struct Status {
    pub(super) policies: Vec<PolicyStatus>,
    pub(super) stores: Vec<StoreStatus>,
}

#[derive(Debug, Serialize)]
pub(super) struct PolicyStatus {
    pub(super) policy: String,
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
    pub(super) decisions: BTreeMap<&'static str, u64>,
    tiers: Vec<TierStatus>,
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
        store: &'static str,
        global: Option<Decision>,
        now: Timestamp,
    ) -> Self {
        let policy = limit.policy();
        let on_store_error = policy.on_store_error().unwrap_or_default();
        Self {
            policy: policy.name().to_owned(),
            algorithm: policy.kind().name(),
            quota: QuotaStatus::of(policy, now),
            store,
            on_store_error: on_store_error.name(),
            shed: policy.shed().unwrap_or(on_store_error).name(),
            enforced: limit.enforce,
            global: crate::status::is_global(limit),
            remaining: global.map(|decision| decision.remaining),
            reset_after: global.map(|decision| seconds(decision.reset_after)),
            decisions: BTreeMap::new(),
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
    memory: Option<BTreeMap<&'static str, u64>>,
    redis: Option<RedisStatus>,
    local: Option<Box<Self>>,
}

impl StoreStatus {
    pub(super) fn new(report: &StoreReport) -> Self {
        Self {
            store: report.name,
            available: report.is_available,
            breaker: report.breaker.map(BreakerState::as_str),
            memory: memory(report),
            redis: redis(report),
            local: report.local.as_deref().map(|local| Box::new(Self::new(local))),
        }
    }
}

#[cfg(feature = "memory")]
fn memory(report: &StoreReport) -> Option<BTreeMap<&'static str, u64>> {
    let stats = report.memory?;
    let members = [
        ("keys", stats.keys as u64),
        ("bytes", stats.bytes as u64),
        ("overflowed", stats.overflowed),
    ];
    Some(members.into())
}

#[cfg(not(feature = "memory"))]
fn memory(_: &StoreReport) -> Option<BTreeMap<&'static str, u64>> {
    None
}

#[derive(Debug, Serialize)]
struct RedisStatus {
    #[serde(flatten)]
    stats: BTreeMap<&'static str, u64>,
    /// A server has no name before the first connection.
    servers: Vec<ServerStatus>,
}

#[derive(Debug, Serialize)]
struct ServerStatus {
    name: Option<&'static str>,
    version: Option<String>,
    warnings: Vec<String>,
}

#[cfg(feature = "redis")]
fn redis(report: &StoreReport) -> Option<RedisStatus> {
    let stats = report.redis?;
    let members = [
        ("calls", stats.calls),
        ("requests", stats.requests),
        ("refused", stats.refused),
        ("lost", stats.lost),
        ("late", stats.late),
        ("shed", stats.shed),
        ("deny_cache_hits", stats.deny_cache_hits),
        ("leased", stats.leased),
        ("queued", stats.queued),
        ("connections", stats.connections),
    ];
    let servers = report.servers.iter().map(|server| ServerStatus {
        name: server.name,
        version: server.version.clone(),
        warnings: server.warnings.iter().map(ToString::to_string).collect(),
    });
    Some(RedisStatus { stats: members.into(), servers: servers.collect() })
}

#[cfg(not(feature = "redis"))]
fn redis(_: &StoreReport) -> Option<RedisStatus> {
    None
}

/// `GET /status/{policy}/{subject}`.
#[derive(Debug, Serialize)]
pub(super) struct SubjectStatus {
    policy: String,
    tier: Option<String>,
    limit: u64,
    remaining: u64,
    reset_after: f64,
    source: &'static str,
}

impl SubjectStatus {
    pub(super) fn new(
        limit: &Limit,
        tier: Option<&Tier>,
        decision: &Decision,
        source: Source,
    ) -> Self {
        Self {
            policy: limit.policy().name().to_owned(),
            tier: tier.map(ToString::to_string),
            limit: decision.limit,
            remaining: decision.remaining,
            reset_after: seconds(decision.reset_after),
            source: source_name(source, "store"),
        }
    }
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

#[derive(Debug, Serialize)]
pub(super) struct Settled {
    settlement: &'static str,
    units: u64,
}

impl From<Settlement> for Settled {
    fn from(settlement: Settlement) -> Self {
        let (settlement, units) = match settlement {
            Settlement::Returned { units } => ("returned", units),
            Settlement::Charged { units } => ("charged", units),
            Settlement::Repeated => ("repeated", 0),
            Settlement::Lapsed => ("lapsed", 0),
        };
        Self { settlement, units }
    }
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
fn seconds(span: Micros) -> f64 {
    span.get() as f64 / 1e6
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use tollgate_redis::{RedisReport, RedisStats, RedisWarning};

    use super::*;

    #[test]
    fn a_server_is_shown_with_its_name_its_version_and_its_warnings() {
        let mut server = RedisReport::default();
        (server.name, server.version) = (Some("Valkey"), Some("8.1.1".to_owned()));
        server.warnings = vec![RedisWarning::Cluster];
        let mut report = StoreReport::new("redis", 1);
        (report.redis, report.servers) = (Some(RedisStats::default()), vec![server]);
        let shown = serde_json::to_value(StoreStatus::new(&report)).unwrap();
        let expected = serde_json::json!([{
            "name": "Valkey",
            "version": "8.1.1",
            "warnings": [RedisWarning::Cluster.to_string()],
        }]);
        assert_eq!(shown["redis"]["servers"], expected);
        assert_eq!(shown["redis"]["calls"], 0);
    }
}
