//! Requests in flight: their leases are renewed while they last, and given back after.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use tollgate_core::{Cost, Policy, Receipt, Store, StoreError, Verdict};

use super::queued::{Charged, next_id};
use crate::body::InFlight;

/// Knows what the requests of a layer hold, and keeps it for them.
///
/// A task looks after leases while there are any: each is renewed when a quarter of it is
/// over, or a half at the latest, so that the rest is left for a store that is away. What is
/// over before then costs an entry in a map, and no timer.
pub(super) struct Keeper<St>(Arc<Shared<St>>);

struct Shared<St> {
    store: St,
    /// A quarter of the shortest lease.
    every: Duration,
    register: Mutex<Register>,
}

struct Register {
    requests: HashMap<u64, Held>,
    next: u64,
    /// Where the task runs, if it does.
    runtime: Option<Handle>,
}

/// What a request holds.
struct Held {
    receipts: Receipts,
    since: Instant,
    /// The receipts are with the store, and who brings them back gives them back if the
    /// request is over by then.
    renewing: bool,
}

type Receipts = SmallVec<[Receipt; 1]>;

impl<St: Store> Keeper<St> {
    /// A keeper, if one of the policies counts in flight.
    pub(super) fn of<'a>(store: &St, policies: impl Iterator<Item = &'a Policy>) -> Option<Self> {
        let in_flight = policies.filter(|policy| policy.counts_in_flight());
        let shortest = in_flight.map(|policy| Duration::from(policy.window())).min()?;
        let every = (shortest / 4).max(SHORTEST_SLEEP);
        let register = Register { requests: HashMap::new(), next: 0, runtime: None };
        let shared = Shared { store: store.clone(), every, register: Mutex::new(register) };
        Some(Self(Arc::new(shared)))
    }

    /// What a verdict says is in flight from now on, until what comes back is dropped.
    pub(super) fn hold(&self, verdict: &Verdict, charged: &[Charged]) -> InFlight {
        let charges: SmallVec<[_; 4]> = charged.iter().map(Charged::charge).collect();
        let receipts = verdict.receipts(&charges, || next_id(verdict));
        let receipts: Receipts =
            receipts.filter(|receipt| receipt.policy.counts_in_flight()).collect();
        if receipts.is_empty() {
            return InFlight::default();
        }
        let shared = &self.0;
        let mut register = shared.register.lock();
        let request = register.next;
        register.next += 1;
        let held = Held { receipts, since: Instant::now(), renewing: false };
        register.requests.insert(request, held);
        if register.runtime.is_none()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(keep(Task(Arc::downgrade(shared)), shared.every));
            register.runtime = Some(runtime);
        }
        drop(register);
        InFlight::until_dropped(Hold { shared: Arc::clone(shared), request })
    }

    /// The answer of the store. If who asked leaves before it is there, what it says is in
    /// flight is given back: else whoever comes and goes would fill the place.
    pub(super) fn watch(&self, answer: St::Future<Verdict>, charged: &[Charged]) -> Watched<St> {
        let (keeper, charged) = (Self(Arc::clone(&self.0)), charged.into());
        Watched(Some(Question { answer, keeper, charged }))
    }
}

/// A request that holds something. It is over when this is dropped.
struct Hold<St: Store> {
    shared: Arc<Shared<St>>,
    request: u64,
}

impl<St: Store> Drop for Hold<St> {
    fn drop(&mut self) {
        let mut register = self.shared.register.lock();
        let held = register.requests.remove(&self.request);
        let runtime = register.runtime.clone();
        drop(register);
        if let Some(held) = held.filter(|held| !held.renewing) {
            give_back(&self.shared.store, held.receipts, runtime.as_ref());
        }
    }
}

/// An answer whose asker may leave.
pub(super) struct Watched<St: Store>(Option<Question<St>>);

struct Question<St: Store> {
    answer: St::Future<Verdict>,
    keeper: Keeper<St>,
    charged: Box<[Charged]>,
}

/// Nothing in it is ever pinned.
impl<St: Store> Unpin for Watched<St> {}

impl<St: Store> Future for Watched<St> {
    type Output = Result<Verdict, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let question = self.0.as_mut().expect("polled until it is ready");
        let verdict = ready!(Pin::new(&mut question.answer).poll(cx));
        self.0 = None;
        Poll::Ready(verdict)
    }
}

impl<St: Store> Drop for Watched<St> {
    fn drop(&mut self) {
        let (Some(question), Ok(runtime)) = (self.0.take(), Handle::try_current()) else {
            return;
        };
        runtime.spawn(async move {
            let Question { answer, keeper, charged } = question;
            if let Ok(verdict) = answer.await
                && verdict.is_admitted()
            {
                drop(keeper.hold(&verdict, &charged));
            }
        });
    }
}

/// The task that renews, or what is left of it when its runtime ends.
struct Task<St>(Weak<Shared<St>>);

impl<St> Drop for Task<St> {
    /// The next request begins another.
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            shared.register.lock().runtime = None;
        }
    }
}

async fn keep<St: Store>(mut task: Task<St>, every: Duration) {
    loop {
        sleep(every).await;
        let Some(shared) = task.0.upgrade() else { return };
        let mut register = shared.register.lock();
        if register.requests.is_empty() {
            // Under the lock, so that who comes next sees that nobody keeps. That may begin
            // another task, which must not be taken for this one.
            register.runtime = None;
            task.0 = Weak::new();
            return;
        }
        let now = Instant::now();
        for (request, held) in &mut register.requests {
            if !held.renewing && now.saturating_duration_since(held.since) >= every {
                held.renewing = true;
                // All on their way at once: the store may carry them in one call.
                tokio::spawn(renew(Arc::clone(&shared), *request, held.receipts.clone()));
            }
        }
    }
}

async fn renew<St: Store>(shared: Arc<Shared<St>>, request: u64, mut receipts: Receipts) {
    let began = Instant::now();
    let mut all = true;
    for receipt in &mut receipts {
        match shared.store.renew(receipt).await {
            Ok(Some(renewed)) => *receipt = renewed,
            // Who settles what is in flight lets it go.
            Ok(None) => {}
            Err(error) => {
                all = false;
                tracing::warn!(target: "tollgate", %error, "a lease could not be renewed yet");
            }
        }
    }
    let mut register = shared.register.lock();
    if let Some(held) = register.requests.get_mut(&request) {
        held.receipts = receipts;
        held.renewing = false;
        if all {
            held.since = began;
        }
    } else {
        drop(register);
        give_back(&shared.store, receipts, None);
    }
}

/// Gives back what was in flight, without anybody waiting for it. A receipt counts once, so
/// that what gets lost is sent again; at worst the units come back when their lease ends.
fn give_back<St: Store>(store: &St, receipts: Receipts, runtime: Option<&Handle>) {
    for receipt in receipts {
        let mut given = store.settle(&receipt, Cost::ZERO);
        // A store in memory is done by now.
        let mut cx = Context::from_waker(Waker::noop());
        let first = Pin::new(&mut given).poll(&mut cx);
        if let Poll::Ready(Ok(_)) = first {
            continue;
        }
        let Some(runtime) = Handle::try_current().ok().or_else(|| runtime.cloned()) else {
            tracing::warn!(target: "tollgate", "{NOT_BACK}: there is no runtime to give it back");
            continue;
        };
        let store = store.clone();
        runtime.spawn(async move {
            let mut last = match first {
                Poll::Ready(given) => given,
                Poll::Pending => given.await,
            };
            for pause in PAUSES {
                if last.is_ok() {
                    return;
                }
                sleep(pause).await;
                last = store.settle(&receipt, Cost::ZERO).await;
            }
            if let Err(error) = last {
                tracing::warn!(target: "tollgate", %error, "{NOT_BACK}");
            }
        });
    }
}

const NOT_BACK: &str = "what was in flight counts until its lease ends";
/// Before what could not be given back is sent again.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(50), Duration::from_millis(400), Duration::from_secs(3)];
/// A timer ticks no faster.
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);
