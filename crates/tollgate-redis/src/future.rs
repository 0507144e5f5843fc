//! An answer on its way from Redis.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::runtime::Handle;
use tollgate_core::StoreError;

use crate::combiner::{Combiner, Drive};
use crate::failure::STORE;
use crate::ticket::{CallAnswer, Ticket};

/// The future of an answer of a [`RedisStore`](crate::RedisStore).
///
/// If the caller drops it, a request that was not sent yet is never sent.
pub struct RedisFuture<T> {
    ticket: Arc<Ticket>,
    /// The call, if it is for this future to carry out, and where to leave it.
    drive: Option<(Drive, Handle)>,
    /// Takes what was asked for out of the answer.
    read: fn(CallAnswer) -> Option<T>,
}

impl<T> RedisFuture<T> {
    pub(crate) fn submit(
        combiner: &Arc<Combiner>,
        ticket: Arc<Ticket>,
        read: fn(CallAnswer) -> Option<T>,
    ) -> Self {
        let drive = combiner.submit(&ticket).map(|drive| (drive, combiner.runtime.clone()));
        Self { ticket, drive, read }
    }

    /// The answer that `drive` will give to the ticket.
    pub(crate) const fn driven(
        ticket: Arc<Ticket>,
        drive: Drive,
        runtime: Handle,
        read: fn(CallAnswer) -> Option<T>,
    ) -> Self {
        Self { ticket, drive: Some((drive, runtime)), read }
    }

    /// Says that time is up. A call that this carries out itself knows the time.
    pub(crate) fn expire(&self) {
        if self.drive.is_none() {
            self.ticket.expire();
        }
    }
}

impl<T> Future for RedisFuture<T> {
    type Output = Result<T, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { ticket, drive, read } = &mut *self;
        if let Some((call, runtime)) = drive {
            if !is_within(runtime) {
                leave(drive, ticket);
            } else if call.as_mut().poll(cx).is_pending() {
                // No other task answers meanwhile. A waker in the ticket would only wake this task
                // by its own call.
                return Poll::Pending;
            }
            // The call has ended, or the runtime carries it out.
            *drive = None;
        }
        let answer = ready!(ticket.poll(cx));
        Poll::Ready(answer.and_then(|answer| {
            let mixed_up =
                || StoreError::maybe_charged(STORE, "the answer is one to something else");
            read(answer).ok_or_else(mixed_up)
        }))
    }
}

impl<T> Drop for RedisFuture<T> {
    fn drop(&mut self) {
        self.ticket.abandon();
        // A call that has started runs to its end, because its lane and its script are shared.
        leave(&mut self.drive, &self.ticket);
    }
}

/// Whether this is polled in the runtime of the store. Timers of a runtime that has ended panic,
/// and another runtime cannot find out whether it has ended.
fn is_within(runtime: &Handle) -> bool {
    Handle::try_current().is_ok_and(|current| current.id() == runtime.id())
}

/// Leaves a call to the runtime.
fn leave(drive: &mut Option<(Drive, Handle)>, ticket: &Arc<Ticket>) {
    if let Some((call, runtime)) = drive.take() {
        runtime.spawn(Left { call, tickets: vec![Arc::clone(ticket)] });
    }
}

/// A call in the hands of the runtime. Should that end first, who asked is told.
pub(crate) struct Left {
    pub(crate) call: Drive,
    pub(crate) tickets: Vec<Arc<Ticket>>,
}

impl Future for Left {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let progress = self.call.as_mut().poll(cx);
        if progress.is_ready() {
            // They are answered, or in the hands of another call.
            self.tickets.clear();
        }
        progress
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        self.tickets.iter().for_each(|ticket| ticket.fail_pending());
    }
}

impl<T> fmt::Debug for RedisFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisFuture").finish_non_exhaustive()
    }
}
