//! The bound of connections to each target.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use http::uri::Authority;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task;

/// The most connections to each target. Clones share the count.
#[derive(Clone, Debug)]
pub(super) struct PerTarget {
    most: usize,
    free: Arc<Mutex<HashMap<String, Arc<Semaphore>>>>,
}

/// The request that asked for a connection has got another one.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the connection is not needed any more")]
pub(super) struct NotNeeded;

impl PerTarget {
    pub(super) fn at_most(most: usize) -> Self {
        Self { most: most.min(Semaphore::MAX_PERMITS), free: Arc::default() }
    }

    pub(super) const fn most(&self) -> usize {
        self.most
    }

    /// Whether the target has as many connections as it may have.
    pub(super) fn is_full(&self, target: &Authority) -> bool {
        self.of(target).available_permits() == 0
    }

    /// Waits until the target may have another connection, which counts until the permit is dropped.
    pub(super) async fn permit(
        &self,
        target: &Authority,
    ) -> Result<OwnedSemaphorePermit, NotNeeded> {
        // The pool gives a request the connection that is free first. It finishes the other one in a
        // task of its own, where thousands could wait.
        let asked = task::try_id();
        let mut permit = pin!(self.of(target).acquire_owned());
        poll_fn(|cx| match permit.as_mut().poll(cx) {
            Poll::Ready(permit) => Poll::Ready(permit.map_err(|_| NotNeeded)),
            Poll::Pending if task::try_id() != asked => Poll::Ready(Err(NotNeeded)),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    fn of(&self, target: &Authority) -> Arc<Semaphore> {
        let mut free = self.free.lock();
        let of_target =
            free.entry(target.to_string()).or_insert_with(|| Arc::new(Semaphore::new(self.most)));
        Arc::clone(of_target)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn each_target_has_its_own_bound() {
        let bound = PerTarget::at_most(1);
        let [a, b] = ["a", "b:1"].map(Authority::from_static);
        let permit = bound.permit(&a).await.unwrap();
        assert!(bound.is_full(&a) && !bound.is_full(&b));
        let waiting = bound.clone();
        let target = a.clone();
        let waiting = task::spawn(async move { waiting.permit(&target).await.map(drop) });
        task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(bound.permit(&b).await.unwrap());
        drop(permit);
        waiting.await.unwrap().unwrap();
        assert!(!bound.is_full(&a));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_no_request_needs_does_not_wait() {
        let bound = PerTarget::at_most(1);
        let target = Authority::from_static("a");
        let _permit = bound.permit(&target).await.unwrap();
        let mut waiting = Box::pin(async move { bound.permit(&target).await.map(drop) });
        tokio::select! {
            biased;
            _ = &mut waiting => panic!("there is no permit"),
            () = std::future::ready(()) => {}
        }
        let elsewhere = timeout(Duration::from_secs(60), task::spawn(waiting)).await;
        assert!(elsewhere.expect("it does not wait").unwrap().is_err());
    }
}
