//! What the algorithms promise, checked from outside and without trust in their code.
//!
//! Every law runs for every algorithm in every mode, over random policies and random
//! traces whose clock stands still and steps back. Each law sees 96 traces, or 256 with
//! `TOLLGATE_LONG=1`, or as many as `PROPTEST_CASES` sets. `TOLLGATE_LONG=1` also makes
//! the long runs fifty times as long.
//!
//! One binary, because linking many of them takes longer than running them.

mod bounds;
mod concurrent_requests;
mod conversion;
mod decisions;
mod drift;
mod found;
mod freshness;
mod leases;
mod limiter;
mod long_run;
mod oracle;
mod penalty;
mod published;
mod settle;
mod settle_interval;
mod trace;
