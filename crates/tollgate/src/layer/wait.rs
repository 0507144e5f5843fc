//! Requests that wait for the store's reply, in the wait queue, or for their turn in a leaky
//! bucket.

use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tollgate_core::{Micros, Policy, Store, StoreError, Verdict};

use super::cancel::CancelGuard;
use super::judge::judge;
use super::lanes::KeySet;
use super::row::Row;
use super::rows::{Rejection, Rows};
use super::state::LayerState;
use super::telemetry::DecisionTimer;
use super::wait_queue::{Arrival, Ticket, WaitQueue};
use super::waiter::{RetryTimes, Waiter};
use crate::RequestHead;

/// A waiting request. It resolves when the request may go to the service or is rejected.
pub(super) type Waiting = Pin<Box<dyn Future<Output = Judged> + Send>>;

type Judged = (Rows, Result<(), Rejection>);

/// Waits for the store's reply.
#[cold]
pub(super) fn for_store<St: Store>(
    layer: &Arc<LayerState<St>>,
    rows: Rows,
    timer: DecisionTimer,
    reply: St::Future,
) -> Waiting {
    let reply = returning_permits(layer, &rows, reply);
    let layer = Arc::clone(layer);
    Box::pin(async move { after_reply(layer, rows, &timer, reply.await).await })
}

/// Returns the permits if the request is dropped before the reply. Otherwise clients that disconnect
/// early would fill a concurrency limit.
fn returning_permits<St: Store>(
    layer: &Arc<LayerState<St>>,
    rows: &[Row],
    reply: St::Future,
) -> CancelGuard<St> {
    // Only permits are refunded, so without them the rows are not needed.
    let rows = if layer.holds_permits() { rows } else { &[] };
    CancelGuard::pending(layer, rows, reply, Policy::is_concurrency)
}

async fn after_reply<St: Store>(
    layer: Arc<LayerState<St>>,
    mut rows: Rows,
    timer: &DecisionTimer,
    reply: Result<Verdict, StoreError>,
) -> Judged {
    let judged = judge(&layer, &mut rows, timer, reply);
    if judged.is_ok()
        && let Some(turn) = turn(&layer, &rows)
    {
        turn.await;
    }
    (rows, judged)
}

/// Delays a request until its turn in a leaky bucket.
#[cold]
pub(super) fn for_turn<St: Store>(layer: &Arc<LayerState<St>>, rows: Rows) -> Waiting {
    let turn = turn(layer, &rows);
    Box::pin(async move {
        if let Some(turn) = turn {
            turn.await;
        }
        (rows, Ok(()))
    })
}

/// Starts a request's delay. If the request is dropped before its delay is over, even unpolled, its
/// charges are refunded.
fn turn<St: Store>(
    layer: &Arc<LayerState<St>>,
    rows: &Rows,
) -> Option<impl Future<Output = ()> + Send + use<St>> {
    let (limit, delay) = delay(layer, rows)?;
    let guard = refund_if_dropped(layer, rows);
    let timer = layer.telemetry.start_waiting(limit);
    let end = sleep(Duration::from(delay));
    Some(async move {
        end.await;
        timer.stop();
        guard.disarm();
    })
}

/// Returns the limit that delays a request that passed, and the delay.
#[inline]
pub(super) fn delay<St>(layer: &LayerState<St>, rows: &Rows) -> Option<(usize, Micros)> {
    let delay = rows.follow_up.as_ref()?.delay;
    let limit = layer.extras.as_ref()?.delays?;
    (delay > Micros::ZERO).then_some((limit, delay))
}

/// Refunds an allowed request's charges if it is dropped before it runs. Its permits are
/// returned with its rows.
pub(super) fn refund_if_dropped<St: Store>(
    layer: &Arc<LayerState<St>>,
    rows: &Rows,
) -> CancelGuard<St> {
    let refunds = |policy: &Policy| !policy.is_concurrency();
    CancelGuard::charged(layer, rows, rows.verdict(), refunds)
}

/// Judges a request that may wait for units. If it waits, because earlier requests wait for the same
/// key or because the store denies it, the returned future takes its rows.
#[inline(never)]
pub(super) fn for_units<St: Store>(
    layer: &Arc<LayerState<St>>,
    queue: &WaitQueue,
    rows: &mut Rows,
    timer: DecisionTimer,
    head: &RequestHead<'_>,
) -> Result<Option<Waiting>, Rejection> {
    let arrival = queue.arrive(head);
    let waiter = Waiter { layer: Arc::clone(layer), rows: mem::take(rows) };
    if arrival.others_wait && !waiter.may_wait().is_empty() && !waiter.never_passes() {
        match waiter.enter(queue, &arrival, KeySet::default()) {
            Ok(None) => {}
            Ok(Some(ticket)) => return Ok(Some(in_queue(waiter, timer, ticket, None))),
            Err(keys) => return Ok(Some(rejected(waiter, timer, keys))),
        }
    }
    let reply = match layer.decide(&waiter.rows).now() {
        Ok(reply) => reply,
        Err(reply) => {
            let reply = returning_permits(layer, &waiter.rows, reply);
            let queue = queue.clone();
            return Ok(Some(Box::pin(after_first_reply(waiter, queue, arrival, timer, reply))));
        }
    };
    if let Ok(verdict) = &reply
        && !verdict.is_admitted()
        && let Some((ticket, denied)) = waiter.after_denial(queue, &arrival, verdict)
    {
        let denial = Some((verdict.clone(), denied));
        return Ok(Some(in_queue(waiter, timer, ticket, denial)));
    }
    *rows = waiter.rows;
    judge(layer, rows, &timer, reply).map(|()| None)
}

async fn after_first_reply<St: Store>(
    waiter: Waiter<St>,
    queue: WaitQueue,
    arrival: Arrival,
    timer: DecisionTimer,
    reply: CancelGuard<St>,
) -> Judged {
    let reply = reply.await;
    if let Ok(verdict) = &reply
        && !verdict.is_admitted()
        && let Some((ticket, denied)) = waiter.after_denial(&queue, &arrival, verdict)
    {
        return in_queue(waiter, timer, ticket, Some((verdict.clone(), denied))).await;
    }
    after_reply(waiter.layer, waiter.rows, &timer, reply).await
}

fn in_queue<St: Store>(
    waiter: Waiter<St>,
    mut timer: DecisionTimer,
    ticket: Ticket,
    denial: Option<(Verdict, RetryTimes)>,
) -> Waiting {
    timer.has_waited = true;
    let waiting = waiter.layer.telemetry.start_waiting(waiter.first_limit());
    Box::pin(async move {
        let reply = waiter.wait(ticket, denial).await;
        waiting.stop();
        after_reply(waiter.layer, waiter.rows, &timer, reply).await
    })
}

/// The wait queue is full.
fn rejected<St: Store>(waiter: Waiter<St>, mut timer: DecisionTimer, keys: KeySet) -> Waiting {
    timer.has_waited = true;
    Box::pin(async move {
        let reply = waiter.reject(keys).await;
        after_reply(waiter.layer, waiter.rows, &timer, reply).await
    })
}
