//! Wrapper stores pass the conformance suite.

use tollgate::StoreExt;
use tollgate::store::{AnyStore, ManualClock, Micros};
use tollgate_store_tests::checks::wrappers::wrapper_returns_inner_store_properties;
use tollgate_store_tests::{Harness, store_tests};

use crate::stage::Staged;
use crate::support::memory;

/// A memory store inside all wrappers. A check fails if any wrapper breaks it, so running the suite
/// once is enough.
struct Wrapped(ManualClock);

impl Harness for Wrapped {
    type Store = Staged<AnyStore>;

    async fn start() -> (Self, Self::Store) {
        let (clock, store) = memory();
        // The first store never fails, so the second store is never called.
        let store = AnyStore::new(store.or_local(memory().1));
        (Self(clock), Staged::new(store))
    }

    fn advance(&self, span: Micros) -> bool {
        self.0.advance(span);
        true
    }
}

#[test]
fn wrappers_forward_store_properties() {
    wrapper_returns_inner_store_properties(|store| store.or_local(memory().1));
    wrapper_returns_inner_store_properties(AnyStore::new);
}

mod of_all_wrappers {
    use super::*;
    store_tests!(Wrapped);
}
