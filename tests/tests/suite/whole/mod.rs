//! Three replicas behind nginx with one quota in Redis, as real processes.

mod clocks;
mod exact;
mod leased;
mod outages;
mod pauses;
mod proxy;
mod restarts;
mod scenario;
mod support;
