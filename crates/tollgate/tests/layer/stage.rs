//! A store that fails or delays its answers on command.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tollgate::key::Key;
use tollgate::policy::Cost;
use tollgate::store::{Charge, Receipt, Reply, Settlement, StoreError, Verdict};
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
    RetryAfter(tollgate::store::Micros),
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

    /// Whether every call fails.
    pub(crate) fn fails(&self) -> bool {
        self.stage.fault.lock().is_some()
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

    fn answer<T: Send + 'static>(
        &self,
        call: impl FnOnce(&S) -> Reply<S::Future<T>>,
    ) -> Later<S, T> {
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
        Later { answer: Some(answer), stage: Arc::clone(&self.stage), settles: false }
    }
}

impl<S: Store> Store for Staged<S> {
    type Future<T: Send + 'static> = Later<S, T>;

    fn decide(&self, charges: &[Charge<'_>]) -> Reply<Later<S, Verdict>> {
        self.stage.calls.fetch_add(1, Ordering::SeqCst);
        Reply::pending(self.answer(|store| store.decide(charges)))
    }

    fn settle(&self, receipt: &Receipt, actual: Cost) -> Reply<Later<S, Settlement>> {
        let later = self.answer(|store| store.settle(receipt, actual));
        Reply::pending(Later { settles: true, ..later })
    }

    fn renew(&self, receipt: &Receipt) -> Reply<Later<S, Option<Receipt>>> {
        Reply::pending(self.answer(|store| store.renew(receipt)))
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Reply<Later<S, ()>> {
        Reply::pending(self.answer(|store| store.reset(policy, key)))
    }

    fn has_local_fallback(&self) -> bool {
        self.store.has_local_fallback()
    }
}

/// An answer that is pending while the stage holds answers.
pub(crate) struct Later<S: Store, T: Send + 'static> {
    answer: Option<Result<Reply<S::Future<T>>, StoreError>>,
    stage: Arc<Stage>,
    settles: bool,
}

/// No field is structurally pinned.
impl<S: Store, T: Send + 'static> Unpin for Later<S, T> {}

impl<S: Store, T: Send + 'static> Future for Later<S, T> {
    type Output = Result<T, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(waiting) = &mut *self.stage.held.lock() {
            waiting.push(cx.waker().clone());
            return Poll::Pending;
        }
        if self.settles {
            self.stage.settled.fetch_add(1, Ordering::SeqCst);
        }
        match self.answer.as_mut().expect("polled once it was ready") {
            Ok(answer) => Pin::new(answer).poll(cx),
            Err(_) => {
                let Some(Err(error)) = self.answer.take() else { unreachable!() };
                Poll::Ready(Err(error))
            }
        }
    }
}
