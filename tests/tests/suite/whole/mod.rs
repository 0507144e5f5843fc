//! Three replicas behind nginx that share a quota in Redis. All are real processes.

mod clocks;
mod outages;
mod proxy;
mod restarts;
mod scenario;
pub(crate) mod support;
