//! Random layers and requests, and the limits that they describe.

use std::time::Duration;

use http::HeaderName;
use proptest::prelude::*;
use tollgate::headers;
use tollgate::key::{ClientIp, Header};
use tollgate::limit::{Mode, OnMissingKey, Reserve};
use tollgate::policy::{Cost, OnStoreError, Strikes};
use tollgate::{Costs, Limit, Policy, Quota};

use crate::stage::Fault;

const WINDOW: Duration = Duration::from_secs(10);
pub(super) const COST: &str = "x-cost";
pub(super) const TENANT: &str = "x-tenant";

/// Requests to a layer, and shadow policies that must not change their responses.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) limits: Vec<Drawn>,
    pub(super) shadows: Vec<(usize, Drawn)>,
    pub(super) max_requests: usize,
    /// Whether the store can fail and delay its replies, otherwise it always replies immediately.
    pub(super) is_remote: bool,
    pub(super) steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Drawn {
    pub(super) kind: PolicyKind,
    pub(super) units: u64,
    pub(super) key: Keyed,
    /// Each request costs 1, otherwise its own number of units.
    pub(super) is_flat: bool,
    pub(super) mode: Mode,
    pub(super) on_store_error: OnStoreError,
    pub(super) shed: Option<OnStoreError>,
    pub(super) settled: Settled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PolicyKind {
    Log,
    Bucket,
    Queue,
    InFlight,
    Denials,
    Failures,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Keyed {
    Global,
    Client,
    Tenant,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Settled {
    Never,
    ByStatus,
    ByHeader,
}

#[derive(Clone, Debug)]
pub(super) enum Step {
    Send { client: u8, has_tenant: bool, cost: u64, status: u16, takes: u64 },
    Pass(u64),
    Fail(Option<Fault>),
    Hold,
    Release,
    Leave(usize),
}

fn drawn() -> impl Strategy<Value = Drawn> {
    use OnStoreError::{Closed, Local, Open};
    let kind = prop::sample::select(vec![
        PolicyKind::Log,
        PolicyKind::Log,
        PolicyKind::Bucket,
        PolicyKind::Queue,
        PolicyKind::InFlight,
        PolicyKind::Denials,
        PolicyKind::Failures,
    ]);
    let key = prop::sample::select(vec![Keyed::Global, Keyed::Client, Keyed::Tenant]);
    let mode = prop_oneof![
        2 => Just(Mode::Reject),
        3 => (1..60_u64).prop_map(|max| Mode::Wait(Duration::from_secs(max))),
        1 => Just(Mode::Annotate),
    ];
    let on_store_error = prop::sample::select(vec![Open, Closed, Local]);
    let shed = prop::sample::select(vec![None, None, Some(Open), Some(Closed), Some(Local)]);
    let settled = prop::sample::select(vec![Settled::Never, Settled::ByStatus, Settled::ByHeader]);
    (kind, 1..4_u64, key, any::<bool>(), mode, on_store_error, shed, settled).prop_map(
        |(kind, units, key, is_flat, mode, on_store_error, shed, settled)| Drawn {
            kind,
            units,
            key,
            is_flat,
            mode,
            on_store_error,
            shed,
            settled,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let status = prop::sample::select(vec![200, 401]);
    let takes = prop::sample::select(vec![0, 0, 1_500, 12_000]);
    let fault = prop::sample::select(vec![
        None,
        Some(Fault::NotCharged),
        Some(Fault::MaybeCharged),
        Some(Fault::Overloaded),
        Some(Fault::Invalid),
    ]);
    prop_oneof![
        12 => (1..4_u8, any::<bool>(), 0..5_u64, status, takes).prop_map(
            |(client, has_tenant, cost, status, takes)| {
                Step::Send { client, has_tenant, cost, status, takes }
            }
        ),
        4 => (1..12_000_u64).prop_map(Step::Pass),
        2 => fault.prop_map(Step::Fail),
        1 => Just(Step::Hold),
        1 => Just(Step::Release),
        1 => (0..40_usize).prop_map(Step::Leave),
    ]
}

pub(super) fn plan() -> impl Strategy<Value = Plan> {
    let limits = prop::collection::vec(drawn(), 1..4);
    let shadows = prop::collection::vec((0..4_usize, drawn()), 1..4);
    let steps = prop::collection::vec(step(), 1..40);
    (limits, shadows, 1..9_usize, any::<bool>(), steps).prop_map(
        |(mut limits, mut shadows, max_requests, is_remote, steps)| {
            // A request with only shadow policies waits for the store's reply, too.
            if let Keyed::Tenant = limits[0].key {
                limits[0].key = Keyed::Client;
            }
            // A layer has at most one queue that delays requests.
            let is_queue = |limit: &&mut Drawn| limit.kind == PolicyKind::Queue;
            for limit in limits.iter_mut().filter(is_queue).skip(1) {
                limit.kind = PolicyKind::Log;
            }
            // A penalty for denials cannot be in a layer with waiting requests.
            let waits = limits.iter().any(Drawn::waits);
            let all = limits.iter_mut().chain(shadows.iter_mut().map(|(_, limit)| limit));
            for limit in all.filter(|limit| waits && limit.kind == PolicyKind::Denials) {
                limit.kind = PolicyKind::Failures;
            }
            Plan { limits, shadows, max_requests, is_remote, steps }
        },
    )
}

impl Drawn {
    const fn is_penalty(&self) -> bool {
        matches!(self.kind, PolicyKind::Denials | PolicyKind::Failures)
    }

    const fn waits(&self) -> bool {
        matches!(self.mode, Mode::Wait(_)) && !self.is_penalty()
    }

    pub(super) fn limit(&self, name: &str) -> Limit {
        let limit = self.keyed(self.policy(name));
        let limit = match self.kind {
            PolicyKind::Denials => return limit,
            PolicyKind::Failures => return limit.count_only(|response| response.status == 401),
            PolicyKind::InFlight => return limit.mode(self.mode),
            PolicyKind::Log | PolicyKind::Bucket | PolicyKind::Queue => limit.costs(self.costs()),
        };
        let limit = limit.mode(self.mode);
        match self.settled {
            Settled::Never => limit,
            Settled::ByStatus => limit.count_only(|response| response.status == 401),
            Settled::ByHeader => limit.reserve(Reserve::by_handler().or_by_header(headers::COST)),
        }
    }

    fn policy(&self, name: &str) -> Policy {
        let quota = Quota::new(self.units, WINDOW);
        let policy = match self.kind {
            PolicyKind::Log => Policy::sliding_window_log(name, quota),
            PolicyKind::Bucket => Policy::token_bucket(name, quota),
            PolicyKind::Queue => Policy::leaky_bucket(name, quota),
            PolicyKind::InFlight => Policy::concurrent_requests(name, self.units, 60 * WINDOW),
            PolicyKind::Denials => {
                Policy::penalty(name, Strikes::of_denials(self.units, WINDOW).block(WINDOW))
            }
            PolicyKind::Failures => {
                Policy::penalty(name, Strikes::of_failures(self.units, WINDOW).block(WINDOW))
            }
        };
        let policy = policy.unwrap().with_on_store_error(self.on_store_error);
        self.shed.into_iter().fold(policy, Policy::with_shed)
    }

    fn keyed(&self, policy: Policy) -> Limit {
        match self.key {
            Keyed::Global => Limit::global(policy),
            Keyed::Client => Limit::new(policy, ClientIp::peer()),
            Keyed::Tenant => {
                let tenant = Header::trust_unverified(HeaderName::from_static(TENANT));
                Limit::new(policy, tenant).on_missing_key(OnMissingKey::Deny)
            }
        }
    }

    fn costs(&self) -> Costs {
        if self.is_flat {
            return Costs::flat(Cost::ONE);
        }
        Costs::from_fn(|head| head.headers[COST].to_str().ok()?.parse::<u64>().ok())
    }
}
