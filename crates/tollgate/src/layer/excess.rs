//! Requests beyond a limit that wait for it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout_at};
use tollgate_core::{Charge, Cost, Decision, Micros, Outcome, Policy, Store, StoreError, Verdict};

use super::in_flight::Watched;
use super::queued::{Charged, next_id, settle};
use super::room::Place;
use super::witness::Waits;

/// The answer of the store, or of the line in front of it.
pub(super) enum Answer<St: Store> {
    Store(St::Future<Verdict>),
    Watched(Watched<St>),
    Line(Pin<Box<dyn Future<Output = Result<Verdict, StoreError>> + Send>>),
}

impl<St: Store> Future for Answer<St> {
    type Output = Result<Verdict, StoreError>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Store(answer) => Pin::new(answer).poll(cx),
            Self::Watched(answer) => Pin::new(answer).poll(cx),
            Self::Line(answer) => answer.as_mut().poll(cx),
        }
    }
}

/// A request that may wait: what it is charged, and how long it waits for each charge;
/// `None` for those whose denial is final.
pub(super) struct Patient<St> {
    store: St,
    charged: Arc<[Charged]>,
    patience: Box<[Option<Duration>]>,
}

impl<St: Store> Patient<St> {
    pub(super) fn new(store: &St, charged: &[Charged], patience: Box<[Option<Duration>]>) -> Self {
        Self { store: store.clone(), charged: charged.into(), patience }
    }

    /// How long it waits for its turn: as long as the least patient of its limits.
    fn longest(&self) -> Duration {
        let least = self.patience.iter().flatten().min().copied().unwrap_or_default();
        // So that no sum with it overflows; nothing takes longer to pass.
        least.min(Policy::MAX_WINDOW)
    }

    /// When it is worth asking again, if it is before `left` is over.
    pub(super) fn wait_after(&self, denied: &Verdict) -> Option<Duration> {
        self.wait_within(denied, self.longest())
    }

    fn wait_within(&self, denied: &Verdict, left: Duration) -> Option<Duration> {
        let mut longest = Micros::ZERO;
        let charges = self.charged.iter().zip(&self.patience);
        for ((charged, patience), decision) in charges.zip(denied.decisions()) {
            if decision.denies() && charged.charge().enforce {
                // Whoever does not wait for one of them need not wait for the others.
                let _ = (*patience)?;
                let mut wait = decision.retry_after()?;
                if charged.charge().policy.counts_in_flight() {
                    // Others may be over long before their leases are.
                    wait = wait.min(LOOK_AGAIN);
                }
                longest = longest.max(wait);
            }
        }
        Some(Duration::from(longest)).filter(|wait| *wait <= left)
    }

    /// Stands in line, and in front of it asks until the store admits the request or
    /// would do so too late. `denied` is what it has said already, if nobody was before.
    pub(super) async fn wait(
        self,
        place: Place,
        denied: Option<Verdict>,
        waits: Waits,
    ) -> Result<Verdict, StoreError> {
        let until = Instant::now() + self.longest();
        let mut known = denied.filter(|_| place.turn.try_lock().is_ok());
        let Ok(turn) = timeout_at(until, place.turn.lock()).await else {
            return self.refuse().await;
        };
        let verdict = loop {
            let verdict = match known.take() {
                Some(verdict) => verdict,
                None => self.ask().await?,
            };
            let left = until.saturating_duration_since(Instant::now());
            match self.wait_within(&verdict, left) {
                Some(wait) if !verdict.is_admitted() => sleep(wait).await,
                _ => break verdict,
            }
        };
        drop((turn, waits));
        Ok(verdict)
    }

    /// Denies without asking for anything: whoever does not wait must not overtake those
    /// who do. When the line will be over nobody knows; once the quota is whole again it
    /// surely can be.
    pub(super) async fn refuse(self) -> Result<Verdict, StoreError> {
        let peeked = {
            let peek = |charged| Charge { cost: Cost::ZERO, ..Charged::charge(charged) };
            let charges: Vec<_> = self.charged.iter().map(peek).collect();
            self.store.decide(&charges)
        };
        let peeked = peeked.await?;
        let charges = self.charged.iter().zip(&self.patience);
        let decisions = charges.zip(peeked.decisions()).map(|((charged, patience), decision)| {
            let Charge { cost, enforce, .. } = charged.charge();
            let outcome = match decision.outcome {
                Outcome::Allow { .. } if enforce && patience.is_some() && cost > Cost::ZERO => {
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

/// Whoever is in front of a line for what is in flight asks so often.
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
