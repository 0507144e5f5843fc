//! The Redis store of Tollgate, for limits that many processes share, exact to the unit.
//!
//! [`RedisStore`] decides in a Lua script inside Redis. The script is a port of the functions in
//! `tollgate-core`, and a test compares their decisions field by field. One call decides many
//! requests over many keys in sequence. Each request is charged completely or not at all.
//!
//! ```no_run
//! use tollgate_core::{Cost, Key, Policy, Quota, StoreExt};
//! use tollgate_redis::RedisStore;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = RedisStore::connect("redis://127.0.0.1:6379")?;
//! let policy = Policy::sliding_window_log("global", Quota::per_minute(100))?;
//!
//! let verdict = store.charge(&policy, &Key::GLOBAL, Cost::new(5)).await?;
//! println!("{} units left", verdict.decisions()[0].remaining);
//! # Ok(())
//! # }
//! ```
//!
//! `lua/README.md` describes the arguments of the script and the layout of stored states.
//!
//! # Sentinels
//!
//! `redis-sentinel://host:26379?service=name&node=host:26379` queries the Sentinels for the master,
//! and queries them again when the connection breaks or the server turns out to be a replica.
//! Meanwhile requests fail within the timeout. Charges that the old master had not replicated are
//! lost, so at most that number of units is admitted again.
//!
//! # Redis Cluster
//!
//! `redis-cluster://host:6379?node=host:6380` discovers all nodes from the named nodes, under the
//! names or addresses that they announce, and follows changes. The user needs permission to call
//! `CLUSTER SLOTS`.
//!
//! A key's policies share a slot, so one call decides them. *Different keys* in a request, for
//! example [`Key::GLOBAL`] and an address, are usually in different slots, and no call can contain
//! both. The store then makes one call per slot: first for keys that denied within the last second,
//! then the narrowest quota, then [`Key::GLOBAL`], then queues, and shadow policies last. If a slot
//! denies or fails, the store refunds the charges in the slots before it. The contract of [`Store`]
//! therefore holds only in part:
//!
//! | | charges in one slot | charges in several |
//! |---|---|---|
//! | no quota ever grants more than its limit | holds | holds |
//! | all or none is charged | immediately | after the refund |
//! | a denial changes nothing | holds | except briefly: other requests may be denied until the refund |
//! | refunded units | | tried three times; if all attempts fail, the units are missing until they age out |
//! | verdict | one snapshot | one per slot; `decided_at` is the last slot's time, or the queue's |
//! | report of policies that do not deny | all numbers | the remaining units, without a wait, if their slot decided before the denial; otherwise [`Outcome::Undecided`](tollgate_core::Outcome::Undecided) |
//! | deny cache | used | not used, and off for policies with refunds |
//!
//! While a master is down, requests for its slots fail until a replica is promoted. With
//! `cluster-require-full-coverage yes`, the default in Redis, the Cluster also rejects all other
//! requests, so set it to `no`. The new master lacks the old master's latest charges: at most that
//! number of units is admitted again.
//!
//! While a slot moves, requests follow their keys and are charged once. A request that needs
//! several keys in the slot (two policies of a key, or a settlement) waits until all its keys have
//! moved, and fails uncharged if that takes longer than the timeout. Move slots with limits when
//! there is little traffic.
//!
//! [`Key::GLOBAL`]: tollgate_core::Key::GLOBAL
//! [`Store`]: tollgate_core::Store

#![cfg_attr(docsrs, feature(doc_cfg))]

mod builder;
mod calls;
mod client;
mod clock;
mod deny_cache;
mod lease;
mod operations;
mod random;
mod script;
#[doc(hidden)]
pub mod simulation;
mod stats;
mod store;
mod sync;
mod values;

pub use self::builder::{ConnectError, RedisStoreBuilder};
pub use self::calls::future::RedisFuture;
pub use self::client::address::UrlError;
pub use self::client::breaker::{Breaker, BreakerState};
pub use self::client::report::{RedisReport, RedisWarning};
pub use self::client::tls::TlsError;
pub use self::stats::RedisStats;
pub use self::store::RedisStore;
pub use self::values::{ReadError, RedisValues};

/// The script's calling convention, for this crate's tests and benchmarks, which talk to a bare
/// server. Not part of the public API.
#[doc(hidden)]
pub mod protocol {
    pub use crate::script::encode::{Ask, Batch, EncodeError, KeyedCharge, Spent};
    pub use crate::script::replay::Frozen;
    pub use crate::script::reply::{BadReply, Fault, Reply, ScriptAnswer};
    pub use crate::script::{CROSS_SLOT_TEXT, SHA1, TEXT};
}
