use core::fmt;
use core::mem;
use core::pin::Pin;
use core::task::{Context, Poll};

use crate::{StoreError, Verdict};

/// A store's reply: either an output that is ready, or a future.
///
/// A reply is itself a future. A caller can use [`now`](Self::now) to take an output that is ready
/// without polling, which is the usual case for an in-memory store.
#[must_use = "a reply does nothing unless it is awaited"]
pub struct Reply<F: Future>(Repr<F>);

enum Repr<F: Future> {
    Ready(F::Output),
    Pending(F),
    /// The output was returned by a poll.
    Taken,
}

impl<F: Future> Reply<F> {
    /// Creates a reply that is ready.
    #[inline]
    pub fn ready(output: F::Output) -> Self {
        Self(Repr::Ready(output))
    }

    /// Creates a reply that is not ready yet.
    pub const fn pending(future: F) -> Self {
        Self(Repr::Pending(future))
    }

    /// Returns the output if it is ready.
    ///
    /// # Errors
    /// Returns the future if the output is not ready. The future has not been polled.
    #[inline]
    pub fn now(self) -> Result<F::Output, F> {
        match self.0 {
            Repr::Ready(output) => Ok(output),
            Repr::Pending(future) => Err(future),
            Repr::Taken => panic!("{POLLED_AGAIN}"),
        }
    }

    /// Maps the future if the reply is not ready. Stores that wrap another store use this.
    pub fn map_pending<G>(self, map: impl FnOnce(F) -> G) -> Reply<G>
    where
        G: Future<Output = F::Output>,
    {
        match self.0 {
            Repr::Ready(output) => Reply::ready(output),
            Repr::Pending(future) => Reply::pending(map(future)),
            Repr::Taken => Reply(Repr::Taken),
        }
    }
}

impl<F: Future + Unpin> Future for Reply<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        if let Repr::Pending(future) = &mut self.0 {
            return Pin::new(future).poll(cx);
        }
        match mem::replace(&mut self.0, Repr::Taken) {
            Repr::Ready(output) => Poll::Ready(output),
            Repr::Pending(_) | Repr::Taken => panic!("{POLLED_AGAIN}"),
        }
    }
}

// The output is never pinned.
impl<F: Future + Unpin> Unpin for Reply<F> {}

impl<F: Future> fmt::Debug for Reply<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_ready = matches!(self.0, Repr::Ready(_));
        f.debug_struct("Reply").field("is_ready", &is_ready).finish_non_exhaustive()
    }
}

impl Reply<NeverPending> {
    /// Returns the output, which is always ready.
    ///
    /// # Errors
    /// The store could not decide.
    #[inline]
    pub fn into_inner(self) -> Result<Verdict, StoreError> {
        match self.0 {
            Repr::Ready(output) => output,
            Repr::Pending(never) => match never {},
            Repr::Taken => panic!("{POLLED_AGAIN}"),
        }
    }
}

/// A reply must not be polled or taken after it was ready.
const POLLED_AGAIN: &str = "`Reply` polled after completion";

/// The [future](crate::Store::Future) of a store that decides immediately, such as an in-memory
/// store. It has no values.
#[derive(Debug)]
pub enum NeverPending {}

impl Future for NeverPending {
    type Output = Result<Verdict, StoreError>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        match *self {}
    }
}
