//! The end of the gateway, as connections see it.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Whether the gateway takes no further connections and ends its connections.
///
/// Each poll of each connection reads this, so that reading takes no lock.
#[derive(Debug, Default)]
pub(super) struct Drain {
    begun: AtomicBool,
    notify: Notify,
}

impl Drain {
    pub(super) fn begin(&self) {
        self.begun.store(true, Ordering::SeqCst);
        self.notify.notify_waiters();
    }

    pub(super) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    pub(super) async fn begins(&self) {
        let notified = self.notify.notified();
        if !self.begun.load(Ordering::SeqCst) {
            notified.await;
        }
    }
}
