//! Requests that passed, but have not run yet.

use std::mem;
use std::sync::Arc;

use tollgate_core::Store;
use tollgate_engine::Refunds;

use super::driver::{Decided, Driver};

/// A request that passed. If it is dropped before it runs, its units are refunded; its permits are
/// returned anyway.
pub(crate) struct Admitted<St: Store, X> {
    driver: Arc<Driver<St, X>>,
    decided: Decided,
}

impl<St: Store, X> Admitted<St, X> {
    pub(crate) fn new(driver: &Arc<Driver<St, X>>, decided: Decided) -> Self {
        Self { driver: Arc::clone(driver), decided }
    }

    /// The request runs now.
    pub(crate) fn run(mut self) -> Decided {
        mem::take(&mut self.decided)
    }
}

impl<St: Store, X> Drop for Admitted<St, X> {
    fn drop(&mut self) {
        self.driver.refund(Refunds::Units, &self.decided.charges);
    }
}
