//! Refunds requests that are dropped before they run.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::runtime::Handle;
use tollgate_core::{Cost, Policy, Source, Store, StoreError, Verdict};

use super::receipts::{receipts, settle};
use super::row::Row;
use super::state::LayerState;

/// Refunds a request's charges if it is dropped before it runs. As a future, it resolves to the
/// store's reply.
pub(super) struct CancelGuard<St: Store> {
    layer: Arc<LayerState<St>>,
    rows: Box<[Row]>,
    refunds: fn(&Policy) -> bool,
    stage: Stage<St>,
}

enum Stage<St: Store> {
    Pending(St::Future),
    Charged(Verdict),
    Over,
}

impl<St: Store> CancelGuard<St> {
    pub(super) fn pending(
        layer: &Arc<LayerState<St>>,
        rows: &[Row],
        reply: St::Future,
        refunds: fn(&Policy) -> bool,
    ) -> Self {
        let stage = Stage::Pending(reply);
        Self { layer: Arc::clone(layer), rows: rows.into(), refunds, stage }
    }

    pub(super) fn charged(
        layer: &Arc<LayerState<St>>,
        rows: &[Row],
        verdict: Verdict,
        refunds: fn(&Policy) -> bool,
    ) -> Self {
        let stage = Stage::Charged(verdict);
        Self { layer: Arc::clone(layer), rows: rows.into(), refunds, stage }
    }

    pub(super) fn disarm(mut self) {
        self.stage = Stage::Over;
    }

    fn refund(&self, verdict: &Verdict) {
        for receipt in receipts(&self.layer.limits, &self.rows, verdict) {
            // A penalty did not charge any units.
            if !receipt.policy.is_penalty() && (self.refunds)(&receipt.policy) {
                settle(&self.layer.store, receipt, Cost::ZERO, None);
            }
        }
    }
}

impl<St: Store> Future for CancelGuard<St> {
    type Output = Result<Verdict, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Stage::Pending(reply) = &mut self.stage else { return Poll::Pending };
        let reply = ready!(Pin::new(reply).poll(cx));
        self.stage = Stage::Over;
        Poll::Ready(reply)
    }
}

/// `St::Future` is `Unpin`, and the other fields are never pinned.
impl<St: Store> Unpin for CancelGuard<St> {}

impl<St: Store> Drop for CancelGuard<St> {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Over => {}
            Stage::Charged(verdict) => self.refund(&verdict),
            Stage::Pending(reply) => {
                let (layer, rows, refunds) =
                    (Arc::clone(&self.layer), std::mem::take(&mut self.rows), self.refunds);
                if !layer.limits.charges(&rows).iter().any(|charge| refunds(charge.policy)) {
                    return;
                }
                if let Ok(runtime) = Handle::try_current() {
                    runtime.spawn(async move {
                        if let Ok(verdict) = reply.await
                            && verdict.is_admitted()
                        {
                            // The local store has charged the request after it was dropped.
                            let is_late = verdict.source() == Source::Local;
                            let refunds: fn(&Policy) -> bool =
                                if is_late { |_| true } else { refunds };
                            drop(Self::charged(&layer, &rows, verdict, refunds));
                        }
                    });
                }
            }
        }
    }
}
