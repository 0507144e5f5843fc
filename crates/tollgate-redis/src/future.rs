//! A future for Redis' answer.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tollgate_core::StoreError;

use crate::combiner::{Combiner, Drive};
use crate::ticket::{Answer, Awaited, Ticket};

/// A future for an answer from a [`RedisStore`](crate::RedisStore).
///
/// If the caller drops it, a request that has not been sent yet is never sent.
pub struct RedisFuture<T> {
    ticket: Arc<Awaited<T>>,
    driven: Option<Driven>,
}

/// A call that a future drives.
struct Driven {
    call: Drive,
    /// Continues the call if the future is dropped.
    runtime: Handle,
    ticket: Arc<Ticket>,
}

impl Driven {
    /// Spawns the call in the store's runtime.
    fn leave(self) {
        self.runtime.spawn(Detached { call: self.call, tickets: vec![self.ticket] });
    }
}

impl<T> RedisFuture<T> {
    pub(crate) fn submit(combiner: &Arc<Combiner>, ticket: Arc<Awaited<T>>) -> Self
    where
        T: Answer,
    {
        let any: Arc<Ticket> = ticket.clone();
        let call = combiner.submit(&any);
        let runtime = || combiner.runtime.clone();
        let driven = call.map(|call| Driven { call, runtime: runtime(), ticket: any });
        Self { ticket, driven }
    }

    /// Creates a future for the answer that `call` will write to the ticket.
    pub(crate) fn driven(ticket: Arc<Awaited<T>>, call: Drive, runtime: Handle) -> Self
    where
        T: Answer,
    {
        let driven = Some(Driven { call, runtime, ticket: ticket.clone() });
        Self { ticket, driven }
    }

    /// Reports the timeout, unless this future drives the call, which checks the deadline itself.
    pub(crate) fn expire(&self)
    where
        T: Answer,
    {
        if self.driven.is_none() {
            self.ticket.expire();
        }
    }
}

impl<T> Future for RedisFuture<T> {
    type Output = Result<T, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(mut driven) = self.driven.take() {
            if !is_within(&driven.runtime) {
                driven.leave();
            } else if driven.call.as_mut().poll(cx).is_pending() {
                // No other task answers meanwhile. A waker in the ticket would only make this task
                // wake itself.
                self.driven = Some(driven);
                return Poll::Pending;
            }
            // The call has finished, or the runtime drives it.
        }
        self.ticket.poll(cx)
    }
}

impl<T> Drop for RedisFuture<T> {
    fn drop(&mut self) {
        self.ticket.abandon();
        // A started call runs to completion, because other requests share its lane and its script.
        if let Some(driven) = self.driven.take() {
            driven.leave();
        }
    }
}

/// Whether this is polled in the store's runtime. Timers panic after their runtime has shut down,
/// and another runtime cannot tell whether it has.
fn is_within(runtime: &Handle) -> bool {
    Handle::try_current().is_ok_and(|current| current.id() == runtime.id())
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
