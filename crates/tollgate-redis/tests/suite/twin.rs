//! The script against the pure functions: the same requests at the same instants, every
//! field of every answer, and what Redis holds afterwards.
//!
//! Redis expires keys by its own clock, which no test can move. So the time that is handed
//! to the script lies decades ahead of it, and with it every expiry: no key goes away by
//! itself, and stepping back in time is as in a store that forgets nothing.

use tollgate_redis::protocol::{CROSS_SLOT_TEXT, TEXT};

use tollgate_store_tests::{is_long, seeds, skip};

use crate::support::Server;
use crate::trace::{Family, Trace};

/// Decisions of a test, one in `share` of all: a million with `TOLLGATE_LONG=1`.
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
        // Traces differ in what they cover. Leased units would make the totals of heavy ones smaller.
        let least = all / share / 100;
        let is_covered = frozen > least && (granted > least || family == Family::Heavy);
        if done >= all / share && is_covered {
            break;
        }
        assert!(done < 10 * all / share, "{granted} blocks, {frozen} charges to keys without room");
    }
    println!("{family:?}: {done} decisions, {granted} blocks in {traces} traces");
}

/// Every algorithm and mode, several charges, shadows, versions of a quota, settling,
/// leasing and resetting, a clock that steps back, one request a call and twenty.
#[test]
fn the_script_decides_as_the_core_does() {
    run(Family::Any, 2);
}

/// Logs of hundreds and thousands of entries, which are read in parts and written in place.
#[test]
fn long_logs_are_as_exact_as_short_ones() {
    run(Family::LongLogs, 4);
}

/// Up to the last instant but one that a double holds.
#[test]
fn time_may_run_to_its_end() {
    run(Family::EndOfTime, 8);
}

/// Running totals of a log start over past 2^52, before a double has gaps.
#[test]
fn sums_may_grow_past_what_a_double_holds() {
    run(Family::Heavy, 8);
}

/// A server that does not tell its version is taken for one without SET … PXAT.
#[test]
fn an_old_server_keeps_the_same_states_for_the_same_time() {
    let old = TEXT.replace("redis.REDIS_VERSION_NUM", "nil");
    assert_ne!(old, TEXT);
    run_with(&old, Family::Any, 8);
}

/// As in a Cluster, from Redis 7 on.
#[test]
fn keys_of_several_slots_are_decided_like_those_of_one() {
    if !Server::start().allows_cross_slot() {
        return skip("before Redis 7, no script may use keys of several slots");
    }
    run_with(CROSS_SLOT_TEXT, Family::Any, 8);
}
