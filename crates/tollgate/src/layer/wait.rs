//! Requests that wait for the store's reply, in the wait queue, or for their turn in a leaky
//! bucket.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tollgate_core::{Policy, Store, Verdict};

use super::cancel::CancelGuard;
use super::judge::{Judgement, Passed, judge};
use super::row::Rows;
use super::state::LayerState;
use super::telemetry::DecisionTimer;
use super::wait_queue::{Arrival, Ticket, WaitQueue};
use super::waiter::{Denied, Waiter};
use crate::RequestHead;

/// A waiting request. It resolves when the request may go to the service or is rejected.
pub(super) type Waiting = Pin<Box<dyn Future<Output = Judgement> + Send>>;

/// Waits for the store's reply.
#[cold]
pub(super) fn for_store<St: Store>(
    layer: &Arc<LayerState<St>>,
    rows: Rows,
    timer: DecisionTimer,
    reply: St::Future<Verdict>,
) -> Waiting {
    let (layer, reply) = (Arc::clone(layer), guarded(layer, &rows, reply));
    Box::pin(async move {
        let reply = reply.await;
        after_turn(&layer, judge(&layer, rows, &timer, reply)).await
    })
}

/// Otherwise clients that disconnect before the reply would fill a concurrency limit.
fn guarded<St: Store>(
    layer: &Arc<LayerState<St>>,
    rows: &Rows,
    reply: St::Future<Verdict>,
) -> CancelGuard<St> {
    // Only permits are refunded, so without them the rows are not needed.
    let rows = if layer.holds_permits() { rows.clone() } else { Rows::new() };
    CancelGuard::pending(layer, rows, reply, Policy::is_concurrency)
}

/// Waits for the turn of a request that a leaky bucket delays.
#[cold]
pub(super) fn for_turn<St: Store>(layer: &Arc<LayerState<St>>, passed: Passed) -> Waiting {
    let turn = turn(layer, &passed);
    Box::pin(async move {
        if let Some(turn) = turn {
            turn.await;
        }
        Judgement::Pass(Some(passed))
    })
}

async fn after_turn<St: Store>(layer: &Arc<LayerState<St>>, judgement: Judgement) -> Judgement {
    if let Judgement::Pass(Some(passed)) = &judgement
        && let Some(turn) = turn(layer, passed)
    {
        turn.await;
    }
    judgement
}

/// Starts a request's delay. If the request is dropped before its delay is over, even unpolled, its
/// charges are refunded.
fn turn<St: Store>(
    layer: &Arc<LayerState<St>>,
    passed: &Passed,
) -> Option<impl Future<Output = ()> + Send + use<St>> {
    let (limit, delay) = passed.delay(layer)?;
    let guard = passed.guard(layer);
    let timer = layer.telemetry.start_waiting(limit);
    let end = sleep(Duration::from(delay));
    Some(async move {
        end.await;
        timer.stop();
        guard.disarm();
    })
}

/// Judges a request that may wait for units. It waits if earlier requests wait for the same key, or
/// if the store denies it.
///
/// # Errors
/// The future of a waiting request.
#[inline(never)]
pub(super) fn for_units<St: Store>(
    layer: &Arc<LayerState<St>>,
    queue: &WaitQueue,
    rows: Rows,
    timer: DecisionTimer,
    head: &RequestHead<'_>,
) -> Result<Judgement, Waiting> {
    let arrival = queue.arrive(head);
    let waiter = Waiter { layer: Arc::clone(layer), rows };
    if arrival.others_wait && waiter.may_wait() != 0 && !waiter.never_passes() {
        match waiter.enter(queue, &arrival, 0) {
            Ok(None) => {}
            Ok(Some(ticket)) => return Err(in_queue(waiter, timer, ticket, None)),
            Err(keys) => return Err(rejected(waiter, timer, keys)),
        }
    }
    match layer.decide(&waiter.rows).now() {
        Ok(Ok(verdict)) if !verdict.is_admitted() => {
            match waiter.after_denial(queue, &arrival, &verdict) {
                Some((ticket, denied)) => {
                    Err(in_queue(waiter, timer, ticket, Some((verdict, denied))))
                }
                None => Ok(judge(layer, waiter.rows, &timer, Ok(verdict))),
            }
        }
        Ok(reply) => Ok(judge(layer, waiter.rows, &timer, reply)),
        Err(reply) => {
            let reply = guarded(layer, &waiter.rows, reply);
            Err(Box::pin(after_reply(waiter, queue.clone(), arrival, timer, reply)))
        }
    }
}

async fn after_reply<St: Store>(
    waiter: Waiter<St>,
    queue: WaitQueue,
    arrival: Arrival,
    timer: DecisionTimer,
    reply: CancelGuard<St>,
) -> Judgement {
    let reply = reply.await;
    if let Ok(verdict) = &reply
        && !verdict.is_admitted()
        && let Some((ticket, denied)) = waiter.after_denial(&queue, &arrival, verdict)
    {
        return in_queue(waiter, timer, ticket, Some((verdict.clone(), denied))).await;
    }
    let Waiter { layer, rows } = waiter;
    after_turn(&layer, judge(&layer, rows, &timer, reply)).await
}

fn in_queue<St: Store>(
    waiter: Waiter<St>,
    mut timer: DecisionTimer,
    ticket: Ticket,
    denial: Option<(Verdict, Denied)>,
) -> Waiting {
    timer.has_waited = true;
    let waiting = waiter.layer.telemetry.start_waiting(waiter.first_limit());
    Box::pin(async move {
        let reply = waiter.wait(ticket, denial).await;
        waiting.stop();
        let Waiter { layer, rows } = waiter;
        after_turn(&layer, judge(&layer, rows, &timer, reply)).await
    })
}

/// The wait queue is full.
fn rejected<St: Store>(waiter: Waiter<St>, mut timer: DecisionTimer, keys: u64) -> Waiting {
    timer.has_waited = true;
    Box::pin(async move {
        let reply = waiter.reject(keys).await;
        let Waiter { layer, rows } = waiter;
        after_turn(&layer, judge(&layer, rows, &timer, reply)).await
    })
}
