//! The limiter.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tollgate_core::{Charge, Cost, Key, Micros, PenaltyBlock, Policy, Store, StoreError};
use tollgate_engine::Charges;

use super::call::Acquire;
use super::error::AcquireError;
use super::permit::Permit;
use super::state::State;
use crate::Limit;
use crate::layer::Verdicts;
use crate::observe::PauseSource;
use crate::tier::lookup::Terms;

/// Limits calls by key. See the [module](crate::limiter).
///
/// **Clones share their quotas and their queue**, because the state is in the store. A layer over
/// the same store shares the state of policies with the same name.
///
/// # Order
///
/// Each key serves its waiting calls in the order in which their futures are first polled. While a
/// call waits for a key, no later call takes units from that key. See
/// [`Mode::Wait`](crate::Mode::Wait).
///
/// # Cancellation
///
/// If the future of a call is dropped, the call leaves the queue. If it was charged, it is refunded.
#[derive(Clone)]
pub struct Limiter<St: Store> {
    state: Arc<State<St>>,
}

impl<St: Store> Limiter<St> {
    pub(super) fn new(state: State<St>) -> Self {
        Self { state: Arc::new(state) }
    }

    /// Waits until every policy allows a call with this key and cost, and charges it.
    ///
    /// It waits for at most the time set with [`wait`](super::LimiterBuilder::wait), and fails as
    /// soon as it is clear that the wait would be longer. Without that setting, it does not wait.
    /// A cost of 0 is always allowed.
    ///
    /// # Errors
    /// See [`AcquireError`].
    pub async fn acquire(
        &self,
        key: &Key,
        cost: impl Into<Cost>,
    ) -> Result<Permit<St>, AcquireError> {
        self.request().all(key, cost).acquire().await
    }

    /// Charges a call if all policies allow it now and no earlier call waits for the key. Otherwise
    /// returns `None`.
    ///
    /// # Errors
    /// The cost exceeds a capacity, the store could not decide and a policy fails closed, or the
    /// limiter is closed.
    pub async fn try_acquire(
        &self,
        key: &Key,
        cost: impl Into<Cost>,
    ) -> Result<Option<Permit<St>>, AcquireError> {
        self.request().all(key, cost).try_acquire().await
    }

    /// Starts a call under several keys, or with its own deadline.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use tollgate::key::Key;
    /// use tollgate::{Limiter, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::builder(MemoryStore::new())
    ///     .policy(Policy::token_bucket("user", Quota::per_minute(600))?)
    ///     .policy(Policy::token_bucket("connection", Quota::per_second(20))?)
    ///     .wait(Duration::from_secs(5))
    ///     .build()?;
    /// let (user, connection) = (Key::from("ann"), Key::from("c-93"));
    /// let call = limiter.request().policy("user", &user, 1).policy("connection", &connection, 1);
    /// let permit = call.within(Duration::from_millis(200)).acquire().await?;
    /// # drop(permit);
    /// # Ok(())
    /// # }
    /// ```
    pub fn request(&self) -> Acquire<St> {
        Acquire::new(&self.state)
    }

    /// Returns the decisions on a key, without a charge.
    ///
    /// # Errors
    /// The store could not decide.
    pub async fn peek(&self, key: &Key) -> Result<Verdicts, StoreError> {
        let State { store, limits, face, .. } = &*self.state;
        let mut charges = Charges::default();
        for number in 0..limits.len() {
            let mut applied = face.applied(limits, number, key, Cost::ZERO);
            match face.terms(limits, &applied, Micros::MAX).await {
                Some(Terms::Own(own)) => applied.own = Some(own),
                Some(Terms::Unlimited) => continue,
                _ => {}
            }
            charges.push(applied, limits);
        }
        if limits.has_overrides() {
            limits.apply_overrides(charges.iter_mut());
        }
        let peeks = limits.charges(&charges).into_iter();
        let peeks: Vec<_> = peeks.map(|charge| Charge { cost: Cost::ZERO, ..charge }).collect();
        let reply = store.decide(&peeks);
        let verdict = reply.await?;
        charges.fill_in(limits.blocked(&charges, &verdict).as_ref().unwrap_or(&verdict));
        Ok(Verdicts::of(limits, &charges))
    }

    /// Pauses a key for all processes from now on, whoever asks for it. Returns how long it is paused
    /// then. Returns `None` if the limiter is not [`pausable`](super::LimiterBuilder::pausable), or if a
    /// full [`MemoryStore`](crate::MemoryStore) has no room for the key.
    ///
    /// # Errors
    /// The store failed.
    pub async fn pause(&self, key: &Key, length: Duration) -> Result<Option<Duration>, StoreError> {
        let State { store, limits, face, telemetry, .. } = &*self.state;
        let Some((number, _)) = face.pause else { return Ok(None) };
        let applied = face.applied(limits, number, key, Cost::ONE);
        let block = PenaltyBlock::of(length);
        let blocked = store.block(limits.policy(&applied), &applied.key, block).await?;
        let blocked = blocked.map(Duration::from);
        if let Some(length) = blocked {
            telemetry.paused(limits, &applied, length, PauseSource::Program);
        }
        Ok(blocked)
    }

    /// Rejects all waiting and later calls with [`AcquireError::Closed`]. Permits remain valid.
    pub fn close(&self) {
        self.state.face.closed.close();
    }

    /// Returns whether the limiter was closed.
    pub fn is_closed(&self) -> bool {
        self.state.face.closed.is_closed()
    }

    /// Returns a handle for admin tools.
    #[cfg(feature = "metrics")]
    pub fn handle(&self) -> crate::observe::LayerHandle
    where
        St: crate::observe::Inspect,
    {
        crate::observe::LayerHandle::new(Arc::clone(&self.state))
    }

    /// Returns the store, to read, reset or settle.
    pub fn store(&self) -> &St {
        &self.state.store
    }

    /// Returns the policies, in the order in which they were added.
    pub fn policies(&self) -> impl Iterator<Item = &Policy> {
        self.state.face.limits.iter().map(Limit::policy)
    }
}

impl<St: Store> fmt::Debug for Limiter<St> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policies: Vec<_> = self.policies().collect();
        f.debug_struct("Limiter").field("policies", &policies).finish_non_exhaustive()
    }
}
