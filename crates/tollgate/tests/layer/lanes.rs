//! Requests that need units of several keys: which key they wait for, and in what order they pass.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use parking_lot::Mutex;
use proptest::prelude::*;
use tokio::task::JoinHandle;
use tokio::time::{Instant, advance};
use tollgate::key::{ClientIp, Key, KeySource, RequestHead};
use tollgate::layer::{RateLimit, WaitQueue};
use tollgate::limit::Mode;
use tollgate::policy::Cost;
use tollgate::store::{ManualClock, Micros};
use tollgate::{Costs, Limit, MemoryStore, Policy, Quota, Store, StoreExt};
use tower::util::BoxCloneSyncService;
use tower::{Layer, ServiceExt, service_fn};

use crate::support::*;

const HOUR: Duration = Duration::from_secs(3_600);

/// One unit in any `window`.
fn once_in(name: &str, window: Duration) -> Policy {
    Policy::sliding_window_log(name, Quota::every(window)).unwrap()
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A limit that all clients share. Excess requests wait.
fn shared(window: u64) -> Limit {
    waits(Limit::global(once_in("shared", secs(window))))
}

/// A limit per client. Excess requests wait.
fn own(window: u64) -> Limit {
    waits(Limit::new(once_in("own", secs(window)), ClientIp::peer()))
}

fn waits(limit: Limit) -> Limit {
    limit.costs(Costs::flat(Cost::ONE)).mode(Mode::Wait(HOUR))
}

/// Requests in flight, and when each was allowed.
struct Clients<St: Store> {
    service: RateLimit<Hello, St>,
    start: Instant,
    requests: Vec<JoinHandle<(u16, u64)>>,
}

impl<St: Store> Clients<St> {
    fn of(service: RateLimit<Hello, St>) -> Self {
        Self { service, start: Instant::now(), requests: Vec::new() }
    }

    fn behind(store: &St, limits: impl IntoIterator<Item = Limit>) -> Self {
        Self::of(limited(store, limits))
    }

    /// The client with this number sends a request. No time passes.
    async fn send(&mut self, client: u8) {
        self.send_to(client, "/").await;
    }

    async fn send_to(&mut self, client: u8, path: &str) {
        let answer = self.service.clone().oneshot(from_peer(client, request(Method::GET, path)));
        let start = self.start;
        self.requests.push(tokio::spawn(async move {
            let status = answer.await.unwrap().status().as_u16();
            (status, start.elapsed().as_secs())
        }));
        settle_down().await;
    }

    /// The client of the request with this number closes its connection.
    async fn leave(&self, request: usize) {
        self.requests[request].abort();
        settle_down().await;
    }

    /// Which requests have been answered.
    fn answered(&self) -> Vec<bool> {
        self.requests.iter().map(JoinHandle::is_finished).collect()
    }

    /// When each request was allowed, in seconds, or `None` if its client has left.
    async fn admitted(self) -> Vec<Option<u64>> {
        let mut admitted = Vec::new();
        for request in self.requests {
            let answer = request.await.ok();
            assert!(answer.is_none_or(|(status, _)| status == 200), "{answer:?}");
            admitted.push(answer.map(|(_, after)| after));
        }
        admitted
    }
}

/// Excess requests wait for the shared limit, but a client's own limit rejects them.
fn shared_waits_own_rejects() -> [Limit; 2] {
    let own = Limit::new(log("own", 1), ClientIp::peer()).costs(Costs::flat(Cost::ONE));
    [shared(10), own]
}

#[tokio::test(start_paused = true)]
async fn rejecting_limit_does_not_wait_for_queue() {
    let store = on_tokio_time();
    let mut clients = Clients::behind(&store, shared_waits_own_rejects());
    // The first client's own unit is used up for a minute.
    for client in [1, 2, 1] {
        clients.send(client).await;
    }
    assert_eq!(clients.answered(), [true, false, true]);
}

#[tokio::test(start_paused = true)]
async fn rejected_requests_do_not_occupy_queue() {
    let store = on_tokio_time();
    let queue = WaitQueue::new().max_requests(3);
    let layer = builder(&store, shared_waits_own_rejects()).wait_queue(&queue);
    let mut clients = Clients::of(layer.build().unwrap().layer(hello()));
    for client in [1, 2, 1, 1, 1, 3] {
        clients.send(client).await;
    }
    let mut outcomes = Vec::new();
    for request in clients.requests {
        outcomes.push(request.await.unwrap());
    }
    assert_eq!(outcomes, [(200, 0), (200, 10), (429, 0), (429, 0), (429, 0), (200, 20)]);
}

#[tokio::test(start_paused = true)]
async fn client_with_one_unit_cannot_fill_queue() {
    let store = on_tokio_time();
    let layer = builder(&store, shared_waits_own_rejects()).max_waiting(4);
    let mut clients = Clients::of(layer.build().unwrap().layer(hello()));
    // Each request from the second client still sees its own unit because no earlier request has
    // been charged yet.
    for client in [1, 2, 2, 2, 2, 3] {
        clients.send(client).await;
    }
    assert_eq!(clients.answered(), [true, false, false, true, true, false]);
    let mut outcomes = Vec::new();
    for request in clients.requests {
        outcomes.push(request.await.unwrap());
    }
    assert_eq!(outcomes, [(200, 0), (200, 10), (429, 10), (429, 0), (429, 0), (200, 20)]);
}

#[tokio::test(start_paused = true)]
async fn departed_client_frees_both_lanes() {
    let store = on_tokio_time();
    let queue = WaitQueue::new();
    let layer = builder(&store, [shared(10), own(100)]).wait_queue(&queue).build().unwrap();
    let mut clients = Clients::of(layer.layer(hello()));
    for client in [1, 1, 1, 2] {
        clients.send(client).await;
    }
    assert!(format!("{queue:?}").contains("waiting: 3, lanes: 2"), "{queue:?}");
    clients.leave(1).await;
    assert!(format!("{queue:?}").contains("waiting: 2, lanes: 2"), "{queue:?}");
    assert_eq!(clients.admitted().await, [Some(0), None, Some(100), Some(10)]);
    assert!(format!("{queue:?}").contains("waiting: 0, lanes: 0"), "{queue:?}");
}

#[tokio::test(start_paused = true)]
async fn full_queue_denial_names_contended_policies() {
    let store = on_tokio_time();
    let layer = builder(&store, [own(1), shared(10)]).max_waiting(1).build().unwrap();
    let mut clients = Clients::of(layer.layer(hello()));
    clients.send(1).await;
    clients.send(2).await;
    let denied = ask(&clients.service, from_peer(3, get())).await;
    assert_eq!(denied.status(), 429);
    let body = json(denied).await;
    assert_eq!(body["violated-policies"], serde_json::json!(["shared"]), "{body}");
    assert_eq!(clients.admitted().await, [0, 10].map(Some));
}

/// A request of the property below.
#[derive(Clone, Debug)]
struct Sent {
    at: u64,
    client: u8,
    is_report: bool,
    leaves_after: Option<u64>,
}

impl Sent {
    fn request(&self, number: usize) -> Request<()> {
        let path = if self.is_report { "/report" } else { "/" };
        let mut request = from_peer(self.client, request(Method::GET, path));
        request.extensions_mut().insert(number);
        request
    }
}

fn sent() -> impl Strategy<Value = Sent> {
    let leaves = prop_oneof![3 => Just(None), 1 => (1..60_u64).prop_map(Some)];
    (0..50_u64, 1..4_u8, any::<bool>(), leaves).prop_map(|(at, client, is_report, leaves_after)| {
        Sent { at, client, is_report, leaves_after }
    })
}

/// The property's policies: for all requests, for each client, and for all reports.
struct Policies {
    shared: Policy,
    own: Policy,
    reports: Policy,
}

impl Policies {
    fn new() -> Self {
        let policy = |name, limit, millis| {
            let quota = Quota::new(limit, Duration::from_millis(millis));
            Policy::sliding_window_log(name, quota).unwrap()
        };
        Self {
            shared: policy("shared", 2, 17),
            own: policy("own", 1, 31),
            reports: policy("reports", 1, 23),
        }
    }

    fn limits(&self) -> [Limit; 3] {
        [
            waits(Limit::global(self.shared.clone())),
            waits(Limit::new(self.own.clone(), ClientIp::peer())),
            waits(Limit::global(self.reports.clone())).when(|head| head.uri.path() == "/report"),
        ]
    }

    /// The keys from which the request needs a unit.
    fn needs(&self, sent: &Sent) -> Vec<(Policy, Key)> {
        let head = sent.request(0);
        let client = ClientIp::peer().subject(&RequestHead::of(&head)).unwrap().unwrap().key;
        let mut needs = vec![(self.shared.clone(), Key::GLOBAL), (self.own.clone(), client)];
        if sent.is_report {
            needs.push((self.reports.clone(), Key::GLOBAL));
        }
        needs
    }
}

/// A request of the property while it is in flight.
struct UnderWay {
    needs: Vec<(Policy, Key)>,
    task: JoinHandle<u16>,
    leaves_at: Option<u64>,
    /// The keys that had no unit for this request at the end of the last step.
    lacked: Vec<(Policy, Key)>,
    /// The number of steps in which it could have passed but did not.
    idle: u32,
}

impl UnderWay {
    async fn lacks(&self, store: &MemoryStore<ManualClock>) -> Vec<(Policy, Key)> {
        let mut lacks = Vec::new();
        for (policy, key) in &self.needs {
            let verdict = store.foresee(policy, key, &[Cost::ONE]).await.unwrap();
            if !verdict.decisions()[0].allows() {
                lacks.push((policy.clone(), key.clone()));
            }
        }
        lacks
    }
}

/// Sends the requests in steps of one millisecond. Panics if a later request takes a unit that an
/// earlier request waits for, or if a request waits although it could pass.
async fn passes_in_order(requests: Vec<Sent>) {
    let (clock, store) = memory();
    let policies = Policies::new();
    let queue = WaitQueue::new();
    let admitted = Arc::<Mutex<Vec<usize>>>::default();
    let note = Arc::clone(&admitted);
    let inner = service_fn(move |request: Request<()>| {
        note.lock().extend(request.extensions().get::<usize>());
        std::future::ready(Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())))
    });
    let layer = builder(&store, policies.limits()).wait_queue(&queue).build().unwrap();
    let service = BoxCloneSyncService::new(layer.layer(inner));
    let mut under_way = BTreeMap::<usize, UnderWay>::new();
    let mut next = 0;
    for now in 0.. {
        // Advance the store's clock first: newcomers then see units before the waiters' timers
        // have fired.
        clock.advance(Micros::new(1_000));
        let mut could_pass = Vec::new();
        for (number, request) in &under_way {
            if request.lacks(&store).await.is_empty() {
                could_pass.push(*number);
            }
        }
        while let Some(sent) = requests.get(next).filter(|sent| sent.at == now) {
            let answer = service.clone().oneshot(sent.request(next));
            let task = tokio::spawn(async move { answer.await.unwrap().status().as_u16() });
            let leaves_at = sent.leaves_after.map(|after| now + after);
            let needs = policies.needs(sent);
            let request = UnderWay { needs, task, leaves_at, lacked: Vec::new(), idle: 0 };
            under_way.insert(next, request);
            settle_down().await;
            next += 1;
        }
        advance(Duration::from_millis(1)).await;
        settle_down().await;
        let passed = std::mem::take(&mut *admitted.lock());
        let passed: BTreeMap<_, _> = passed
            .into_iter()
            .filter_map(|number| Some((number, under_way.remove(&number)?.needs)))
            .collect();
        for (number, waiting) in &mut under_way {
            let lacks = waiting.lacks(&store).await;
            // The request waited only for this key, and the key had a unit for it.
            if let [key] = &waiting.lacked[..]
                && could_pass.contains(number)
            {
                // A later request overtook this request if it took every unit that is lacking now.
                // If a third request took a unit of another key in this step, this request now
                // waits for that key instead.
                let overtook = |needs: &Vec<_>| {
                    needs.contains(key) && lacks.iter().all(|lacked| needs.contains(lacked))
                };
                let overtook = passed.range(number..).find(|(_, needs)| overtook(needs));
                let overtook = overtook.map(|(later, _)| later);
                assert_eq!(overtook, None, "{number} was overtaken at {now} ms");
            }
            waiting.lacked = lacks;
            waiting.idle = if waiting.lacked.is_empty() { waiting.idle + 1 } else { 0 };
            assert!(waiting.idle <= 2, "{number} could pass, but waits at {now} ms");
            if waiting.leaves_at == Some(now) {
                waiting.task.abort();
            }
        }
        settle_down().await;
        under_way.retain(|_, waiting| !waiting.task.is_finished());
        if next == requests.len() && under_way.is_empty() {
            break;
        }
    }
    assert!(format!("{queue:?}").contains("waiting: 0, lanes: 0"), "{queue:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn units_go_to_earliest_waiter_without_idling(
        mut requests in proptest::collection::vec(sent(), 1..16)
    ) {
        requests.sort_by_key(|sent| sent.at);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(passes_in_order(requests));
    }
}
