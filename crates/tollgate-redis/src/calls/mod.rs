//! Requests on their way to Redis, where many requests share a call.
//!
//! | file | content |
//! |---|---|
//! | `ticket.rs`, `future.rs`, `ids.rs` | a request, the future for its answer, its name |
//! | `lanes.rs`, `pace/` | a server's queue, and when a call leaves |
//! | `combiner/` | fills calls, sends them, follows redirections, distributes the answers |
//! | `cross_slot.rs` | requests with keys in several slots |
//! | `failure.rs` | why a call failed |

pub(crate) mod combiner;
pub(crate) mod cross_slot;
pub(crate) mod failure;
pub(crate) mod future;
pub(crate) mod ids;
pub(crate) mod lanes;
pub(crate) mod pace;
pub(crate) mod ticket;
