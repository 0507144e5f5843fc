//! The final decision on a request.

use tollgate_core::{Micros, StoreError};

/// The final decision on a request. Errors are boxed, so it fits into registers.
#[derive(Debug)]
pub enum Conclusion {
    /// The request passes after this delay, which is zero unless it queues in the store.
    Pass(Micros),
    /// The store could not decide, and all limits let the request pass. It has no decisions.
    FailOpen(Box<StoreError>),
    /// The request is rejected.
    Reject(Rejection),
}

/// Why a request is rejected.
#[derive(Debug)]
pub enum Rejection {
    /// A limit denies the request, and the request may not wait for it.
    Denied,
    /// The request would have to wait for longer than it may.
    TooLate,
    /// Too many requests wait, or too many with the same key.
    QueueFull,
    /// The store could not decide, and a policy fails closed.
    Undecided(Box<StoreError>),
}
