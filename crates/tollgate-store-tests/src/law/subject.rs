//! The store under test, with the time as an argument.

use std::fmt;

use tollgate_core::{
    Charge, Cost, Key, Policy, Receipt, Reply, Settlement, Store, StoreError, Timestamp, Verdict,
};

use crate::is_long;
use crate::reference::Reference;

/// A store with the time as an argument.
///
/// A method returns `None` if the store could not decide and has changed no state.
pub trait Subject {
    /// Decides like [`Store::decide`].
    fn decide(&mut self, charges: &[Charge<'_>], now: Timestamp) -> Option<Verdict>;

    /// Settles like [`Store::settle`].
    fn settle(&mut self, receipt: &Receipt, actual: Cost, now: Timestamp) -> Option<Settlement>;

    /// Renews like [`Store::renew`].
    fn renew(&mut self, receipt: &Receipt, now: Timestamp) -> Option<Option<Receipt>>;

    /// Resets like [`Store::reset`].
    fn reset(&mut self, policy: &Policy, key: &Key, now: Timestamp) -> Option<()>;

    /// Starts or stops an outage of the primary store. By default there are no outages: only a
    /// fallback can decide during an outage.
    fn fail(&mut self, is_down: bool) {
        let _ = is_down;
    }

    /// Adds the store's settings to a random policy, such as a lease.
    fn adapt(policy: Policy) -> Policy {
        policy
    }

    /// Returns how many units a store with leases may grant beyond a policy's quota.
    fn excess(&self, policy: &Policy) -> u64 {
        let _ = policy;
        0
    }

    /// Whether the laws' clock steps back. Disable this for a store in which other keys can advance
    /// a key's time, because the laws expect that only the key's own charges do.
    fn steps_back() -> bool {
        true
    }

    /// Returns how many random steps check each law: a million in long tests.
    fn steps() -> usize {
        if is_long() { 1_000_000 } else { 12_000 }
    }
}

impl Subject for Reference {
    fn decide(&mut self, charges: &[Charge<'_>], now: Timestamp) -> Option<Verdict> {
        Some(Self::decide(self, charges, now))
    }

    fn settle(&mut self, receipt: &Receipt, actual: Cost, now: Timestamp) -> Option<Settlement> {
        Some(Self::settle(self, receipt, actual, now))
    }

    fn renew(&mut self, receipt: &Receipt, now: Timestamp) -> Option<Option<Receipt>> {
        Some(Self::renew(self, receipt, now))
    }

    fn reset(&mut self, policy: &Policy, key: &Key, now: Timestamp) -> Option<()> {
        Self::reset(self, policy, key, now);
        Some(())
    }
}

/// A store in this process, and a function that sets its clock.
pub struct Timed<S, C> {
    store: S,
    set_clock: C,
}

impl<S: Store, C: FnMut(Timestamp)> Timed<S, C> {
    /// Creates a subject for a store that replies immediately.
    pub const fn new(store: S, set_clock: C) -> Self {
        Self { store, set_clock }
    }
}

/// Returns the reply, or `None` if the store failed.
fn now<T: Send + 'static, F>(reply: Reply<F>) -> Option<T>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let Ok(reply) = reply.now() else { panic!("a store under a law replies immediately") };
    reply.ok()
}

impl<S: Store, C: FnMut(Timestamp)> Subject for Timed<S, C> {
    fn decide(&mut self, charges: &[Charge<'_>], at: Timestamp) -> Option<Verdict> {
        (self.set_clock)(at);
        now(self.store.decide(charges))
    }

    fn settle(&mut self, receipt: &Receipt, actual: Cost, at: Timestamp) -> Option<Settlement> {
        (self.set_clock)(at);
        now(self.store.settle(receipt, actual))
    }

    fn renew(&mut self, receipt: &Receipt, at: Timestamp) -> Option<Option<Receipt>> {
        (self.set_clock)(at);
        now(self.store.renew(receipt))
    }

    fn reset(&mut self, policy: &Policy, key: &Key, at: Timestamp) -> Option<()> {
        (self.set_clock)(at);
        now(self.store.reset(policy, key))
    }
}

impl<S: fmt::Debug, C> fmt::Debug for Timed<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Timed").field("store", &self.store).finish_non_exhaustive()
    }
}
