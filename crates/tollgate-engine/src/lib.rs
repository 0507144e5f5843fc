//! What happens to a rate-limited request: which charges it makes, how it waits, and what is
//! corrected at its end. Without HTTP, a runtime or a clock.
//!
//! A program that drives the engine does what each [`Step`] requires. It calls the store, sleeps,
//! and passes the current time. `tollgate`'s Tower layer and its `Limiter` drive it with tokio, and
//! `tollgate-replay` drives it with the times of a log.
//!
//! ```
//! use tollgate_core::{Cost, Key, Policy, Quota, Store, Timestamp};
//! use tollgate_engine::{Charges, Conclusion, Limit, Limits, Request, Step};
//! use tollgate_memory::MemoryStore;
//!
//! let policy = Policy::token_bucket("client", Quota::per_minute(60).burst(1))?;
//! let limits = Limits::new([Limit::new(policy)]);
//! let store = MemoryStore::new();
//! let decide = || {
//!     let charges = Charges::of_each(&limits, &Key::from("ann"), Cost::ONE);
//!     let (mut request, asking) = Request::start(&limits, charges, None);
//!     let mut step = Step::Ask(asking);
//!     while let Step::Ask(asking) = step {
//!         let reply = store.decide(&asking.question.charges(&limits, request.charges()));
//!         step = request.on_reply(asking, &limits, reply.into_inner(), Timestamp::EPOCH);
//!     }
//!     step
//! };
//! assert!(matches!(decide(), Step::Done(Conclusion::Pass(_))));
//! assert!(matches!(decide(), Step::Done(Conclusion::Reject(_))));
//! # Ok::<(), tollgate_core::PolicyError>(())
//! ```

mod applied;
mod charges;
mod conclusion;
mod corrections;
mod estimate;
mod forecast;
mod limit;
mod methods;
mod overridden;
mod overrides;
mod paths;
mod question;
mod queue;
mod request;
mod shown;
mod step;

pub use self::applied::{AppliedLimit, OwnPolicy, SubjectKind, TierIndex};
pub use self::charges::Charges;
pub use self::conclusion::{Conclusion, Rejection};
pub use self::corrections::{Correction, Ending, OpenCharge, OpenCharges, Refunds};
pub use self::forecast::Forecast;
pub use self::limit::{Corrects, Limit, Limits, Mode};
pub use self::methods::{MethodCosts, Methods};
pub use self::paths::{PathPattern, PathPatternError};
pub use self::question::Question;
pub use self::queue::{Arrival, Queue};
pub use self::request::Request;
pub use self::shown::Shown;
pub use self::step::{Asking, Sleeping, Step};
