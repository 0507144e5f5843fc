//! A store that fails or delays its answers on command.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tollgate::key::Key;
use tollgate::observe::{Inspect, StoreReport};
use tollgate::policy::Cost;
use tollgate::store::{
    BoxFuture, Charge, Micros, Overrides, PenaltyBlock, Receipt, Reply, Settlement, StoreError,
    Verdict,
};
use tollgate::{Policy, Store};

/// Wraps `store`, counts its calls, and fails or delays them on command. Clones share the
/// stage.
#[derive(Clone, Debug)]
pub(crate) struct Staged<S> {
    store: S,
    stage: Arc<Stage>,
}

#[derive(Debug, Default)]
struct Stage {
    calls: AtomicUsize,
    settled: AtomicUsize,
    fault: Mutex<Option<Fault>>,
    /// The callers waiting for an answer, or `None` while calls are answered immediately.
    held: Mutex<Option<Vec<Waker>>>,
}

/// How a store fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The store is unreachable.
    NotCharged,
    /// The store decides, but its answer is lost.
    MaybeCharged,
    /// The store is unreachable and reports when to retry.
    RetryAfter(Micros),
    /// The store sheds the call because it could not answer before the deadline.
    Overloaded,
    /// The store rejects the call as invalid.
    Invalid,
}

impl Fault {
    fn error(self) -> StoreError {
        match self {
            Self::NotCharged => StoreError::not_charged("stage", "unplugged"),
            Self::MaybeCharged => StoreError::maybe_charged("stage", "the answer was lost"),
            Self::RetryAfter(wait) => Self::NotCharged.error().with_retry_after(wait),
            Self::Overloaded => StoreError::overloaded("stage", "too much waits already"),
            Self::Invalid => StoreError::invalid("stage", "makes no sense"),
        }
    }
}

impl<S: Store> Staged<S> {
    pub(crate) fn new(store: S) -> Self {
        Self { store, stage: Arc::default() }
    }

    /// Makes every call fail until `recover`.
    pub(crate) fn fail(&self, fault: Fault) {
        *self.stage.fault.lock() = Some(fault);
    }

    /// Stops failing calls.
    pub(crate) fn recover(&self) {
        *self.stage.fault.lock() = None;
    }

    /// Delays all answers until `release`.
    pub(crate) fn hold(&self) {
        self.stage.held.lock().get_or_insert_default();
    }

    /// Answers all delayed calls.
    pub(crate) fn release(&self) {
        let waiting = self.stage.held.lock().take();
        waiting.into_iter().flatten().for_each(Waker::wake);
    }

    /// The number of decisions that were requested.
    pub(crate) fn calls(&self) -> usize {
        self.stage.calls.load(Ordering::SeqCst)
    }

    /// The number of receipts that were settled while the caller waited for the result.
    pub(crate) fn settled(&self) -> usize {
        self.stage.settled.load(Ordering::SeqCst)
    }

    fn answer<T: Send + 'static, F>(&self, call: impl FnOnce(&S) -> Reply<F>) -> BoxFuture<T>
    where
        F: Future<Output = Result<T, StoreError>> + Send + Unpin + 'static,
    {
        let fault = *self.stage.fault.lock();
        let answer = match fault {
            Some(Fault::MaybeCharged) => {
                // The charge is made, and the result is dropped.
                drop(call(&self.store));
                Err(Fault::MaybeCharged.error())
            }
            Some(fault) => Err(fault.error()),
            None => Ok(call(&self.store)),
        };
        let stage = Arc::clone(&self.stage);
        Box::pin(async move {
            poll_fn(|cx| stage.poll_released(cx)).await;
            answer?.await
        })
    }
}

impl Stage {
    /// Is pending while the stage holds answers.
    fn poll_released(&self, cx: &Context<'_>) -> Poll<()> {
        match &mut *self.held.lock() {
            Some(waiting) => {
                waiting.push(cx.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }
}

impl<S: Store> Store for Staged<S> {
    type Future = BoxFuture<Verdict>;

    fn decide(&self, charges: &[Charge<'_>]) -> Reply<Self::Future> {
        self.stage.calls.fetch_add(1, Ordering::SeqCst);
        Reply::pending(self.answer(|store| store.decide(charges)))
    }

    fn settle(&self, receipt: &Receipt, actual: Cost) -> Reply<BoxFuture<Settlement>> {
        let settlement = self.answer(|store| store.settle(receipt, actual));
        let stage = Arc::clone(&self.stage);
        Reply::pending(Box::pin(async move {
            let settlement = settlement.await;
            stage.settled.fetch_add(1, Ordering::SeqCst);
            settlement
        }))
    }

    fn renew(&self, receipt: &Receipt) -> Reply<BoxFuture<Option<Receipt>>> {
        Reply::pending(self.answer(|store| store.renew(receipt)))
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Reply<BoxFuture<()>> {
        Reply::pending(self.answer(|store| store.reset(policy, key)))
    }

    fn block(
        &self,
        policy: &Policy,
        key: &Key,
        block: PenaltyBlock,
    ) -> Reply<BoxFuture<Option<Micros>>> {
        Reply::pending(self.answer(|store| store.block(policy, key, block)))
    }

    fn name(&self) -> &'static str {
        "stage"
    }

    fn has_local_fallback(&self) -> bool {
        self.store.has_local_fallback()
    }

    fn overrides(&self) -> Option<Overrides> {
        self.store.overrides()
    }
}

/// Its breaker is open while it fails.
impl<S: Store> Inspect for Staged<S> {
    fn inspect(&self) -> StoreReport {
        let fails = self.stage.fault.lock().is_some();
        let mut report = StoreReport::new("stage", 0);
        (report.breaker, report.is_available) =
            (Some(if fails { "down" } else { "closed" }), !fails);
        report
    }
}
