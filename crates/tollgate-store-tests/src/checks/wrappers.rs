//! Stores that wrap another store.

use std::num::NonZeroU32;

use tollgate_core::{
    BoxFuture, Charge, Cost, Key, Micros, NeverPending, Overrides, PenaltyBlock, Policy, Receipt,
    Reply, Settlement, Store, StoreError, Timestamp,
};

/// The inner store in [`wrapper_returns_inner_store_properties`].
#[derive(Clone, Debug)]
pub struct Inside {
    has_local_fallback: bool,
}

/// Checks that a wrapper returns its inner store's name, number of replicas and overrides, and has a
/// local fallback if the inner store has one. `wrap` creates the wrapper.
///
/// These [`Store`] methods have a default, so a wrapper that forgets them still compiles.
pub fn wrapper_returns_inner_store_properties<W: Store>(wrap: impl Fn(Inside) -> W) {
    for has_local_fallback in [false, true] {
        let inside = Inside { has_local_fallback };
        let (name, wrapper) = (inside.name(), wrap(inside));
        assert_eq!(wrapper.name(), name, "`Store::name` of the wrapper");
        assert_eq!(wrapper.replicas(), REPLICAS, "`Store::replicas` of the wrapper");
        let overrides = wrapper.overrides().map(|overrides| overrides.now());
        assert_eq!(overrides, Some(OVERRIDES_NOW), "`Store::overrides` of the wrapper");
        assert!(
            wrapper.has_local_fallback() || !has_local_fallback,
            "`Store::has_local_fallback` of the wrapper must be the inner store's"
        );
    }
}

const REPLICAS: Option<NonZeroU32> = NonZeroU32::new(7);
/// Identifies the overrides.
const OVERRIDES_NOW: Timestamp = Timestamp::from_micros(7);

impl Inside {
    fn answer<T, F: Future<Output = Result<T, StoreError>>>() -> Reply<F> {
        Reply::ready(Err(StoreError::not_charged("inside", "it decides nothing")))
    }
}

impl Store for Inside {
    type Future = NeverPending;

    fn decide(&self, _: &[Charge<'_>]) -> Reply<Self::Future> {
        Self::answer()
    }

    fn settle(&self, _: &Receipt, _: Cost) -> Reply<BoxFuture<Settlement>> {
        Self::answer()
    }

    fn renew(&self, _: &Receipt) -> Reply<BoxFuture<Option<Receipt>>> {
        Self::answer()
    }

    fn reset(&self, _: &Policy, _: &Key) -> Reply<BoxFuture<()>> {
        Self::answer()
    }

    fn block(&self, _: &Policy, _: &Key, _: PenaltyBlock) -> Reply<BoxFuture<Option<Micros>>> {
        Self::answer()
    }

    fn name(&self) -> &'static str {
        "inside"
    }

    fn has_local_fallback(&self) -> bool {
        self.has_local_fallback
    }

    fn replicas(&self) -> Option<NonZeroU32> {
        REPLICAS
    }

    fn overrides(&self) -> Option<Overrides> {
        Some(Overrides::in_process(|| OVERRIDES_NOW))
    }
}
