//! Drives requests through the engine with tokio: asks the store, sleeps, records decisions, and
//! holds permits. The Tower layer and the `Limiter` share it.

mod admitted;
mod decide;
mod driver;
mod follow_up;
mod in_flight;
mod open;
mod outage;
mod receipts;
mod telemetry;
mod waiting;

pub(crate) use self::admitted::Admitted;
pub(crate) use self::decide::Progress;
pub(crate) use self::driver::{Decided, Driver};
pub(crate) use self::open::Open;
#[cfg(test)]
pub(crate) use self::receipts::next_id;
pub(crate) use self::receipts::settle;
pub(crate) use self::telemetry::Observed;
#[cfg(feature = "metrics")]
pub(crate) use self::telemetry::Telemetry;
pub(crate) use self::waiting::Waiting;
