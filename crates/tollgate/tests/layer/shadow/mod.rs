//! A shadow policy changes no decision, no wait and no order, in any state of the store.

mod plan;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response};
use http_body_util::Full;
use parking_lot::Mutex;
use proptest::prelude::*;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tollgate::headers::{self, HeaderOptions};
use tollgate::layer::WaitQueue;
use tollgate::limit::Mode;
use tollgate::policy::OnStoreError;
use tollgate::store::AnyStore;
use tollgate::{Limit, StoreExt};
use tollgate_store_tests::is_long;
use tower::{Layer, ServiceExt, service_fn};

use self::plan::{COST, Drawn, Keyed, Plan, PolicyKind, Settled, Step, TENANT, plan};
use crate::stage::{Fault, Staged};
use crate::support::*;

impl Plan {
    fn limits(&self, with_shadows: bool) -> Vec<Limit> {
        let limits = self.limits.iter().enumerate();
        let mut limits: Vec<_> = limits.map(|(n, it)| it.limit(&format!("p{n}"))).collect();
        for (n, (position, shadow)) in self.shadows.iter().enumerate().filter(|_| with_shadows) {
            let position = position % (limits.len() + 1);
            limits.insert(position, shadow.limit(&format!("s{n}")).shadow());
        }
        limits
    }

    /// Carries out the plan and returns all that clients and the service can observe.
    async fn observe(&self, with_shadows: bool) -> Vec<String> {
        let limits = self.limits(with_shadows);
        let remote = Staged::new(on_tokio_time());
        let store = match self.is_remote {
            true => AnyStore::new(remote.clone()),
            false => AnyStore::new(on_tokio_time()),
        };
        let store = AnyStore::new(store.or_local(on_tokio_time()));
        let journal = Journal::default();
        let seen = journal.clone();
        let service = service_fn(move |request: Request<()>| {
            let seen = seen.clone();
            async move {
                let Sent { number, status, takes } = *request.extensions().get().unwrap();
                seen.note(&format!("the service gets {number}"));
                sleep(Duration::from_millis(takes)).await;
                let mut response = Response::new(Full::<Bytes>::from("done"));
                *response.status_mut() = status.try_into().unwrap();
                response.headers_mut().insert(headers::COST, HeaderValue::from_static("1"));
                Ok::<_, Infallible>(response)
            }
        });
        let options = HeaderOptions::all().retry_jitter(Duration::from_secs(5));
        let layer = builder(&store, limits).headers(options);
        let layer = layer.wait_queue(&WaitQueue::new().max_requests(self.max_requests));
        let service = layer.build().unwrap().layer(service);
        let mut requests = Vec::<JoinHandle<()>>::new();
        for step in &self.steps {
            match step {
                Step::Send { client, has_tenant, cost, status, takes } => {
                    let number = requests.len();
                    let mut request = from_peer(*client, request(Method::GET, "/"));
                    request.headers_mut().insert(COST, (*cost).into());
                    if *has_tenant {
                        request.headers_mut().insert(TENANT, u16::from(*client % 2).into());
                    }
                    request.extensions_mut().insert(Sent {
                        number,
                        status: *status,
                        takes: *takes,
                    });
                    let (response, journal) = (service.clone().oneshot(request), journal.clone());
                    requests.push(tokio::spawn(async move {
                        journal.answered(number, response.await.unwrap()).await;
                    }));
                    settle_down().await;
                }
                Step::Pass(millis) => sleep(Duration::from_millis(*millis)).await,
                Step::Fail(None) => remote.recover(),
                Step::Fail(Some(fault)) => remote.fail(*fault),
                Step::Hold => remote.hold(),
                Step::Release => remote.release(),
                Step::Leave(_) if requests.is_empty() => {}
                Step::Leave(request) => {
                    requests[request % requests.len()].abort();
                    settle_down().await;
                }
            }
        }
        remote.recover();
        remote.release();
        for request in requests {
            let _ = request.await;
        }
        journal.lines()
    }
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    number: usize,
    status: u16,
    takes: u64,
}

/// The events in order, each with its time.
#[derive(Clone)]
struct Journal {
    start: Instant,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Default for Journal {
    fn default() -> Self {
        Self { start: Instant::now(), lines: Arc::default() }
    }
}

impl Journal {
    fn note(&self, what: &str) {
        self.lines.lock().push(format!("{} ms: {what}", self.start.elapsed().as_millis()));
    }

    async fn answered(&self, number: usize, response: Response<Full<Bytes>>) {
        let (status, fields) = (response.status(), rate_fields(response.headers()));
        let body = text(response).await;
        self.note(&format!("{number} gets {status} {fields:?} {body}"));
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().clone()
    }
}

/// What clients and the service observe with and without the shadow policies.
fn observations(plan: &Plan) -> [Vec<String>; 2] {
    [true, false].map(|with_shadows| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(plan.observe(with_shadows))
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if is_long() { 20_000 } else { 64 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn shadow_policies_change_nothing(plan in plan()) {
        let [with_shadows, without] = observations(&plan);
        prop_assert_eq!(with_shadows, without);
    }
}

const OPEN: Drawn = Drawn {
    kind: PolicyKind::Log,
    units: 1,
    key: Keyed::Global,
    is_flat: true,
    mode: Mode::Reject,
    on_store_error: OnStoreError::Open,
    shed: None,
    settled: Settled::Never,
};
const WAITS: Drawn = Drawn { mode: Mode::Wait(Duration::from_secs(60)), ..OPEN };
const PERMIT: Drawn = Drawn { kind: PolicyKind::InFlight, ..WAITS };
const SHADOW_PERMIT: Drawn = Drawn { kind: PolicyKind::InFlight, ..OPEN };
const OF_CLIENT: Drawn = Drawn { key: Keyed::Client, ..OPEN };
const LOCAL: Drawn = Drawn { on_store_error: OnStoreError::Local, ..OPEN };
const CLOSED: Drawn = Drawn { on_store_error: OnStoreError::Closed, ..OPEN };
const CLOSED_WAITS: Drawn = Drawn { on_store_error: OnStoreError::Closed, ..WAITS };
const COSTLY: Drawn = Drawn { is_flat: false, ..OPEN };
const QUEUE: Drawn = Drawn { kind: PolicyKind::Queue, units: 3, ..OPEN };

const SEND: Step = Step::Send { client: 1, has_tenant: true, cost: 2, status: 200, takes: 0 };
const FAIL: Step = Step::Fail(Some(Fault::NotCharged));

/// Requests that arrive after a permit was returned and before the first waiter has seen it.
fn arrivals_before_retry() -> Vec<Step> {
    let long = Step::Send { client: 1, has_tenant: true, cost: 2, status: 200, takes: 1_500 };
    let mut steps = vec![long, SEND, Step::Pass(1_480)];
    steps.extend((0..40).flat_map(|_| [SEND, Step::Pass(1)]));
    steps
}

#[test]
fn shadow_policies_change_no_known_case() {
    let sent = |count| vec![SEND; count];
    for (name, limit, shadow, max_requests, steps) in [
        ("jitter of Retry-After", OPEN, OF_CLIENT, 1, sent(2)),
        ("X-RateLimit-Reason", OPEN, LOCAL, 1, vec![FAIL, SEND]),
        ("a client's part of the queue", WAITS, OF_CLIENT, 2, sent(3)),
        (
            "full queue when the store fails and recovers",
            WAITS,
            LOCAL,
            1,
            vec![SEND, SEND, Step::Hold, FAIL, SEND],
        ),
        (
            "full queue while a closed policy's store fails",
            Drawn { kind: PolicyKind::InFlight, ..CLOSED_WAITS },
            LOCAL,
            1,
            vec![
                Step::Send { client: 1, has_tenant: true, cost: 1, status: 200, takes: 1_500 },
                SEND,
                FAIL,
                SEND,
            ],
        ),
        ("order of waiters", PERMIT, COSTLY, 99, arrivals_before_retry()),
        ("closed beside local", LOCAL, CLOSED, 1, vec![FAIL, SEND, SEND]),
        ("closed beside open", OPEN, CLOSED, 1, vec![FAIL, SEND, SEND]),
        ("a client that leaves while the store fails", LOCAL, SHADOW_PERMIT, 1, {
            vec![Step::Hold, FAIL, SEND, Step::Leave(0), Step::Release, SEND]
        }),
        ("delay", OPEN, QUEUE, 1, vec![SEND, Step::Pass(10_000), SEND]),
    ] {
        let (limits, shadows) = (vec![limit], vec![(0, shadow)]);
        let plan = Plan { limits, shadows, max_requests, is_remote: true, steps };
        let [with_shadows, without] = observations(&plan);
        assert_eq!(with_shadows, without, "{name}");
    }
}
