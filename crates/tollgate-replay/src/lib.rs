//! Replays recorded requests against Tollgate's limits: which requests would have been denied, and
//! which clients would be affected?
//!
//! [`Replay`] takes requests and returns a report. It has no clock and does not read files. The
//! [`log`] module reads access logs.
//!
//! ```
//! use std::sync::Arc;
//!
//! use tollgate_core::{Cost, Key, Policy, Quota, Timestamp};
//! use tollgate_engine::{Charges, Limit, Limits};
//! use tollgate_replay::{Client, Replay, Request};
//!
//! let policy = Policy::sliding_window_log("client", Quota::per_minute(2))?;
//! let limits = Arc::new(Limits::new([Limit::new(policy)]));
//! let mut replay = Replay::new();
//! for (second, name) in [(0, "ann"), (10, "ann"), (20, "bob"), (30, "ann")] {
//!     let key = Key::from(name);
//!     let charges = Charges::of_each(&limits, &key, Cost::ONE);
//!     let at = Timestamp::from_micros(second * 1_000_000);
//!     let client = Client { key: &key, name: &name };
//!     replay.request(&mut Request::new(at, &limits, charges).of(client))?;
//! }
//! let report = replay.finish()?;
//! assert_eq!((report.clients, report.clients_denied), (2, 1));
//! assert_eq!(report.denied_clients[0].client, "ann");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]

mod engine;
pub mod html;
mod instant;
#[cfg(feature = "log")]
pub mod log;
mod report;
pub mod scenario;
pub mod suggest;
pub mod worst;

pub use self::engine::{Answer, Bounds, Client, Fault, Fleet, Replay, Request, Resolved};
pub use self::instant::Instant;
pub use self::report::{
    ClientReport, Counts, Minute, Nearness, PolicyReport, Report, Series, Totals, Waits,
};
