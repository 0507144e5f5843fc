//! Concurrency limits: how long a request holds its permit.

mod beside;
mod over;
mod renewals;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::sync::Notify;
use tollgate::body::AnyBody;
use tollgate::layer::RateLimit;
use tollgate::{Limit, Policy, Store};
use tower::{Layer, Service, service_fn};

use crate::support::*;

const LEASE: Duration = Duration::from_secs(30);

fn at_once(limit: u64) -> Policy {
    Policy::concurrent_requests("at-once", limit, LEASE).unwrap()
}

/// The service behind these limits. Permits are held until the body ends.
fn limited<St: Store>(
    store: &St,
    limits: impl IntoIterator<Item = Limit>,
) -> RateLimit<Hello, St, AnyBody> {
    layer(store, limits).any_body().layer(hello())
}

/// A service that responds when `go` is notified, and counts its concurrent requests.
#[derive(Clone, Default)]
struct Slow {
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    go: Arc<Notify>,
}

impl Slow {
    fn service(
        &self,
    ) -> impl Service<
        Request<()>,
        Response = Response<Full<Bytes>>,
        Error = Infallible,
        Future: Send + 'static,
    > + Clone
    + Send
    + 'static {
        let slow = self.clone();
        service_fn(move |_| {
            let slow = slow.clone();
            async move {
                let now = slow.now.fetch_add(1, Ordering::SeqCst) + 1;
                slow.most.fetch_max(now, Ordering::SeqCst);
                slow.go.notified().await;
                slow.now.fetch_sub(1, Ordering::SeqCst);
                Ok(Response::new(Full::from("done")))
            }
        })
    }
}
