//! Locks for unit tests that explore thread interleavings.
//!
//! A crate uses these locks instead of `parking_lot`'s when its own tests are compiled. Inside
//! [`explore`], shuttle then decides at each lock which thread continues. Elsewhere they are
//! `parking_lot`'s, so all other tests run as usual, and no build needs a special configuration.

use std::cell::Cell;
use std::iter;

use parking_lot::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};
use shuttle::scheduler::RandomScheduler;
pub use shuttle::thread;
use shuttle::{Config, Runner};

/// How many interleavings [`explore`] tries.
const TRIES: usize = 1_000;

thread_local! {
    /// Shuttle runs all threads of a test on the thread that called [`explore`].
    static IS_EXPLORING: Cell<bool> = const { Cell::new(false) };
}

struct Exploring;

impl Drop for Exploring {
    fn drop(&mut self) {
        IS_EXPLORING.set(false);
    }
}

/// Runs a test repeatedly, each time with a different random interleaving of the threads that it
/// spawns with [`thread::spawn`].
///
/// # Panics
/// If the test panics, or if its threads deadlock.
pub fn explore(test: impl Fn() + Send + Sync + 'static) {
    IS_EXPLORING.set(true);
    let _exploring = Exploring;
    let mut config = Config::new();
    // Without optimizations, a decision with everything inlined takes more than the usual 32 KiB.
    config.stack_size = 256 << 10;
    Runner::new(RandomScheduler::new(TRIES), config).run(test);
}

/// Lets other threads run until `try_lock` succeeds. A deadlock exceeds shuttle's maximum number
/// of steps.
fn acquire<G>(try_lock: impl Fn() -> Option<G>, lock: impl FnOnce() -> G) -> G {
    if !IS_EXPLORING.get() {
        return lock();
    }
    let attempts = iter::repeat_with(|| {
        thread::yield_now();
        try_lock()
    });
    attempts.flatten().next().expect("repeats without end")
}

/// `parking_lot`'s mutex, with a possible thread switch before each lock.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(parking_lot::Mutex<T>);

impl<T> Mutex<T> {
    /// Creates a mutex.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Locks the mutex.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        acquire(|| self.0.try_lock(), || self.0.lock())
    }
}

/// `parking_lot`'s reader-writer lock, with a possible thread switch before each lock.
#[derive(Debug, Default)]
pub struct RwLock<T>(parking_lot::RwLock<T>);

impl<T> RwLock<T> {
    /// Locks for reading.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        acquire(|| self.0.try_read(), || self.0.read())
    }

    /// Locks for writing.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        acquire(|| self.0.try_write(), || self.0.write())
    }

    /// Returns the value, without locking.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }
}
