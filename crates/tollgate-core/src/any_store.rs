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

impl AnyStore {
    /// Erases a store's type.
    pub fn new(store: impl Store) -> Self {
        Self(Arc::new(store))
    }
}

/// Forwards these methods of [`Store`], each to the method with its name, and `decide`, whose future
/// is boxed.
macro_rules! erased {
    ($($(#[$meta:meta])* fn $name:ident(&self $(, $argument:ident: $type:ty)*) -> $output:ty;)+) => {
        trait Erased: Send + Sync {
            fn decide(&self, charges: &[Charge<'_>]) -> Reply<BoxFuture<Verdict>>;
            $($(#[$meta])* fn $name(&self $(, $argument: $type)*) -> $output;)+
        }

        impl<S: Store> Erased for S {
            fn decide(&self, charges: &[Charge<'_>]) -> Reply<BoxFuture<Verdict>> {
                Store::decide(self, charges).map_pending(|future| Box::pin(future) as _)
            }

            $($(#[$meta])* fn $name(&self $(, $argument: $type)*) -> $output {
                Store::$name(self $(, $argument)*)
            })+
        }

        impl Store for AnyStore {
            type Future = BoxFuture<Verdict>;

            fn decide(&self, charges: &[Charge<'_>]) -> Reply<BoxFuture<Verdict>> {
                self.0.decide(charges)
            }

            $($(#[$meta])* fn $name(&self $(, $argument: $type)*) -> $output {
                self.0.$name($($argument),*)
            })+
        }
    };
}

erased! {
    fn settle(&self, receipt: &Receipt, actual: Cost) -> Reply<BoxFuture<Settlement>>;
    fn renew(&self, receipt: &Receipt) -> Reply<BoxFuture<Option<Receipt>>>;
    fn reset(&self, policy: &Policy, key: &Key) -> Reply<BoxFuture<()>>;
    fn block(&self, policy: &Policy, key: &Key, block: PenaltyBlock) -> Reply<BoxFuture<Option<Micros>>>;
    fn name(&self) -> &'static str;
    fn has_local_fallback(&self) -> bool;
    fn replicas(&self) -> Option<NonZeroU32>;
    #[cfg(feature = "std")]
    fn overrides(&self) -> Option<Overrides>;
}

impl fmt::Debug for AnyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AnyStore({})", Store::name(self))
    }
}
