//! Requests beyond a limit that wait for it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};
use tollgate_core::{Charge, Cost, Decision, Micros, Outcome, Policy, Store, StoreError, Verdict};

use super::in_flight::Watched;
use super::queued::{Charged, next_id, settle};
use super::room::Waiter;
use super::witness::Waits;

/// The answer of the store, or of the wait queue in front of it.
pub(super) enum Answer<St: Store> {
    Store(St::Future<Verdict>),
    Watched(Watched<St>),
    Waiting(Pin<Box<dyn Future<Output = Result<Verdict, StoreError>> + Send>>),
}

impl<St: Store> Future for Answer<St> {
    type Output = Result<Verdict, StoreError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Store(answer) => Pin::new(answer).poll(cx),
            Self::Watched(answer) => Pin::new(answer).poll(cx),
            Self::Waiting(answer) => answer.as_mut().poll(cx),
        }
    }
}

/// A request that may wait.
pub(super) struct Patient<St> {
    store: St,
    charged: Arc<[Charged]>,
    /// How long it waits for each charge; `None` where a denial is final.
    patience: Box<[Option<Duration>]>,
}

/// When each charge that was denied may pass. There is one entry for each charge.
pub(super) struct Denied(Box<[Option<Instant>]>);

impl Denied {
    /// The charges that are denied.
    pub(super) fn keys(&self) -> u64 {
        self.keys_after(None)
    }

    /// The charges that are still denied after an instant.
    fn keys_after(&self, now: Option<Instant>) -> u64 {
        let is_denied = |number: &usize| self.0[*number] > now;
        (0..self.0.len()).filter(is_denied).fold(0, |keys, number| keys | 1 << number)
    }

    /// When the first of the charges that are still denied may pass.
    fn next_after(&self, now: Instant) -> Option<Instant> {
        self.0.iter().flatten().filter(|until| **until > now).min().copied()
    }
}

impl<St: Store> Patient<St> {
    pub(super) fn new(store: &St, charged: &[Charged], patience: Box<[Option<Duration>]>) -> Self {
        Self { store: store.clone(), charged: charged.into(), patience }
    }

    /// How long it waits: as long as the least patient of its limits.
    fn longest(&self) -> Duration {
        let least = self.patience.iter().flatten().min().copied().unwrap_or_default();
        // So that no sum with it overflows; no request takes longer to pass.
        least.min(Policy::MAX_WINDOW)
    }

    /// When the denied charges may pass. `None` if the denial is final.
    pub(super) fn denied(&self, verdict: &Verdict) -> Option<Denied> {
        self.denied_within(verdict, self.longest())
    }

    fn denied_within(&self, verdict: &Verdict, left: Duration) -> Option<Denied> {
        let now = Instant::now();
        let mut denied: Box<[_]> = self.charged.iter().map(|_| None).collect();
        let charges = self.charged.iter().zip(&self.patience);
        for (((charged, patience), decision), until) in
            charges.zip(verdict.decisions()).zip(&mut denied)
        {
            if decision.denies() && charged.charge().enforce {
                // One final denial is enough.
                let _ = (*patience)?;
                let mut wait = decision.retry_after()?;
                if charged.charge().policy.counts_in_flight() {
                    // Requests mostly end long before their permits expire.
                    wait = wait.min(LOOK_AGAIN);
                }
                let wait = Some(Duration::from(wait)).filter(|wait| *wait <= left)?;
                *until = Some(now + wait);
            }
        }
        Some(Denied(denied))
    }

    /// Waits until no key denies the request and no earlier request waits for one of its keys,
    /// then asks the store; and again, until the store admits it or would do so too late.
    /// `denied` is the answer that the store has given already.
    pub(super) async fn wait(
        self,
        mut waiter: Waiter,
        denied: Option<Denied>,
        _waits: Waits,
    ) -> Result<Verdict, StoreError> {
        let until = Instant::now() + self.longest();
        let mut denied = denied.unwrap_or_else(|| Denied(Box::default()));
        loop {
            let now = Instant::now();
            if waiter.waits(denied.keys_after(Some(now))) {
                if now >= until {
                    let keys = waiter.waits_for();
                    drop(waiter);
                    break self.reject(keys).await;
                }
                let next = denied.next_after(now).map_or(until, |next| next.min(until));
                let _ = timeout_at(next, waiter.woken()).await;
                continue;
            }
            let answer = self.ask().await;
            let left = until.saturating_duration_since(Instant::now());
            let verdict = answer.as_ref().ok().filter(|verdict| !verdict.is_admitted());
            match verdict.and_then(|verdict| self.denied_within(verdict, left)) {
                Some(again) => denied = again,
                None => break answer,
            }
        }
    }

    /// Denies the request under these keys without asking for units, so that it takes none that
    /// earlier requests wait for. `Retry-After` is when the quota is whole again: there is no way
    /// to tell how much earlier the other requests will have passed.
    pub(super) async fn reject(self, keys: u64) -> Result<Verdict, StoreError> {
        let peeked = {
            let peek = |charged| Charge { cost: Cost::ZERO, ..Charged::charge(charged) };
            let charges: Vec<_> = self.charged.iter().map(peek).collect();
            self.store.decide(&charges)
        };
        let peeked = peeked.await?;
        let decisions = peeked.decisions().iter().enumerate().map(|(number, decision)| {
            let outcome = match decision.outcome {
                Outcome::Allow { .. } if keys & (1 << number) != 0 => {
                    Outcome::Deny { retry_after: decision.reset_after.max(Micros::new(1)) }
                }
                Outcome::Allow { .. } => Outcome::Pass,
                other => other,
            };
            Decision { outcome, ..*decision }
        });
        let denied = Verdict::new(false, peeked.decided_at(), decisions);
        Ok(denied.with_source(peeked.source()))
    }

    /// Asks the store. If the client leaves before the answer is there, what it took is
    /// given back.
    async fn ask(&self) -> Result<Verdict, StoreError> {
        let charges: Vec<_> = self.charged.iter().map(Charged::charge).collect();
        let answer = self.store.decide(&charges);
        drop(charges);
        let (store, charged) = (self.store.clone(), Arc::clone(&self.charged));
        let mut asked = Asked { store, charged, answer: Some(answer) };
        std::future::poll_fn(|cx| {
            let answer = asked.answer.as_mut().expect("polled until it is ready");
            let verdict = std::task::ready!(Pin::new(answer).poll(cx));
            asked.answer = None;
            Poll::Ready(verdict)
        })
        .await
    }
}

/// How often the first waiter for a concurrency limit asks.
const LOOK_AGAIN: Micros = Micros::new(25_000);

/// A question whose asker may leave.
struct Asked<St: Store> {
    store: St,
    charged: Arc<[Charged]>,
    /// `None` once it was read.
    answer: Option<St::Future<Verdict>>,
}

impl<St: Store> Drop for Asked<St> {
    fn drop(&mut self) {
        let (Some(answer), Ok(runtime)) = (self.answer.take(), Handle::try_current()) else {
            return;
        };
        let (store, charged) = (self.store.clone(), Arc::clone(&self.charged));
        runtime.spawn(async move {
            if let Ok(verdict) = answer.await
                && verdict.is_admitted()
            {
                let charges: Vec<_> = charged.iter().map(Charged::charge).collect();
                let receipts = verdict.receipts(&charges, || next_id(&verdict));
                for receipt in receipts.filter(|receipt| !receipt.policy.penalises()) {
                    settle(&store, &receipt, Cost::ZERO);
                }
            }
        });
    }
}
