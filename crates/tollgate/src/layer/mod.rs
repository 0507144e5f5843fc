//! The layer: from a request to a decision to a response.
//!
//! | file | holds |
//! |---|---|
//! | `builder.rs` | what a layer is made of, checked once |
//! | `tiers.rs` | which quota of its limits a request is held against |
//! | `options.rs` | what holds for all limits of a layer |
//! | `rules.rs` | what all services of a layer share: its limits, and what follows from them |
//! | `outage.rs` | lines of the log while the store cannot decide |
//! | `question.rs` | a request and the store: keys, costs, charges, the question |
//! | `ruling.rs` | what the answer means for the request and its response |
//! | `service.rs` | the middleware |
//! | `future.rs` | what becomes of a request that cannot be answered at once |
//! | `wait_queue.rs` | which requests enter the wait queue |
//! | `room.rs` | the wait queue: its bounds, and how requests enter and leave it |
//! | `lanes.rs` | which requests wait for which keys, by their arrival |
//! | `excess.rs` | requests beyond a limit that wait for it |
//! | `handle.rs` | a layer without its types, for those who look at it |
//! | `queued.rs` | a place in a queue, given back if its client leaves |
//! | `reservation.rs` | charges that are open until the response is known |
//! | `in_flight.rs` | what requests hold until they are over |
//! | `tally.rs` | a cost that adds up while a response is made |
//! | `verdicts.rs` | what handlers and outer layers can read |
//! | `witness.rs` | what those who run it can see |

mod builder;
mod excess;
mod explain;
mod future;
#[cfg(feature = "metrics")]
mod handle;
mod in_flight;
mod lanes;
mod options;
mod outage;
mod question;
mod queued;
mod reservation;
mod room;
mod rules;
mod ruling;
mod service;
mod tally;
#[cfg(test)]
mod tests;
mod tiers;
mod verdicts;
mod wait_queue;
mod witness;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use tollgate_core::Store;
use tower_layer::Layer;

pub use self::builder::{LayerError, RateLimitLayerBuilder};
pub use self::future::ResponseFuture;
#[cfg(feature = "metrics")]
pub use self::handle::LayerHandle;
pub use self::reservation::Reservation;
pub use self::room::WaitingRoom;
use self::rules::Rules;
pub use self::service::RateLimit;
pub use self::tally::{TalliedBody, Tally};
pub use self::verdicts::Verdicts;
use crate::Limit;
use crate::body::{AnyBody, SameBody};

/// Limits the requests to the services it is wrapped around.
///
/// **All clones of a layer, and all services made from them, share one limit:** the
/// state is in the store. Two layers over one store share the state of policies of
/// the same name; a request that goes through both is charged twice.
///
/// # When a request passes
///
/// * Whoever is on one of its [`Lists`](crate::Lists) is refused, or passes.
/// * A CORS preflight ([unless](RateLimitLayerBuilder::exempt_preflights) you limit them) and
///   whatever [`exempt`](RateLimitLayerBuilder::exempt) names pass without asking the store.
/// * Every [`Limit`] that applies names a key and a cost. The store decides them all in
///   one step: if one denies, none is charged.
/// * A request that is denied gets a response from [`denial`](crate::denial) and never
///   reaches the service. Errors of the service pass through untouched.
/// * A leaky bucket in queue mode holds the request back. It is dropped from memory if
///   its client leaves, and its place goes to the next if nobody stands behind it.
///   Waiting takes a tokio runtime with its timer enabled.
/// * What a limit denies waits for it instead, if that says [`Excess::Wait`](crate::Excess).
/// * What counts in flight ([`Policy::concurrent_requests`](crate::Policy)) counts until the
///   response has ended, is dropped, or fails. Leases of what takes long are renewed by a
///   task of the tokio runtime. One that upgrades its connection (a WebSocket) is over with
///   the answer that says so, however long the connection lasts.
/// * If the store cannot decide, each policy does what its
///   [`OnStoreError`](crate::OnStoreError) says.
///
/// # Deployment
///
/// * CORS goes *outside* (added after this layer in axum), so that a denial carries
///   CORS headers, and it must expose the rate headers for scripts to read them.
/// * Authentication that sets an extension for [`key::Extension`](crate::key::Extension)
///   goes outside too; a limit by address goes outside of that.
/// * Nested layers decide one after the other: what the outer one charged stays charged
///   if the inner one denies. Policies that must be all or none belong into one layer.
///
/// ```
/// use axum::Router;
/// use axum::routing::get;
/// use tollgate::{MemoryStore, Policy, Quota, RateLimitLayer};
///
/// let policy = Policy::sliding_window_log("global", Quota::per_minute(100))?;
/// let limit = RateLimitLayer::global(MemoryStore::new(), policy)?;
/// let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(limit);
/// # let _ = app;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RateLimitLayer<St, M = AnyBody> {
    rules: Arc<Rules<St>>,
    mode: PhantomData<M>,
}

impl<St: Store> RateLimitLayer<St> {
    /// One quota that all clients share.
    ///
    /// # Errors
    /// As [`RateLimitLayerBuilder::build`].
    pub fn global(store: St, policy: tollgate_core::Policy) -> Result<Self, LayerError> {
        Self::builder(store).limit(Limit::global(policy)).build()
    }

    /// A layer of several limits and options, over `store`.
    pub fn builder(store: St) -> RateLimitLayerBuilder<St> {
        RateLimitLayerBuilder::new(store)
    }

    fn of(rules: Rules<St>) -> Self {
        Self { rules: Arc::new(rules), mode: PhantomData }
    }

    /// The same layer for services whose body can be made of bytes, axum's above all:
    /// responses then keep the type of their body, which saves axum an allocation.
    #[must_use]
    pub fn same_body(self) -> RateLimitLayer<St, SameBody> {
        self.body_mode()
    }

    /// The same layer with responses whose body is what `M` makes of it: for a body of one's
    /// own that can tell its end, until which a request counts in flight.
    #[must_use]
    pub fn body_mode<M>(self) -> RateLimitLayer<St, M> {
        RateLimitLayer { rules: self.rules, mode: PhantomData }
    }
}

impl<St: Store, M> RateLimitLayer<St, M> {
    /// The store, to read, reset or settle.
    pub fn store(&self) -> &St {
        self.rules.store()
    }

    /// The limits, in their order.
    pub fn limits(&self) -> impl Iterator<Item = &Limit> {
        self.rules.limits()
    }
}

impl<S, St: Store, M> Layer<S> for RateLimitLayer<St, M> {
    type Service = RateLimit<S, St, M>;

    fn layer(&self, inner: S) -> RateLimit<S, St, M> {
        RateLimit::new(inner, Arc::clone(&self.rules))
    }
}

/// Written by hand, because a derived one would ask for `St: Clone` to clone a pointer.
impl<St, M> Clone for RateLimitLayer<St, M> {
    fn clone(&self) -> Self {
        Self { rules: Arc::clone(&self.rules), mode: PhantomData }
    }
}

impl<St: Store, M> fmt::Debug for RateLimitLayer<St, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer")
            .field("limits", &self.limits().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
