//! A simulated fleet's stores, and their faults.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use tollgate_core::{
    BoxFuture, Charge, Cost, Fallback, Key, Micros, NeverPending, OwnedCharge, PenaltyBlock,
    Policy, PolicyError, Receipt, Reply, Settlement, Store, StoreError, StoreExt, Timestamp,
};
use tollgate_engine::Queue;
use tollgate_memory::{Clock, MemoryStore};

use super::Bounds;

/// The processes that decide requests, and the store behind them. The default is a single process
/// with a store in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fleet {
    /// The number of processes.
    pub replicas: NonZeroU32,
    /// Whether they share a store. Otherwise each has its own store in memory.
    pub is_shared: bool,
    /// The quota share that each process grants while it cannot reach the shared store:
    /// numerator and denominator. `None` divides it by the number of processes.
    pub local_share: Option<(u32, u32)>,
    /// Whether the shared store may [fail over](Fault::Failover), for which its calls are recorded.
    pub fails_over: bool,
}

impl Default for Fleet {
    fn default() -> Self {
        let replicas = NonZeroU32::MIN;
        Self { replicas, is_shared: false, local_share: None, fails_over: false }
    }
}

/// What happens to the shared store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// No process reaches the store.
    StoreLost,
    /// All processes reach the store again.
    StoreBack,
    /// The store is replaced by a copy that lacks the calls of the last moments.
    Failover {
        /// The span in which no call was copied.
        lag: Micros,
    },
    /// The store's clock steps forward.
    ClockForward(Micros),
    /// The store's clock steps back.
    ClockBack(Micros),
}

/// A clock that the replay sets. Clones share the time.
#[derive(Clone, Debug, Default)]
pub(super) struct SetClock(Arc<AtomicU64>);

impl Clock for SetClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::Relaxed))
    }
}

impl SetClock {
    fn set(&self, now: Timestamp) {
        self.0.store(now.as_micros(), Ordering::Relaxed);
    }
}

/// A process with its store and its wait queue.
pub(super) struct Replica {
    pub(super) store: Fallback<Reachable, MemoryStore<SetClock>>,
    pub(super) queue: Queue,
}

/// All processes.
pub(super) struct Replicas {
    list: Box<[Replica]>,
    /// The processes' clock.
    clock: SetClock,
    /// How far the shared store's clock is ahead, in microseconds.
    skew: i64,
    shared: Option<Reachable>,
}

impl Replicas {
    /// # Errors
    /// The local share's denominator is zero.
    pub(super) fn new(fleet: &Fleet, bounds: &Bounds) -> Result<Self, PolicyError> {
        let clock = SetClock::default();
        let reachable = |clock| Reachable::new(clock, fleet, bounds);
        let shared = fleet.is_shared.then(|| reachable(SetClock::default()));
        let replica = |_| {
            let store = shared.clone().unwrap_or_else(|| reachable(clock.clone()));
            let store = store.or_local(memory(clock.clone(), bounds));
            let queue = Queue::new();
            queue.set_max_requests(bounds.waiting);
            queue.set_max_bytes(usize::MAX);
            let store = match fleet.local_share {
                Some((numerator, denominator)) => store.with_share(numerator, denominator)?,
                None => store,
            };
            Ok(Replica { store, queue })
        };
        let list = (0..fleet.replicas.get()).map(replica).collect::<Result<_, _>>()?;
        Ok(Self { list, clock, skew: 0, shared })
    }

    /// Returns a process by its number. Numbers beyond the last start again.
    pub(super) fn get(&self, number: usize) -> &Replica {
        &self.list[number % self.list.len()]
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(super) fn set_time(&self, now: Timestamp) {
        self.clock.set(now);
        if let Some(shared) = &self.shared {
            let micros = now.as_micros().saturating_add_signed(self.skew);
            shared.0.clock.set(Timestamp::from_micros(micros));
        }
    }

    /// Returns how many charges had no room in a store.
    pub(super) fn overflowed(&self) -> u64 {
        let own = || self.list.iter().map(|replica| replica.store.get_ref());
        let stores = self.shared.iter().chain(own().filter(|_| self.shared.is_none()));
        stores.map(|store| store.0.store.read().stats().overflowed).sum()
    }

    pub(super) fn happens(&mut self, fault: Fault) {
        let Some(shared) = &self.shared else { return };
        let signed = |step: Micros| i64::try_from(step.get()).unwrap_or(i64::MAX);
        match fault {
            Fault::StoreLost => shared.0.is_lost.store(true, Ordering::Relaxed),
            Fault::StoreBack => shared.0.is_lost.store(false, Ordering::Relaxed),
            Fault::Failover { lag } => shared.fail_over(lag),
            Fault::ClockForward(step) => self.skew = self.skew.saturating_add(signed(step)),
            Fault::ClockBack(step) => self.skew = self.skew.saturating_sub(signed(step)),
        }
        self.set_time(self.now());
    }
}

fn memory(clock: SetClock, bounds: &Bounds) -> MemoryStore<SetClock> {
    MemoryStore::builder()
        .clock(clock)
        // The replay is single-threaded, so more shards would not help.
        .shards(1)
        .max_keys(usize::MAX)
        .max_bytes(bounds.store_bytes)
        .build()
}

/// A store in memory that a simulation can make unreachable. Clones are the same store.
#[derive(Clone, Debug)]
pub(super) struct Reachable(Arc<State>);

#[derive(Debug)]
struct State {
    store: RwLock<MemoryStore<SetClock>>,
    clock: SetClock,
    is_lost: AtomicBool,
    replicas: NonZeroU32,
    bounds: Bounds,
    /// `None` if the store never fails over.
    calls: Option<Mutex<Vec<(Timestamp, Call)>>>,
}

/// A call that a copy of the store repeats.
#[derive(Debug)]
enum Call {
    Decide(Box<[OwnedCharge]>),
    Settle(Box<Receipt>, Cost),
    Reset(Policy, Key),
}

impl Reachable {
    fn new(clock: SetClock, fleet: &Fleet, bounds: &Bounds) -> Self {
        Self(Arc::new(State {
            store: RwLock::new(memory(clock.clone(), bounds)),
            clock,
            is_lost: AtomicBool::new(false),
            replicas: fleet.replicas,
            bounds: *bounds,
            calls: fleet.fails_over.then(Mutex::default),
        }))
    }

    /// Replaces the store by a copy that has repeated all calls before the last span of this length.
    fn fail_over(&self, lag: Micros) {
        let (state, now) = (&self.0, self.0.clock.now());
        let copy = memory(state.clock.clone(), &state.bounds);
        if let Some(calls) = &state.calls {
            let mut calls = calls.lock();
            calls.retain(|(at, _)| *at + lag <= now);
            for (at, call) in &*calls {
                state.clock.set(*at);
                // The first store has already returned these errors.
                match call {
                    Call::Decide(charges) => {
                        let charges: Vec<_> = charges.iter().map(OwnedCharge::as_charge).collect();
                        let _ = copy.decide(&charges).now();
                    }
                    Call::Settle(receipt, actual) => drop(copy.settle(receipt, *actual).now()),
                    Call::Reset(policy, key) => drop(copy.reset(policy, key).now()),
                }
            }
            state.clock.set(now);
        }
        *state.store.write() = copy;
    }

    /// # Errors
    /// The store is lost.
    fn reach(
        &self,
        call: impl FnOnce() -> Call,
    ) -> Result<RwLockReadGuard<'_, MemoryStore<SetClock>>, StoreError> {
        if self.0.is_lost.load(Ordering::Relaxed) {
            return Err(StoreError::not_charged("simulated store", "the store is lost"));
        }
        if let Some(calls) = &self.0.calls {
            calls.lock().push((self.0.clock.now(), call()));
        }
        Ok(self.0.store.read())
    }
}

impl Store for Reachable {
    type Future = NeverPending;

    fn decide(&self, charges: &[Charge<'_>]) -> Reply<NeverPending> {
        match self.reach(|| Call::Decide(charges.iter().map(OwnedCharge::from).collect())) {
            Ok(store) => store.decide(charges),
            Err(error) => Reply::ready(Err(error)),
        }
    }

    fn settle(&self, receipt: &Receipt, actual: Cost) -> Reply<BoxFuture<Settlement>> {
        match self.reach(|| Call::Settle(Box::new(receipt.clone()), actual)) {
            Ok(store) => store.settle(receipt, actual),
            Err(error) => Reply::ready(Err(error)),
        }
    }

    fn renew(&self, receipt: &Receipt) -> Reply<BoxFuture<Option<Receipt>>> {
        self.0.store.read().renew(receipt)
    }

    fn reset(&self, policy: &Policy, key: &Key) -> Reply<BoxFuture<()>> {
        match self.reach(|| Call::Reset(policy.clone(), key.clone())) {
            Ok(store) => store.reset(policy, key),
            Err(error) => Reply::ready(Err(error)),
        }
    }

    fn block(
        &self,
        policy: &Policy,
        key: &Key,
        block: PenaltyBlock,
    ) -> Reply<BoxFuture<Option<Micros>>> {
        self.0.store.read().block(policy, key, block)
    }

    fn replicas(&self) -> Option<NonZeroU32> {
        Some(self.0.replicas)
    }
}
