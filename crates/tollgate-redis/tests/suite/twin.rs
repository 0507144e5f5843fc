//! Compares the script with the pure functions: the same requests at the same instants, every field
//! in every answer, and Redis' state afterwards.
//!
//! Redis expires keys by its own clock, which no test can move. The time passed to the script is
//! therefore decades ahead, and so is every expiry: no key disappears by itself, and a step back in
//! time works as if keys never expired.

use tollgate_redis::protocol::{CROSS_SLOT_TEXT, TEXT};

use tollgate_store_tests::{is_long, seeds, skip};

use crate::support::Server;
use crate::trace::{Family, Trace};

/// Runs `1 / share` of all decisions, which are a million with `TOLLGATE_LONG=1`.
fn run(family: Family, share: usize) {
    run_with(TEXT, family, share);
}

fn run_with(script: &str, family: Family, share: usize) {
    let all = if is_long() { 1_000_000 } else { 40_000 };
    let server = Server::start();
    let mut client = server.connect_with(script);
    let (mut done, mut granted, mut frozen, mut traces) = (0, 0, 0, 0);
    for seed in seeds(u64::MAX) {
        let [decisions, blocks, charges] = Trace::new(family, seed).run(&mut client);
        (done, granted, frozen) = (done + decisions, granted + blocks, frozen + charges);
        traces += 1;
        // Traces differ in what they cover. Leased units would reduce a heavy trace's totals.
        let least = all / share / 100;
        let is_covered = frozen > least && (granted > least || family == Family::Heavy);
        if done >= all / share && is_covered {
            break;
        }
        assert!(done < 10 * all / share, "{granted} blocks, {frozen} charges to keys without room");
    }
    println!("{family:?}: {done} decisions, {granted} blocks in {traces} traces");
}

/// Every algorithm and mode, several charges, shadows, quota versions, settling, leasing and
/// resetting, a clock that steps back, and calls with 1 to 20 requests.
#[test]
fn script_matches_the_core() {
    run(Family::Any, 2);
}

/// Logs with hundreds or thousands of entries, which are read in parts and written in place.
#[test]
fn long_logs_match_the_core() {
    run(Family::LongLogs, 8);
}

/// The path for logs with thousands of entries, from 300 entries on.
#[test]
fn very_long_logs_match_the_core() {
    let script = TEXT.replace("local MANY = 4096", "local MANY = 300");
    assert_ne!(script, TEXT);
    run_with(&script, Family::LongLogs, 8);
}

/// Runs up to the last instant but one that a double can represent.
#[test]
fn end_of_time_matches_the_core() {
    run(Family::EndOfTime, 8);
}

/// A log's running totals restart past 2^52, before a double loses precision.
#[test]
fn sums_exceed_double_precision() {
    run(Family::Heavy, 8);
}

/// A server that does not report its version is treated as lacking `SET … PXAT`.
#[test]
fn old_server_keeps_same_states() {
    let old = TEXT.replace("redis.REDIS_VERSION_NUM", "nil");
    assert_ne!(old, TEXT);
    run_with(&old, Family::Any, 8);
}

/// As in a Cluster with Redis 7 or later.
#[test]
fn cross_slot_script_matches_the_core() {
    if !Server::start().allows_cross_slot() {
        return skip("before Redis 7, no script may use keys of several slots");
    }
    run_with(CROSS_SLOT_TEXT, Family::Any, 8);
}
