//! Limits for everything that is not an HTTP request: jobs, messages, queries, calls.
//!
//! A [`Limiter`] decides like a [`RateLimitLayer`](crate::RateLimitLayer), over any store, and lets
//! callers wait in order. Each allowed call gets a [`Permit`].
//!
//! ```
//! use std::time::Duration;
//!
//! use tollgate::key::Key;
//! use tollgate::{Limiter, MemoryStore, Policy, Quota};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let policy = Policy::token_bucket("jobs", Quota::per_second(5).burst(20))?;
//! let limiter = Limiter::builder(MemoryStore::new())
//!     .policy(policy)
//!     .wait(Duration::from_secs(120))
//!     .build()?;
//! let tenant = Key::from("tenant-7");
//! // Waits in order, for up to two minutes.
//! let permit = limiter.acquire(&tenant, 3).await?;
//! // The job was smaller than expected.
//! permit.settle(1).await?;
//! if let Some(permit) = limiter.try_acquire(&tenant, 1).await? {
//!     // The job did not run, so it costs nothing.
//!     permit.cancel().await?;
//! }
//! # Ok(())
//! # }
//! ```

mod acquire;
mod builder;
mod call;
mod error;
mod learn;
mod permit;
mod polite;
mod rate;
mod shared;
mod state;

pub use self::builder::LimiterBuilder;
pub use self::call::Acquire;
pub use self::error::{AcquireError, Refusal, SettleError};
pub use self::permit::Permit;
pub use self::polite::{Polite, PoliteLayer};
pub use self::shared::Limiter;
