//! A type-erased store.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::num::NonZeroU32;
use core::pin::Pin;

use crate::{Charge, Cost, Key, Policy, Receipt, Reply, Settlement, Store, StoreError, Verdict};

/// A store with its type chosen at run time, for example memory for a single process or Redis for
/// several processes. A reply that is not ready costs one allocation for its future.
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

type Boxed<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

trait Erased: Send + Sync {
    fn decide(&self, charges: &[Charge<'_>]) -> Reply<Boxed<Verdict>>;
    fn settle(&self, receipt: &Receipt, actual: Cost) -> Reply<Boxed<Settlement>>;
    fn renew(&self, receipt: &Receipt) -> Reply<Boxed<Option<Receipt>>>;
    fn reset(&self, policy: &Policy, key: &Key) -> Reply<Boxed<()>>;
    fn name(&self) -> &'static str;
    fn has_local_fallback(&self) -> bool;
    fn replicas(&self) -> Option<NonZeroU32>;
}

impl AnyStore {
    /// Erases a store's type.
    pub fn new(store: impl Store) -> Self {
        Self(Arc::new(store))
    }
}

fn boxed<T, F>(reply: Reply<F>) -> Reply<Boxed<T>>
where
    F: Future<Output = Result<T, StoreError>> + Send + 'static,
{
    reply.map_pending(|future| Box::pin(future) as Boxed<T>)
}

impl<S: Store> Erased for S {
    fn decide(&self, charges: &[Charge<'_>]) -> Reply<Boxed<Verdict>> {
        boxed(Store::decide(self, charges))
    }

    fn settle(&self, receipt: &Receipt, actual: Cost) -> Reply<Boxed<Settlement>> {
        boxed(Store::settle(self, receipt, actual))
    }

    fn renew(&self, receipt: &Receipt) -> Reply<Boxed<Option<Receipt>>> {
        boxed(Store::renew(self, receipt))
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Reply<Boxed<()>> {
        boxed(Store::reset(self, policy, key))
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
}

impl Store for AnyStore {
    type Future<T: Send + 'static> = Boxed<T>;

    fn decide(&self, charges: &[Charge<'_>]) -> Reply<Boxed<Verdict>> {
        self.0.decide(charges)
    }

    fn settle(&self, receipt: &Receipt, actual: Cost) -> Reply<Boxed<Settlement>> {
        self.0.settle(receipt, actual)
    }

    fn renew(&self, receipt: &Receipt) -> Reply<Boxed<Option<Receipt>>> {
        self.0.renew(receipt)
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Reply<Boxed<()>> {
        self.0.reset(policy, key)
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
}

impl fmt::Debug for AnyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AnyStore({})", Store::name(self))
    }
}
