//! Charges that are returned if their request is dropped, and corrected in the background.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::sleep;
use tollgate_core::{
    Charge, Cost, OwnedCharge, Policy, Receipt, ReceiptId, Store, StoreError, Verdict,
};

/// Returns the charges of a request that is dropped before it runs. As a future it resolves to the
/// answer of the store.
pub(super) struct CancelGuard<St: Store> {
    store: St,
    charges: Arc<[OwnedCharge]>,
    returns: fn(&Policy) -> bool,
    stage: Stage<St>,
}

enum Stage<St: Store> {
    Asking(St::Future<Verdict>),
    Charged(Verdict),
    Over,
}

impl<St: Store> CancelGuard<St> {
    pub(super) fn asking(
        store: &St,
        charges: Arc<[OwnedCharge]>,
        answer: St::Future<Verdict>,
        returns: fn(&Policy) -> bool,
    ) -> Self {
        Self { store: store.clone(), charges, returns, stage: Stage::Asking(answer) }
    }

    pub(super) fn charged(
        store: &St,
        charges: Arc<[OwnedCharge]>,
        verdict: Verdict,
        returns: fn(&Policy) -> bool,
    ) -> Self {
        Self { store: store.clone(), charges, returns, stage: Stage::Charged(verdict) }
    }

    pub(super) fn disarm(mut self) {
        self.stage = Stage::Over;
    }

    fn give_back(&self, verdict: &Verdict) {
        // A penalty took nothing.
        let returns = |policy: &Policy| !policy.is_penalty() && (self.returns)(policy);
        for receipt in receipts(verdict, &self.charges).filter(|it| returns(&it.policy)) {
            settle(&self.store, receipt, Cost::ZERO, None);
        }
    }
}

impl<St: Store> Future for CancelGuard<St> {
    type Output = Result<Verdict, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Stage::Asking(answer) = &mut self.stage else { return Poll::Pending };
        let answer = ready!(Pin::new(answer).poll(cx));
        self.stage = Stage::Over;
        Poll::Ready(answer)
    }
}

/// Nothing in it is ever pinned.
impl<St: Store> Unpin for CancelGuard<St> {}

impl<St: Store> Drop for CancelGuard<St> {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Over => {}
            Stage::Charged(verdict) => self.give_back(&verdict),
            Stage::Asking(answer) => {
                let (store, charges) = (self.store.clone(), Arc::clone(&self.charges));
                let returns = self.returns;
                if let Ok(runtime) = Handle::try_current() {
                    runtime.spawn(async move {
                        if let Ok(verdict) = answer.await
                            && verdict.is_admitted()
                        {
                            drop(Self::charged(&store, charges, verdict, returns));
                        }
                    });
                }
            }
        }
    }
}

pub(super) fn receipts(
    verdict: &Verdict,
    charges: &[OwnedCharge],
) -> impl Iterator<Item = Receipt> + use<> {
    let charges: Vec<Charge<'_>> = charges.iter().map(OwnedCharge::borrow).collect();
    let receipts: Vec<_> = verdict.receipts(&charges, || next_id(verdict)).collect();
    receipts.into_iter()
}

/// Settles a charge without waiting for the store. `runtime` is for callers outside of a runtime.
///
/// Only permits are settled again after a failure: their receipts count once, and until then the
/// permit is missing.
pub(super) fn settle<St: Store>(
    store: &St,
    receipt: Receipt,
    actual: Cost,
    runtime: Option<&Handle>,
) {
    let is_permit = receipt.policy.is_concurrency();
    let mut settled = store.settle(&receipt, actual);
    // A store in memory has settled it by now.
    let first = Pin::new(&mut settled).poll(&mut Context::from_waker(Waker::noop()));
    match &first {
        Poll::Ready(Ok(_)) => return,
        Poll::Ready(Err(error)) if !is_permit => return report(&error, false),
        _ => {}
    }
    let Some(runtime) = Handle::try_current().ok().or_else(|| runtime.cloned()) else {
        return report(&"there is no tokio runtime to wait for the store", is_permit);
    };
    let store = store.clone();
    runtime.spawn(async move {
        let mut last = match first {
            Poll::Ready(settled) => settled,
            Poll::Pending => settled.await,
        };
        for pause in PAUSES {
            if last.is_ok() || !is_permit {
                break;
            }
            sleep(pause).await;
            last = store.settle(&receipt, actual).await;
        }
        if let Err(error) = last {
            report(&error, is_permit);
        }
    });
}

fn report(error: &dyn std::fmt::Display, is_permit: bool) {
    if is_permit {
        tracing::warn!(target: "tollgate", %error, "a permit counts until its time to live ends");
    } else {
        tracing::warn!(target: "tollgate", %error, "a charge could not be corrected and stands");
    }
}

const PAUSES: [Duration; 3] =
    [Duration::from_millis(50), Duration::from_millis(400), Duration::from_secs(3)];

pub(super) fn next_id(verdict: &Verdict) -> ReceiptId {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let process = *PROCESS.get_or_init(|| RandomState::new().hash_one("receipts"));
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    ReceiptId::new(process, verdict.decided_at(), count)
}
