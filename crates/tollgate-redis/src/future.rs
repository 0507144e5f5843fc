//! An answer on its way from Redis.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tollgate_core::StoreError;

use crate::combiner::{Combiner, Drive};
use crate::failure::STORE;
use crate::ticket::{Answer, Ticket};

/// The answer of a [`RedisStore`](crate::RedisStore).
///
/// Dropping it gives up the answer: a request that has not been sent is not.
pub struct RedisFuture<T> {
    state: State,
    /// Takes what was asked for out of the answer.
    read: fn(Answer) -> Option<T>,
}

enum State {
    Ready(Option<Result<Answer, StoreError>>),
    Waiting {
        ticket: Arc<Ticket>,
        /// The call, if it is for this future to carry out, and where to leave it.
        drive: Option<(Drive, Handle)>,
    },
}

impl<T> RedisFuture<T> {
    pub(crate) const fn ready(
        answer: Result<Answer, StoreError>,
        read: fn(Answer) -> Option<T>,
    ) -> Self {
        Self { state: State::Ready(Some(answer)), read }
    }

    pub(crate) fn submit(
        combiner: &Arc<Combiner>,
        ticket: Arc<Ticket>,
        runtime: &Handle,
        read: fn(Answer) -> Option<T>,
    ) -> Self {
        let drive = combiner.submit(&ticket).map(|drive| (drive, runtime.clone()));
        Self { state: State::Waiting { ticket, drive }, read }
    }

    /// The answer that `drive` will give to the ticket.
    pub(crate) const fn driven(
        ticket: Arc<Ticket>,
        drive: Drive,
        runtime: Handle,
        read: fn(Answer) -> Option<T>,
    ) -> Self {
        Self { state: State::Waiting { ticket, drive: Some((drive, runtime)) }, read }
    }
}

impl<T> Future for RedisFuture<T> {
    type Output = Result<T, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = match &mut self.state {
            State::Ready(answer) => answer
                .take()
                .unwrap_or_else(|| Err(StoreError::invalid(STORE, "polled after completion"))),
            State::Waiting { ticket, drive } => {
                if let Some((call, runtime)) = drive {
                    // Its timer is one of the runtime that the store was made in, wherever
                    // this is polled.
                    let _entered = runtime.enter();
                    if call.as_mut().poll(cx).is_pending() {
                        // Nobody else answers meanwhile. To leave a waker with the ticket
                        // would have this task woken by its own call, for nothing.
                        return Poll::Pending;
                    }
                    *drive = None;
                }
                match ticket.poll(cx) {
                    Poll::Ready(answer) => answer,
                    Poll::Pending => return Poll::Pending,
                }
            }
        };
        let read = self.read;
        Poll::Ready(answer.and_then(|answer| {
            let mixed_up =
                || StoreError::maybe_charged(STORE, "the answer is one to something else");
            read(answer).ok_or_else(mixed_up)
        }))
    }
}

impl<T> Drop for RedisFuture<T> {
    fn drop(&mut self) {
        if let State::Waiting { ticket, drive } = &mut self.state {
            ticket.abandon();
            // A call that was begun is carried through: its lane and its script are shared.
            if let Some((call, runtime)) = drive.take() {
                runtime.spawn(call);
            }
        }
    }
}

impl<T> fmt::Debug for RedisFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisFuture").finish_non_exhaustive()
    }
}
