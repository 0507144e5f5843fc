//! A circuit breaker around a store.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tollgate_core::{
    Charge, Cost, Key, Micros, Policy, Receipt, Settlement, Source, Store, StoreError, Verdict,
};

/// Keeps an outage of a store from costing every request its timeout.
///
/// Clones share one breaker.
///
/// * **Closed**, everything goes to the store. After some outages in a row it opens.
/// * **Open**, requests fail at once with a [`StoreError`] that says when the store is
///   looked at next. Now and then one request is let through as a probe; while it is
///   under way all others still fail at once. A probe that succeeds closes the breaker.
///
/// The store must time out by itself: a call that its caller gives up on counts neither
/// way, unless it is the probe, as nobody knows what would have come of it.
///
/// Where a part of a store fails, as a node of a Redis Cluster does, and says that others
/// are well ([`StoreError::is_partial`]), they stay reachable: the breaker is closed. The
/// store then has a breaker for each part.
///
/// Errors that are the request's own fault count neither way, nor do answers for which the
/// store was not asked: of leased units, or remembered denials. A change of state is a
/// `tracing` warning; a request is not.
#[derive(Clone, Debug)]
pub struct Breaker<S> {
    store: S,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    failures_to_open: u32,
    probe_every: Duration,
    /// Whether there is anything to keep an account of: no for a store that is well, so
    /// that it costs a load and no lock.
    troubled: AtomicBool,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Closed { failures: u32 },
    Open { probe_at: Instant },
    Probing,
}

/// Whether a [`Breaker`] lets requests through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// Everything goes to the store.
    Closed,
    /// Nothing does but a probe now and then.
    Open,
}

/// What the errors of this wrapper are called.
const NAME: &str = "circuit breaker";

impl<S: Store> Breaker<S> {
    /// Opens after five outages in a row and probes every 200 ms: an outage then costs
    /// five requests their timeout, and a return is seen within a fifth of a second.
    pub fn new(store: S) -> Self {
        Self::with(store, 5, Duration::from_millis(200))
    }

    /// Opens after so many outages in a row, at least one, and probes so often.
    pub fn with(store: S, failures_to_open: u32, probe_every: Duration) -> Self {
        let shared = Shared {
            failures_to_open: failures_to_open.max(1),
            probe_every,
            troubled: AtomicBool::new(false),
            state: Mutex::new(State::Closed { failures: 0 }),
        };
        Self { store, shared: Arc::new(shared) }
    }

    /// Whether requests go to the store.
    pub fn state(&self) -> BreakerState {
        match *self.shared.state.lock() {
            State::Closed { .. } => BreakerState::Closed,
            State::Open { .. } | State::Probing => BreakerState::Open,
        }
    }

    /// The store inside.
    pub const fn get_ref(&self) -> &S {
        &self.store
    }

    fn guard<F: Future>(&self, call: impl FnOnce(&S) -> F) -> BreakerFuture<F> {
        let was_asked = |_: &F::Output| true;
        match self.shared.admit() {
            Ok(probe) => BreakerFuture {
                call: Ok(call(&self.store)),
                shared: Some((Arc::clone(&self.shared), probe)),
                was_asked,
            },
            Err(error) => BreakerFuture { call: Err(Some(error)), shared: None, was_asked },
        }
    }
}

impl<S: Store> Store for Breaker<S> {
    type Future<T: Send + 'static> = BreakerFuture<S::Future<T>>;

    fn decide(&self, charges: &[Charge<'_>]) -> Self::Future<Verdict> {
        let was_asked = |answer: &Result<Verdict, StoreError>| {
            answer.as_ref().map_or(true, |verdict| verdict.source() == Source::Store)
        };
        let mut guarded = self.guard(|store| store.decide(charges));
        guarded.was_asked = was_asked;
        guarded
    }

    fn settle(&self, receipt: &Receipt, actual: Cost) -> Self::Future<Settlement> {
        self.guard(|store| store.settle(receipt, actual))
    }

    fn renew(&self, receipt: &Receipt) -> Self::Future<Option<Receipt>> {
        self.guard(|store| store.renew(receipt))
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Self::Future<()> {
        self.guard(|store| store.reset(policy, key))
    }

    fn name(&self) -> &'static str {
        self.store.name()
    }

    fn has_local_fallback(&self) -> bool {
        self.store.has_local_fallback()
    }
}

impl Shared {
    /// Whether a call may go to the store, and whether it is a probe.
    fn admit(&self) -> Result<bool, StoreError> {
        if !self.troubled.load(Ordering::Acquire) {
            return Ok(false);
        }
        let mut state = self.state.lock();
        let wait = match *state {
            State::Closed { .. } => return Ok(false),
            State::Open { probe_at } => match probe_at.checked_duration_since(Instant::now()) {
                None | Some(Duration::ZERO) => {
                    *state = State::Probing;
                    return Ok(true);
                }
                Some(wait) => wait,
            },
            State::Probing => self.probe_every,
        };
        let wait = Micros::new(u64::try_from(wait.as_micros()).unwrap_or(u64::MAX));
        Err(StoreError::not_charged(NAME, "the store is down").with_retry_after(wait))
    }

    fn succeeded(&self, probe: bool) {
        if !self.troubled.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.state.lock();
        match *state {
            // An answer to a call from before the breaker opened proves nothing.
            State::Open { .. } => return,
            State::Probing if !probe => return,
            State::Probing => tracing::warn!(target: "tollgate", "store is back, breaker closed"),
            State::Closed { .. } => {}
        }
        *state = State::Closed { failures: 0 };
        self.troubled.store(false, Ordering::Release);
    }

    /// A probe turned out to be none: the next request is one.
    fn was_no_probe(&self) {
        let mut state = self.state.lock();
        if matches!(*state, State::Probing) {
            *state = State::Open { probe_at: Instant::now() };
        }
    }

    fn failed(&self, probe: bool, error: Option<&StoreError>) {
        let mut state = self.state.lock();
        self.troubled.store(true, Ordering::Release);
        let open = State::Open { probe_at: Instant::now() + self.probe_every };
        *state = match *state {
            State::Closed { failures } if failures + 1 >= self.failures_to_open => {
                let error = error.map(tracing::field::display);
                tracing::warn!(target: "tollgate", error, "store is down, breaker open");
                open
            }
            State::Closed { failures } => State::Closed { failures: failures + 1 },
            State::Probing if probe => open,
            other => other,
        };
    }
}

/// The answer of a store behind a [`Breaker`].
#[derive(Debug)]
pub struct BreakerFuture<F: Future> {
    call: Result<F, Option<StoreError>>,
    /// The breaker to report to, and whether this is its probe; none once it was told.
    shared: Option<(Arc<Shared>, bool)>,
    /// Whether it took the store to give such an answer.
    was_asked: fn(&F::Output) -> bool,
}

impl<T, F> Future for BreakerFuture<F>
where
    F: Future<Output = Result<T, StoreError>> + Unpin,
{
    type Output = Result<T, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = match &mut self.call {
            Ok(call) => ready!(Pin::new(call).poll(cx)),
            Err(error) => {
                let again = || StoreError::invalid(NAME, "polled after completion");
                return Poll::Ready(Err(error.take().unwrap_or_else(again)));
            }
        };
        if let Some((shared, probe)) = self.shared.take() {
            match &answer {
                answer if !(self.was_asked)(answer) => {
                    if probe {
                        shared.was_no_probe();
                    }
                }
                Ok(_) => shared.succeeded(probe),
                Err(error) if error.is_partial() => shared.succeeded(probe),
                Err(error) if error.is_outage() => shared.failed(probe, Some(error)),
                // The store may not even have been reached: another probe has to show it.
                Err(_) if probe => shared.failed(true, None),
                Err(_) => {}
            }
        }
        Poll::Ready(answer)
    }
}

impl<F: Future> Drop for BreakerFuture<F> {
    /// A probe whose caller left has shown nothing; another one has to.
    fn drop(&mut self) {
        if let Some((shared, true)) = self.shared.take() {
            shared.failed(true, None);
        }
    }
}
