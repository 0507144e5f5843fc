//! A future for Redis' answer.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::runtime::Handle;
use tollgate_core::StoreError;

use crate::combiner::{Combiner, Drive};
use crate::failure::STORE;
use crate::ticket::{CallAnswer, Ticket};

/// A future for an answer from a [`RedisStore`](crate::RedisStore).
///
/// If the caller drops it, a request that has not been sent yet is never sent.
pub struct RedisFuture<T> {
    ticket: Arc<Ticket>,
    /// The call, if this future drives it, and the runtime that continues it if this future is
    /// dropped.
    drive: Option<(Drive, Handle)>,
    /// Extracts the expected result from the answer.
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

    /// Creates a future for the answer that `drive` will write to the ticket.
    pub(crate) const fn driven(
        ticket: Arc<Ticket>,
        drive: Drive,
        runtime: Handle,
        read: fn(CallAnswer) -> Option<T>,
    ) -> Self {
        Self { ticket, drive: Some((drive, runtime)), read }
    }

    /// Reports the timeout, unless this future drives the call, which checks the deadline itself.
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
                // No other task answers meanwhile. A waker in the ticket would only make this task
                // wake itself.
                return Poll::Pending;
            }
            // The call has finished, or the runtime drives it.
            *drive = None;
        }
        let answer = ready!(ticket.poll(cx));
        Poll::Ready(answer.and_then(|answer| {
            let mixed_up =
                || StoreError::maybe_charged(STORE, "the answer belongs to another request");
            read(answer).ok_or_else(mixed_up)
        }))
    }
}

impl<T> Drop for RedisFuture<T> {
    fn drop(&mut self) {
        self.ticket.abandon();
        // A started call runs to completion, because other requests share its lane and its script.
        leave(&mut self.drive, &self.ticket);
    }
}

/// Whether this is polled in the store's runtime. Timers panic after their runtime has shut down,
/// and another runtime cannot tell whether it has.
fn is_within(runtime: &Handle) -> bool {
    Handle::try_current().is_ok_and(|current| current.id() == runtime.id())
}

/// Spawns the call in the store's runtime.
fn leave(drive: &mut Option<(Drive, Handle)>, ticket: &Arc<Ticket>) {
    if let Some((call, runtime)) = drive.take() {
        runtime.spawn(Detached { call, tickets: vec![Arc::clone(ticket)] });
    }
}

/// A call that the runtime drives. If the runtime shuts down first, its callers get an error.
pub(crate) struct Detached {
    pub(crate) call: Drive,
    pub(crate) tickets: Vec<Arc<Ticket>>,
}

impl Future for Detached {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let progress = self.call.as_mut().poll(cx);
        if progress.is_ready() {
            // The tickets are answered, or another call has them.
            self.tickets.clear();
        }
        progress
    }
}

impl Drop for Detached {
    fn drop(&mut self) {
        self.tickets.iter().for_each(|ticket| ticket.fail_pending());
    }
}

impl<T> fmt::Debug for RedisFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisFuture").finish_non_exhaustive()
    }
}
