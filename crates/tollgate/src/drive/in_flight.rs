//! Permits of concurrency limits: renewed during their request, and returned after it.

use std::collections::HashMap;
use std::mem;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};
use tollgate_core::{Cost, Policy, Receipt, Store};

use super::receipts::settle;
use crate::body::{Hold, InFlight};

/// Renews the permits that a layer's requests hold.
///
/// A single task renews each permit when a quarter of the time to live is over, or half at the
/// latest. The rest is a reserve in case the store is down. Most requests finish earlier, so they
/// only cost a map entry and no timer.
pub(crate) struct PermitRenewer<St>(Arc<Renewals<St>>);

struct Renewals<St> {
    store: St,
    every: Duration,
    register: Mutex<Register>,
}

#[derive(Default)]
struct Register {
    requests: HashMap<u64, Permits>,
    next: u64,
    runtime: Option<Handle>,
}

struct Permits {
    receipts: Receipts,
    since: Instant,
    /// The store is currently renewing the receipts. When it replies, the renewal task returns the
    /// permits if the request has finished.
    renewing: bool,
}

type Receipts = SmallVec<[Receipt; 1]>;

impl<St: Store> PermitRenewer<St> {
    /// Returns `None` if no policy is a concurrency limit.
    pub(crate) fn new<'a>(store: &St, policies: impl Iterator<Item = &'a Policy>) -> Option<Self> {
        let in_flight = policies.filter(|policy| policy.is_concurrency());
        let shortest = in_flight.map(|policy| Duration::from(policy.window())).min()?;
        let (store, every) = (store.clone(), (shortest / 4).max(SHORTEST_SLEEP));
        Some(Self(Arc::new(Renewals { store, every, register: Mutex::default() })))
    }

    pub(crate) fn hold(&self, receipts: &[Receipt]) -> InFlight {
        let permits = receipts.iter().filter(|receipt| receipt.policy.is_concurrency());
        let receipts: Receipts = permits.cloned().collect();
        if receipts.is_empty() {
            return InFlight::default();
        }
        let shared = &self.0;
        let mut register = shared.register.lock();
        let request = register.next;
        register.next += 1;
        let permits = Permits { receipts, since: Instant::now(), renewing: false };
        register.requests.insert(request, permits);
        let starts = register.runtime.is_none().then(Handle::try_current).and_then(Result::ok);
        if let Some(runtime) = &starts {
            register.runtime = Some(runtime.clone());
        }
        drop(register);
        if let Some(runtime) = starts {
            // A runtime that shuts down drops the task immediately, and the drop takes the lock.
            runtime.spawn(renew_all(RenewTask(Arc::downgrade(shared)), shared.every));
        }
        InFlight::until_dropped(InFlightGuard { shared: Arc::clone(shared), request })
    }
}

struct InFlightGuard<St: Store> {
    shared: Arc<Renewals<St>>,
    request: u64,
}

impl<St: Store> Hold for InFlightGuard<St> {}

impl<St: Store> Drop for InFlightGuard<St> {
    fn drop(&mut self) {
        let mut register = self.shared.register.lock();
        let permits = register.requests.remove(&self.request);
        let runtime = register.runtime.clone();
        drop(register);
        if let Some(permits) = permits.filter(|permits| !permits.renewing) {
            return_permits(&self.shared.store, permits.receipts, runtime.as_ref());
        }
    }
}

fn return_permits<St: Store>(store: &St, receipts: Receipts, runtime: Option<&Handle>) {
    for receipt in receipts {
        settle(store, receipt, Cost::ZERO, runtime);
    }
}

impl<St: Store> Renewals<St> {
    /// Starts to renew the permits that are due. Returns `false` if no request holds permits, and
    /// the renewal task must then end.
    fn renew_due(self: &Arc<Self>) -> bool {
        let mut register = self.register.lock();
        if register.requests.is_empty() {
            register.runtime = None;
            return false;
        }
        let (now, mut due) = (Instant::now(), Vec::new());
        for (&request, permits) in &mut register.requests {
            if !permits.renewing && now.saturating_duration_since(permits.since) >= self.every {
                permits.renewing = true;
                let (shared, receipts) = (Arc::clone(self), permits.receipts.clone());
                due.push(Renewal { shared, request, receipts, since: None });
            }
        }
        drop(register);
        // Renew all permits concurrently, so the store can batch them into one call. A runtime that
        // shuts down drops a task immediately, and the drop takes the lock.
        for renewal in due {
            tokio::spawn(renew(renewal));
        }
        true
    }
}

/// The renewal task. It is dropped unfinished when its runtime shuts down.
struct RenewTask<St>(Weak<Renewals<St>>);

impl<St> Drop for RenewTask<St> {
    /// Lets the next request start another task.
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            shared.register.lock().runtime = None;
        }
    }
}

async fn renew_all<St: Store>(mut task: RenewTask<St>, every: Duration) {
    loop {
        sleep(every).await;
        let Some(shared) = task.0.upgrade() else { return };
        if !shared.renew_due() {
            // The next request starts another task. When this task is dropped, it must not clear
            // the new task's handle.
            task.0 = Weak::new();
            return;
        }
    }
}

async fn renew<St: Store>(mut renewal: Renewal<St>) {
    let started = Instant::now();
    let mut all = true;
    let Renewal { shared, receipts, .. } = &mut renewal;
    for receipt in receipts {
        match shared.store.renew(receipt).await {
            Ok(Some(renewed)) => *receipt = renewed,
            // The permit was already settled, so it needs no renewal.
            Ok(None) => {}
            Err(error) => {
                all = false;
                tracing::warn!(target: "tollgate", %error, "a permit could not be renewed yet");
            }
        }
    }
    renewal.since = all.then_some(started);
}

/// The permits of a request while the store renews them. They are returned to the register even if
/// the store panics or the runtime shuts down.
struct Renewal<St: Store> {
    shared: Arc<Renewals<St>>,
    request: u64,
    receipts: Receipts,
    /// The time of the renewal, if all permits were renewed.
    since: Option<Instant>,
}

impl<St: Store> Drop for Renewal<St> {
    fn drop(&mut self) {
        let receipts = mem::take(&mut self.receipts);
        let mut register = self.shared.register.lock();
        if let Some(permits) = register.requests.get_mut(&self.request) {
            permits.receipts = receipts;
            permits.renewing = false;
            permits.since = self.since.unwrap_or(permits.since);
        } else {
            drop(register);
            return_permits(&self.shared.store, receipts, None);
        }
    }
}

/// tokio's timers have a resolution of 1 ms.
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);

#[cfg(all(test, feature = "memory"))]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use tollgate_core::{Charged, Key, ReceiptId, Source, Timestamp};
    use tollgate_memory::MemoryStore;

    use super::*;

    #[test]
    fn ended_runtime_takes_no_renewal() {
        let policy = Policy::concurrent_requests("p", 1, Duration::from_secs(30)).unwrap();
        let now = Timestamp::EPOCH;
        let charged = Charged::new(&policy, Cost::ONE, now);
        let (id, source, key) = (ReceiptId(1), Source::Store, Key::GLOBAL);
        let permit = Receipt { id, source, policy, key, charged };
        let renewer =
            PermitRenewer::new(&MemoryStore::new(), [&permit.policy].into_iter()).unwrap();
        let held = renewer.hold(&[permit]);
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(tokio::time::advance(Duration::from_secs(60)));
        let ended = runtime.handle().clone();
        drop(runtime);
        let (sender, receiver) = channel();
        // A thread of its own, because a deadlock would not end.
        thread::spawn(move || {
            let _entered = ended.enter();
            sender.send(renewer.0.renew_due()).unwrap();
            drop(held);
        });
        assert_eq!(receiver.recv_timeout(Duration::from_secs(30)), Ok(true));
    }
}
