//! Stores around stores keep the contract of all stores.

use tollgate::store::Fallback;
use tollgate::{AnyStore, ManualClock, MemoryStore, Micros, Store, StoreExt};
use tollgate_store_tests::checks::wrappers::a_wrapper_passes_on_what_the_store_inside_is;
use tollgate_store_tests::{Harness, store_tests};

use crate::stage::Staged;
use crate::support::memory;

type Memory = MemoryStore<ManualClock>;

/// A wrapper around a store in memory, and the clock of that.
struct Wrapped<S>(ManualClock, std::marker::PhantomData<fn() -> S>);

/// How to wrap a store in memory.
trait Wrap: Store {
    fn wrap(store: Memory) -> Self;
}

impl<S: Wrap> Harness for Wrapped<S> {
    type Store = S;

    async fn start() -> (Self, S) {
        let (clock, store) = memory();
        (Self(clock, std::marker::PhantomData), S::wrap(store))
    }

    fn advance(&self, span: Micros) -> bool {
        self.0.advance(span);
        true
    }
}

impl Wrap for Fallback<Memory, Memory> {
    fn wrap(store: Memory) -> Self {
        // The second store is never asked, as the first never fails.
        store.or_local(memory().1)
    }
}

impl Wrap for AnyStore {
    fn wrap(store: Memory) -> Self {
        Self::new(store)
    }
}

impl Wrap for Staged<Memory> {
    fn wrap(store: Memory) -> Self {
        Self::new(store)
    }
}

#[test]
fn no_wrapper_forgets_what_the_store_inside_is() {
    a_wrapper_passes_on_what_the_store_inside_is(|store| store.or_local(memory().1));
    a_wrapper_passes_on_what_the_store_inside_is(AnyStore::new);
    a_wrapper_passes_on_what_the_store_inside_is(|store| {
        store.or_local(memory().1).without_local()
    });
}

mod of_the_fallback {
    use super::*;
    store_tests!(Wrapped<Fallback<Memory, Memory>>);
}

mod of_any_store {
    use super::*;
    store_tests!(Wrapped<AnyStore>);
}

mod of_the_stage {
    use super::*;
    store_tests!(Wrapped<Staged<Memory>>);
}
