//! Locks at which this crate's unit tests switch between threads.

#[cfg(not(test))]
pub(crate) use parking_lot::Mutex;
#[cfg(test)]
pub(crate) use tollgate_interleavings::Mutex;
