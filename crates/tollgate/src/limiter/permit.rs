//! The permission for a call.

use std::fmt;
use std::time::Duration;

use smallvec::SmallVec;
use tollgate_core::{
    Charge, Cost, Micros, PenaltyBlock, Policy, Receipt, Settlement, Store, StoreError,
};
use tollgate_engine::{AppliedLimit, OpenCharge};

use super::acquire::Acquire;
use super::error::{AcquireError, SettleError};
use super::state::State;
use crate::drive::{self, Decided};
use crate::feedback::{Feedback, Pause, ServerQuota};
use crate::layer::Verdicts;

/// The permission for a call, which was charged.
///
/// * [`settle`](Self::settle) corrects the charge when the actual cost is known.
/// * [`cancel`](Self::cancel) refunds the charge, because the call does not happen.
/// * If the permit is dropped, the charge stands.
/// * [`learn`](Self::learn) reads the response, and [`retry`](Self::retry) repeats the call.
///
/// A charge can be corrected for an hour, limited to the longer of five minutes and the window of
/// its policy. After that it stands.
///
/// Under a concurrency limit ([`Policy::concurrent_requests`](crate::Policy::concurrent_requests)),
/// the call is in flight until the permit is dropped, settled or cancelled. A task renews it.
#[must_use = "a concurrency limit counts the call until the permit is dropped"]
pub struct Permit<St: Store> {
    call: Acquire<St>,
    decided: Decided,
}

impl<St: Store> Permit<St> {
    pub(super) const fn new(call: Acquire<St>, decided: Decided) -> Self {
        Self { call, decided }
    }

    fn state(&self) -> &State<St> {
        &self.call.state
    }

    /// Corrects the charge to the `actual` cost, under every rate limit. See
    /// [`Store::settle`](crate::Store::settle) for its effect. If the future is dropped, the
    /// remaining corrections are still sent.
    ///
    /// # Errors
    /// See [`SettleError`]. Some of the charges may be corrected.
    pub async fn settle(self, actual: impl Into<Cost>) -> Result<(), SettleError> {
        let actual = actual.into();
        let budget = self.state().retries().map(Policy::name);
        let is_of_budget = |charge: &OpenCharge| budget.is_some_and(|name| charge.is_of(name));
        self.settle_where(|charge| (!is_of_budget(charge)).then_some(actual)).await
    }

    /// Like [`settle`](Self::settle), but corrects only the charge to this policy. Does nothing if
    /// the policy did not charge the call.
    ///
    /// # Errors
    /// See [`SettleError`].
    pub async fn settle_policy(
        &self,
        policy: &str,
        actual: impl Into<Cost>,
    ) -> Result<(), SettleError> {
        let actual = actual.into();
        self.settle_where(|charge| charge.is_of(policy).then_some(actual)).await
    }

    /// Refunds the charge, as if the call had not been made.
    ///
    /// # Errors
    /// See [`SettleError`]. Some of the charges may be refunded.
    pub async fn cancel(self) -> Result<(), SettleError> {
        self.settle_where(|_| Some(Cost::ZERO)).await
    }

    /// Refunds the charge, without waiting for the store.
    pub(super) fn refund(self) {
        if let Some(open) = self.decided.follow_up.as_ref().and_then(|it| it.open.as_ref()) {
            open.settle(|_| Some(Cost::ZERO));
        }
    }

    /// Refunds the charge, and returns the call.
    pub(super) async fn into_refunded(self) -> Acquire<St> {
        let _ = self.settle_where(|_| Some(Cost::ZERO)).await;
        self.call
    }

    /// Acquires a permit for the same call again, because the service has denied it. The charge
    /// stands.
    ///
    /// The retry queues like a new call, so it leaves after a pause that [`learn`](Self::learn) has
    /// started, and keeps its deadline ([`Acquire::within`]). It is also charged to the
    /// [retry budget](super::LimiterBuilder::retries) of all processes. Repeat only calls that do no
    /// harm if the service has already executed them.
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    ///
    /// use http::Response;
    /// use tollgate::feedback::Feedback;
    /// use tollgate::key::Key;
    /// use tollgate::{Limiter, MemoryStore};
    /// # async fn send() -> Response<()> { Response::new(()) }
    ///
    /// async fn call(limiter: &Limiter<MemoryStore>) -> Result<Response<()>, Box<dyn std::error::Error>> {
    ///     let call = limiter.request().all(&Key::from("account"), 1);
    ///     let mut permit = call.within(Duration::from_secs(60)).acquire().await?;
    ///     loop {
    ///         let response = send().await;
    ///         let feedback = Feedback::read(response.status(), response.headers(), SystemTime::now());
    ///         permit.learn(&feedback).await?;
    ///         if !feedback.is_denial() {
    ///             return Ok(response);
    ///         }
    ///         permit = permit.retry().await?;
    ///     }
    /// }
    /// # let _ = call;
    /// ```
    ///
    /// # Errors
    /// See [`AcquireError`]. Without a budget it is [`AcquireError::NoRetryBudget`]. If the budget is
    /// used up it is [`AcquireError::RetryBudget`], which charges nothing.
    pub async fn retry(self) -> Result<Self, AcquireError> {
        let Self { call, decided } = self;
        // A concurrency limit must not count the previous attempt any more.
        drop(decided);
        call.again().acquire().await
    }

    /// Applies what the called service's response says about its own limits, for all processes.
    ///
    /// * A denial pauses the key until the service's instant. If the service names none, the pause
    ///   starts with a second, and doubles with each further denial.
    /// * If the service says that fewer units remain than here, because someone else uses them, the
    ///   difference is charged. With several policies, this needs a quota with the policy's name, such
    ///   as `tokens`.
    ///
    /// Returns the pause that this response has started. A response to a call that left before the
    /// last pause started changes nothing. Without
    /// [`pausable`](super::LimiterBuilder::pausable), no response starts a pause.
    ///
    /// # Errors
    /// The store failed, so the pause may be unknown to other processes. A `tollgate` event reports
    /// it, too.
    pub async fn learn(&self, feedback: &Feedback) -> Result<Option<Duration>, StoreError> {
        let paused = self.pause_for(feedback).await;
        let lowered = self.lower(feedback.quotas()).await;
        let result = lowered.and(paused);
        result.inspect_err(|error| {
            tracing::warn!(target: "tollgate", %error, "a response's limits are not shared");
        })
    }

    async fn pause_for(&self, feedback: &Feedback) -> Result<Option<Duration>, StoreError> {
        let State { store, limits, face, .. } = self.state();
        let longest = face.pause.map_or(Duration::ZERO, |(_, longest)| longest);
        let pause = feedback.pause_at_most(longest);
        let Some(paused) = self.pause().filter(|_| pause.is_some() || feedback.is_denial()) else {
            return Ok(None);
        };
        let (policy, key) = (limits.policy(paused), &paused.key);
        let left_at = self.decided.charges.decided_at() + self.decided.charges.delay(limits);
        let length = pause.as_ref().map(|pause| pause.duration().into());
        let block = PenaltyBlock { length, known_at: left_at };
        let blocked = store.block(policy, key, block).await?.map(Duration::from);
        if let Some(length) = blocked {
            let (policy, header) = (policy.name(), pause.as_ref().map(|it| it.header().as_str()));
            tracing::info!(target: "tollgate", policy, ?length, header, "paused by the service");
            if let Some(pause) = pause.filter(Pause::is_capped) {
                let requested = pause.requested();
                tracing::warn!(target: "tollgate", policy, ?requested, ?length, "capped a pause");
            }
        }
        Ok(blocked)
    }

    /// Charges the units that someone else has used.
    async fn lower(&self, quotas: &[ServerQuota]) -> Result<(), StoreError> {
        let State { store, limits, face, .. } = self.state();
        let is_rate = |it: &&AppliedLimit| {
            let policy = limits.policy(it);
            let is_callers = usize::from(it.limit) < face.policies;
            is_callers && !policy.is_penalty() && !policy.is_concurrency()
        };
        let rates = || self.decided.charges.iter().filter(is_rate);
        let is_alone = rates().count() == 1;
        for applied in rates() {
            let name = limits.policy(applied).name();
            let Some(remaining) = remaining_of(quotas, name, is_alone) else { continue };
            if applied.decision.remaining <= remaining {
                continue;
            }
            let charge = limits.charge(applied);
            let peek = store.decide(&[Charge { cost: Cost::ZERO, ..charge }]).await?;
            // In another window, the service's number says nothing.
            let decided_at = self.decided.charges.decided_at();
            if peek.decided_at() >= decided_at + applied.decision.reset_after {
                continue;
            }
            // Other calls may have been charged since, and units may have come back.
            let ours = peek.decisions()[0].remaining.min(applied.decision.remaining);
            let used = Cost::new(ours.saturating_sub(remaining));
            if used > Cost::ZERO {
                // Only if this leaves what the service says: another response may have told the same.
                // And only if no call queues, because the service does not know these calls.
                let queue = charge.queue.map(|_| Micros::ZERO);
                let used = Charge { cost: used, queue, ..charge }.leaving(Cost::new(remaining));
                store.decide(&[used]).await?;
            }
        }
        Ok(())
    }

    /// The charge to the penalty that pauses the key.
    fn pause(&self) -> Option<&AppliedLimit> {
        let (pause, _) = self.state().face.pause?;
        self.decided.charges.iter().find(|it| usize::from(it.limit) == pause)
    }

    /// Returns whether the key was paused after the call had entered the queue.
    pub(super) async fn is_paused(&self) -> bool {
        let Some(paused) = self.pause() else { return false };
        let State { store, limits, .. } = self.state();
        let charge = Charge { queue: None, ..limits.charge(paused) };
        let verdict = store.decide(&[charge.dry()]).await;
        verdict.is_ok_and(|verdict| verdict.decisions()[0].denies())
    }

    /// Returns the decisions of all policies.
    pub fn verdicts(&self) -> Verdicts {
        Verdicts::of(&self.state().limits, &self.decided.charges)
    }

    async fn settle_where(
        &self,
        actual: impl Fn(&OpenCharge) -> Option<Cost>,
    ) -> Result<(), SettleError> {
        let Some(open) = self.decided.follow_up.as_ref().and_then(|it| it.open.as_ref()) else {
            return Ok(());
        };
        let has_lapsed = open.has_lapsed(&actual);
        let mut result = if has_lapsed { Err(SettleError::Lapsed) } else { Ok(()) };
        let store = &self.state().store;
        let mut unsent = Unsent { store, left: open.take(actual) };
        while let Some((receipt, actual)) = unsent.left.last().cloned() {
            // Even if a charge cannot be corrected, correct the others.
            match store.settle(&receipt, actual).await {
                Ok(Settlement::Lapsed) => result = Err(SettleError::Lapsed),
                Ok(_) => {}
                Err(error) => result = Err(SettleError::Store(error)),
            }
            unsent.left.pop();
        }
        result
    }

    /// Returns the receipts of charges that are not corrected yet, for a process that determines
    /// the cost. Any process may pass them to [`Store::settle`](crate::Store::settle).
    pub fn receipts(&self) -> Vec<Receipt> {
        let open = self.decided.follow_up.as_ref().and_then(|it| it.open.as_ref());
        open.map(|open| open.receipts()).unwrap_or_default()
    }
}

/// What the service says to remain under a policy: in the quota with the policy's name or, for the only
/// policy, in the quota without a name or in the only quota.
fn remaining_of(quotas: &[ServerQuota], policy: &str, is_alone: bool) -> Option<u64> {
    let named = |name: &str| quotas.iter().find(|quota| quota.name() == name);
    let only = || if let [only] = quotas { Some(only) } else { None };
    let quota = named(policy).or_else(|| named("default").or_else(only).filter(|_| is_alone))?;
    // A limit of 0 does not apply, and a soft limit allows calls although nothing remains.
    let applies = quota.limit() != Some(0) && (quota.remaining() != Some(0) || quota.is_used_up());
    quota.remaining().filter(|_| applies)
}

/// Corrections that are sent even if the caller stops waiting for them. The store makes each only
/// once.
struct Unsent<'a, St: Store> {
    store: &'a St,
    left: SmallVec<[(Receipt, Cost); 1]>,
}

impl<St: Store> Drop for Unsent<'_, St> {
    fn drop(&mut self) {
        for (receipt, actual) in self.left.drain(..) {
            drive::settle(self.store, receipt, actual, None);
        }
    }
}

impl<St: Store> fmt::Debug for Permit<St> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("verdicts", &self.verdicts()).finish()
    }
}
