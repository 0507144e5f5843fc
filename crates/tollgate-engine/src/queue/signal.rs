//! How a waiting request is woken.

use std::task::Waker;

#[cfg(not(test))]
use parking_lot::Mutex;
#[cfg(test)]
use tollgate_interleavings::Mutex;

/// Wakes a request that becomes the first in a lane.
#[derive(Debug, Default)]
pub(super) struct Signal(Mutex<State>);

#[derive(Debug)]
enum State {
    Asleep(Option<Waker>),
    Woken,
}

impl Default for State {
    fn default() -> Self {
        Self::Asleep(None)
    }
}

impl Signal {
    /// Marks the request as woken. Returns the waker to call, after all locks are released: it may
    /// drop a request, which then leaves the queue.
    pub(super) fn set(&self) -> Option<Waker> {
        match std::mem::replace(&mut *self.0.lock(), State::Woken) {
            State::Asleep(waker) => waker,
            State::Woken => None,
        }
    }

    /// Returns whether the request was woken since the last call. Otherwise `waker` is called when
    /// it is.
    pub(super) fn take(&self, waker: &Waker) -> bool {
        let mut state = self.0.lock();
        let is_woken = matches!(*state, State::Woken);
        *state = State::Asleep((!is_woken).then(|| waker.clone()));
        is_woken
    }
}
