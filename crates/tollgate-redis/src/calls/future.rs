//! Futures for Redis' answers.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::runtime::Handle;
use tollgate_core::{BoxFuture, StoreError, Verdict};

use crate::calls::combiner::{Combiner, Detached, Drive};
use crate::calls::failure::STORE;
use crate::calls::ticket::{Answer, Ticket};

/// A future for a decision by a [`RedisStore`](crate::RedisStore).
///
/// If the caller drops it, a request that has not been sent yet is never sent.
pub struct RedisFuture(pub(crate) Submitted);

impl RedisFuture {
    /// Reports the timeout, unless this future drives the call, which checks the deadline itself.
    pub(crate) fn expire(&self) {
        if self.0.driven.is_none() {
            self.0.ticket.expire();
        }
    }
}

impl Future for RedisFuture {
    type Output = Result<Verdict, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match ready!(Pin::new(&mut self.0).poll(cx))? {
            Answer::Verdict(verdict) => Ok(verdict),
            _ => Err(mixed_up()),
        })
    }
}

tollgate_core::debug_fields!(RedisFuture);

/// A request of any kind that the combiner has. If the caller drops this, a request that has not
/// been sent yet is never sent.
pub(crate) struct Submitted {
    ticket: Arc<Ticket>,
    driven: Option<Driven>,
}

/// A call that a future drives.
struct Driven {
    call: Drive,
    /// Continues the call if the future is dropped.
    runtime: Handle,
}

impl Driven {
    /// Spawns the call in the store's runtime.
    fn leave(self, ticket: &Arc<Ticket>) {
        self.runtime.spawn(Detached { call: self.call, tickets: vec![Arc::clone(ticket)] });
    }
}

impl Submitted {
    pub(crate) fn new(combiner: &Arc<Combiner>, ticket: Ticket) -> Self {
        let ticket = Arc::new(ticket);
        let call = combiner.submit(&ticket);
        let driven = call.map(|call| Driven { call, runtime: combiner.runtime.clone() });
        Self { ticket, driven }
    }

    /// Creates a future for the answer that `call` will write to the ticket.
    pub(crate) const fn driven(ticket: Arc<Ticket>, call: Drive, runtime: Handle) -> Self {
        Self { ticket, driven: Some(Driven { call, runtime }) }
    }

    /// Resolves to the part of the answer that `of` finds, which is in every answer to this kind of
    /// request.
    pub(crate) fn boxed<T: Send + 'static>(self, of: fn(Answer) -> Option<T>) -> BoxFuture<T> {
        Box::pin(async move { of(self.await?).ok_or_else(mixed_up) })
    }
}

/// Creates an error for an answer to another kind of request.
fn mixed_up() -> StoreError {
    StoreError::maybe_charged(STORE, "the answer belongs to another request")
}

impl Future for Submitted {
    type Output = Result<Answer, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(mut driven) = self.driven.take() {
            if !is_within(&driven.runtime) {
                driven.leave(&self.ticket);
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

impl Drop for Submitted {
    fn drop(&mut self) {
        self.ticket.abandon();
        // A started call runs to completion, because other requests share its lane and its script.
        if let Some(driven) = self.driven.take() {
            driven.leave(&self.ticket);
        }
    }
}

/// Whether this is polled in the store's runtime. Timers panic after their runtime has shut down,
/// and another runtime cannot tell whether it has.
fn is_within(runtime: &Handle) -> bool {
    Handle::try_current().is_ok_and(|current| current.id() == runtime.id())
}

#[cfg(test)]
mod tests {
    use std::task::Waker;
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;
    use crate::RedisStore;
    use crate::calls::ticket::Request;

    #[tokio::test]
    async fn other_requests_answer_is_an_error() {
        let store = RedisStore::connect("redis://127.0.0.1:1").unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let ticket = Ticket::new(Request::Decide(Default::default()), 0, 0, deadline);
        let mut decision = RedisFuture(Submitted::new(&store.0.combiner, ticket));
        decision.0.ticket.answer(Ok(Answer::Renewal(None)));
        decision.0.driven = None;
        let answer = Pin::new(&mut decision).poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(answer, Poll::Ready(Err(error)) if error.may_have_charged()));
    }
}
