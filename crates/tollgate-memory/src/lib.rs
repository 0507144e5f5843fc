//! Tollgate's in-memory store, for limits within a single process.
//!
//! [`MemoryStore`] holds all keys in this process, in shards that each have a lock. A decision
//! takes tens of nanoseconds. A decision over several policies locks its keys' shards in a fixed
//! order, so it is exact too.
//!
//! ```
//! use tollgate_core::{Cost, Key, Policy, Quota, Store, StoreExt};
//! use tollgate_memory::MemoryStore;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = MemoryStore::new();
//! let policy = Policy::sliding_window_log("global", Quota::per_minute(100))?;
//!
//! let verdict = store.charge(&policy, &Key::GLOBAL, Cost::new(5)).await?;
//! assert!(verdict.is_admitted());
//! assert_eq!(verdict.decisions()[0].remaining, 95);
//! # Ok(())
//! # }
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]

mod any_table;
mod builder;
mod clock;
mod decide;
mod entries;
mod inner;
mod known;
mod policy_tables;
mod settle;
mod settled;
mod shard;
mod store;
mod sync;
mod table;
#[cfg(feature = "test-util")]
mod test_clocks;
mod thread_leases;
mod versions;

pub use self::builder::MemoryStoreBuilder;
pub use self::clock::{Clock, SystemClock};
pub use self::store::{MemoryStats, MemoryStore};
#[cfg(feature = "test-util")]
pub use self::test_clocks::{ManualClock, TokioClock};
pub use self::thread_leases::ThreadLeases;
