//! All tests are in a single binary, because linking several is slow.

mod bounds;
mod conformance;
mod histories;
mod laws;
mod thread_leases;
mod time;
