//! Requests that wait for the store's reply, in the queue, or for their turn in a leaky bucket.

use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout_at};
use tollgate_core::{Micros, Source, Store, Timestamp};
use tollgate_engine::{Conclusion, Refunds, Rejection, Request, Sleeping};

use super::admitted::Admitted;
use super::driver::{Decided, Driver, Next};
use super::telemetry::DecisionTimer;

/// A waiting request. It resolves when the request may run or is rejected.
pub(crate) type Waiting<St, X> = Pin<Box<dyn Future<Output = Judged<St, X>> + Send>>;

type Judged<St, X> = Result<Admitted<St, X>, (Decided, Rejection)>;

/// Waits until the request is decided and its turn has come.
pub(super) fn for_step<St: Store, X: Send + Sync + 'static>(
    driver: &Arc<Driver<St, X>>,
    request: Request,
    mut timer: DecisionTimer,
    next: Next<St::Future>,
    patience: Micros,
) -> Waiting<St, X> {
    let mut asked = Asked { driver: Arc::clone(driver), request, next: Some(next) };
    Box::pin(async move {
        let started = Instant::now();
        let conclusion = asked.wait(started).await;
        timer.has_waited = asked.request.has_queued();
        let mut decided = Decided { charges: asked.request.take_charges(), follow_up: None };
        let patience = Micros::new(patience.get().saturating_sub(elapsed(started)));
        match asked.driver.conclude(&mut decided, &timer, conclusion, patience) {
            Ok(delay) => Ok(turn(&asked.driver, decided, delay).await),
            Err(rejection) => Err((decided, rejection)),
        }
    })
}

/// A request that waits for the store or in the queue. If it is dropped, it leaves the queue. If it
/// was charged, it is refunded as far as [`Asking::refunds`](tollgate_engine::Asking::refunds) says.
struct Asked<St: Store, X: Send + Sync + 'static> {
    driver: Arc<Driver<St, X>>,
    request: Request,
    next: Option<Next<St::Future>>,
}

impl<St: Store, X: Send + Sync + 'static> Asked<St, X> {
    async fn wait(&mut self, started: Instant) -> Conclusion {
        let now = || Timestamp::from_micros(elapsed(started));
        let driver = Arc::clone(&self.driver);
        let mut waiting = None;
        loop {
            let is_queued = match &self.next {
                Some(Next::Reply(asking, _)) => asking.is_queued(),
                next => next.is_some(),
            };
            if is_queued && waiting.is_none() {
                let limit = self.request.waits_for(&driver.limits);
                waiting = limit.map(|limit| driver.telemetry.start_waiting(limit));
            }
            let reply = match &mut self.next {
                Some(Next::Reply(_, reply)) => Some(reply.await),
                Some(Next::Sleep(sleeping)) => {
                    let until = started + Duration::from_micros(sleeping.until.as_micros());
                    let _ = timeout_at(until, woken(sleeping)).await;
                    None
                }
                None => None,
            };
            // Taken after the wait. If the caller leaves before, a charge may have to be refunded.
            let step = match (self.next.take(), reply) {
                (Some(Next::Reply(asking, _)), Some(reply)) => {
                    self.request.on_reply(asking, &driver.limits, reply, now())
                }
                (Some(Next::Sleep(sleeping)), _) => self.request.on_wake(sleeping, now()),
                _ => unreachable!("a request waits for something"),
            };
            match driver.advance(&mut self.request, step, now) {
                Err(next) => self.next = Some(next),
                Ok(conclusion) => return conclusion,
            }
        }
    }
}

async fn woken(sleeping: &Sleeping) {
    poll_fn(|cx| match sleeping.is_woken(cx.waker()) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

impl<St: Store, X: Send + Sync + 'static> Drop for Asked<St, X> {
    fn drop(&mut self) {
        let Some(Next::Reply(asking, reply)) = self.next.take() else { return };
        let refunds = asking.refunds(self.driver.abandoned);
        let mut charges = self.request.take_charges();
        if !refunds.any(&self.driver.limits, &charges) {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        let driver = Arc::clone(&self.driver);
        runtime.spawn(async move {
            if let Ok(verdict) = reply.await
                && verdict.is_admitted()
            {
                charges.fill_in(&verdict);
                // The local store has charged the request after it was dropped.
                let is_late = verdict.source() == Source::Local;
                driver.refund(if is_late { Refunds::All } else { refunds }, &charges);
            }
        });
    }
}

fn elapsed(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// Delays a request until its turn in a leaky bucket.
#[cold]
pub(super) fn for_turn<St: Store, X: Send + Sync + 'static>(
    driver: &Arc<Driver<St, X>>,
    decided: &mut Decided,
    delay: Micros,
) -> Waiting<St, X> {
    let turn = turn(driver, mem::take(decided), delay);
    Box::pin(async move { Ok(turn.await) })
}

/// Starts a request's delay. If the request is dropped before its delay is over, even unpolled, its
/// charges are refunded.
fn turn<St: Store, X: Send + Sync + 'static>(
    driver: &Arc<Driver<St, X>>,
    decided: Decided,
    delay: Micros,
) -> impl Future<Output = Admitted<St, X>> + Send + use<St, X> {
    let admitted = Admitted::new(driver, decided);
    let limit = driver.limits.delaying().filter(|_| delay > Micros::ZERO);
    let waiting = limit.map(|limit| driver.telemetry.start_waiting(limit));
    let end = (delay > Micros::ZERO).then(|| sleep(Duration::from(delay)));
    async move {
        let _waiting = waiting;
        if let Some(end) = end {
            end.await;
        }
        admitted
    }
}
