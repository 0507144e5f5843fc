//! Tollgate over Redis: limits that many processes share, exact to the unit.
//!
//! The algorithms run inside Redis, in a script that is the twin of the functions in
//! `tollgate-core`: the same verbs over the same integers, held together by a test that
//! compares every field of their decisions. One call decides any number of requests
//! over any number of keys, one after the other and none of them in part.
//!
//! The calling convention and the layout of what is stored are in `lua/README.md`.

mod bytes;
mod encode;
mod header;
mod interned;
mod reply;
mod script;

/// The calling convention of the script, for the tests and benchmarks of this crate,
/// which talk to a bare server. No part of the public API.
#[doc(hidden)]
pub mod protocol {
    pub use crate::encode::{Batch, EncodeError, Line};
    pub use crate::reply::{BadReply, Fault, Reply, Row};
    pub use crate::script::{SHA1, TEXT};
}
