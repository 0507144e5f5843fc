//! Property tests for the algorithms, through their public interface.
//!
//! Every property runs for every algorithm in every mode, with random policies and random traces. A
//! trace's clock may stop or step back. Each property runs 96 traces, 256 with `TOLLGATE_LONG=1`,
//! or the number in `PROPTEST_CASES`. `TOLLGATE_LONG=1` also makes the long runs fifty times
//! longer.
//!
//! This is a single binary, because linking several takes longer than running them.

mod bounds;
mod budget;
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
mod sizes;
mod trace;
