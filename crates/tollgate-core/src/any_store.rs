//! A type-erased store.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::num::NonZeroU32;

#[cfg(feature = "std")]
use crate::Overrides;
use crate::{
    BoxFuture, Charge, Cost, Key, Micros, PenaltyBlock, Policy, Receipt, Reply, Settlement, Store,
    Verdict,
};

/// A store with its type chosen at run time, for example memory for a single process or Redis for
/// several processes. A decision that is not ready costs one allocation for its future.
///
/// Clones share all state, like clones of the inner store.
///
/// ```
/// use tollgate_core::{AnyStore, Store};
///
/// fn choose(shared: Option<impl Store>, local: impl Store) -> AnyStore {
///     match shared {
///         Some(store) => AnyStore::new(store),
///         None => AnyStore::new(local),
///     }
/// }
/// ```
#[derive(Clone)]
pub struct AnyStore(Arc<dyn Erased>);

trait Erased: Send + Sync {
    fn decide(&self, charges: &[Charge<'_>]) -> Reply<BoxFuture<Verdict>>;
    fn settle(&self, receipt: &Receipt, actual: Cost) -> Reply<BoxFuture<Settlement>>;
    fn renew(&self, receipt: &Receipt) -> Reply<BoxFuture<Option<Receipt>>>;
    fn reset(&self, policy: &Policy, key: &Key) -> Reply<BoxFuture<()>>;
    fn block(
        &self,
        policy: &Policy,
        key: &Key,
        block: PenaltyBlock,
    ) -> Reply<BoxFuture<Option<Micros>>>;
    fn name(&self) -> &'static str;
    fn has_local_fallback(&self) -> bool;
    fn replicas(&self) -> Option<NonZeroU32>;
    #[cfg(feature = "std")]
    fn overrides(&self) -> Option<Overrides>;
}

impl AnyStore {
    /// Erases a store's type.
    pub fn new(store: impl Store) -> Self {
        Self(Arc::new(store))
    }
}

impl<S: Store> Erased for S {
    fn decide(&self, charges: &[Charge<'_>]) -> Reply<BoxFuture<Verdict>> {
        Store::decide(self, charges).map_pending(|future| Box::pin(future) as BoxFuture<Verdict>)
    }

    fn settle(&self, receipt: &Receipt, actual: Cost) -> Reply<BoxFuture<Settlement>> {
        Store::settle(self, receipt, actual)
    }

    fn renew(&self, receipt: &Receipt) -> Reply<BoxFuture<Option<Receipt>>> {
        Store::renew(self, receipt)
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Reply<BoxFuture<()>> {
        Store::reset(self, policy, key)
    }

    fn block(
        &self,
        policy: &Policy,
        key: &Key,
        block: PenaltyBlock,
    ) -> Reply<BoxFuture<Option<Micros>>> {
        Store::block(self, policy, key, block)
    }

    fn name(&self) -> &'static str {
        Store::name(self)
    }

    fn has_local_fallback(&self) -> bool {
        Store::has_local_fallback(self)
    }

    fn replicas(&self) -> Option<NonZeroU32> {
        Store::replicas(self)
    }

    #[cfg(feature = "std")]
    fn overrides(&self) -> Option<Overrides> {
        Store::overrides(self)
    }
}

impl Store for AnyStore {
    type Future = BoxFuture<Verdict>;

    fn decide(&self, charges: &[Charge<'_>]) -> Reply<BoxFuture<Verdict>> {
        self.0.decide(charges)
    }

    fn settle(&self, receipt: &Receipt, actual: Cost) -> Reply<BoxFuture<Settlement>> {
        self.0.settle(receipt, actual)
    }

    fn renew(&self, receipt: &Receipt) -> Reply<BoxFuture<Option<Receipt>>> {
        self.0.renew(receipt)
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Reply<BoxFuture<()>> {
        self.0.reset(policy, key)
    }

    fn block(
        &self,
        policy: &Policy,
        key: &Key,
        block: PenaltyBlock,
    ) -> Reply<BoxFuture<Option<Micros>>> {
        self.0.block(policy, key, block)
    }

    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn has_local_fallback(&self) -> bool {
        self.0.has_local_fallback()
    }

    fn replicas(&self) -> Option<NonZeroU32> {
        self.0.replicas()
    }

    #[cfg(feature = "std")]
    fn overrides(&self) -> Option<Overrides> {
        self.0.overrides()
    }
}

impl fmt::Debug for AnyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AnyStore({})", Store::name(self))
    }
}
