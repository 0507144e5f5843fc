//! Calls that no caller drives.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::calls::ticket::Ticket;

/// A call that a request's caller drives while it waits for the answer.
pub(crate) type Drive = Pin<Box<dyn Future<Output = ()> + Send>>;

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
