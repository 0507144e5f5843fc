//! A key with a clock that the test moves. The test acts as Redis.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::{Granted, Lease, Micros, Policy, Quota, StoreError, Timestamp};

use super::{Blocks, Plan, Returned};
use crate::calls::ticket::Leased;
use crate::clock::{Clock, Moment};
use crate::lease::demand::HOT;
use crate::script::encode::{Ask, Spent};

const TTL: u64 = 1_000_000;

/// A hot key that may lease up to 100 units, and its clock.
fn hot() -> (Blocks, Clock, Arc<AtomicU64>) {
    let time = Arc::new(AtomicU64::new(0));
    let policy = Policy::token_bucket("p", Quota::per_minute(1_000)).unwrap();
    let mut blocks = Blocks::new(&policy, Lease::of(1, 10), 0);
    for _ in 0..HOT {
        blocks.asked(0);
    }
    blocks.has_refill = true;
    (blocks, Clock::by_hand(Arc::clone(&time), true), time)
}

fn called(blocks: &mut Blocks, now: Moment) -> (Returned, Ask) {
    match blocks.plan(now, || 7) {
        Plan::Call { spent, ask } => (spent, ask),
        other => panic!("{other:?}"),
    }
}

fn granted(units: u64, now: Moment) -> Result<Leased, StoreError> {
    let decided_at = Timestamp::from_micros(now);
    let (lasts, reset_after) = (Micros::new(TTL), Micros::new(TTL));
    let granted = Granted { units, lasts, remaining: 50, reset_after, retry_after: Micros::new(5) };
    Ok(Leased { granted, decided_at, sent: now })
}

#[test]
fn next_block_is_fetched_ahead() {
    let (mut blocks, clock, _) = hot();
    let (spent, ask) = called(&mut blocks, 0);
    assert!(spent.is_empty() && ask.units == 8);
    blocks.learn(spent, ask, granted(8, 0), &clock);
    assert!(matches!(blocks.plan(0, || 8), Plan::Wait(Some(750_000))));
    assert!((0..4).all(|_| blocks.take(1, &clock).is_some()));
    // Half the block is spent, so the refill task is woken once.
    assert!(blocks.wakes_refill() && !blocks.wakes_refill());
    let (spent, ask) = called(&mut blocks, 0);
    assert!(spent.is_empty());
    blocks.learn(spent, Ask { tag: 8, ..ask }, granted(8, 0), &clock);
    // The second block continues after the first, and the next call returns the first.
    assert!((0..6).all(|_| blocks.take(1, &clock).is_some()));
    assert!(matches!(blocks.plan(0, || 9), Plan::Wait(Some(750_000))));
    assert!((0..2).all(|_| blocks.take(1, &clock).is_some()));
    let (spent, ask) = called(&mut blocks, 0);
    assert_eq!(spent.spent()[..], [Spent { id: 7, units: 8 }]);
    assert_eq!(ask.units, 16);
}

#[test]
fn idle_key_returns_units_and_stops() {
    let (mut blocks, clock, time) = hot();
    let (spent, ask) = called(&mut blocks, 0);
    blocks.learn(spent, ask, granted(8, 0), &clock);
    blocks.take(3, &clock).unwrap();
    time.store(750_000, Ordering::SeqCst);
    let (spent, ask) = called(&mut blocks, 750_000);
    assert_eq!(spent.spent()[..], [Spent { id: 7, units: 3 }]);
    assert_eq!(ask.units, 0);
    blocks.learn(spent, ask, granted(0, 750_000), &clock);
    assert!(matches!(blocks.plan(750_000, || 9), Plan::Leave));
    assert!(!blocks.has_refill);
}

/// The replica returns its units while another block is on its way.
#[test]
fn late_block_is_returned() {
    let (mut blocks, clock, _) = hot();
    let (spent, ask) = called(&mut blocks, 0);
    assert!(blocks.close(0).is_empty() && blocks.awaits_answer);
    blocks.learn(spent, ask, granted(8, 0), &clock);
    assert!(blocks.take(1, &clock).is_none() && !blocks.awaits_answer);
    let (spent, ask) = called(&mut blocks, 0);
    assert_eq!(spent.spent()[..], [Spent { id: 7, units: 0 }]);
    assert_eq!(ask.units, 0);
    // The replica also waits for the report.
    assert!(blocks.close(0).is_empty() && blocks.awaits_answer);
    blocks.learn(spent, ask, granted(0, 0), &clock);
    assert!(!blocks.awaits_answer);
    assert!(matches!(blocks.plan(0, || 9), Plan::Leave));
}

/// The machine was suspended while the answer was on its way.
#[test]
fn late_block_is_not_spent() {
    let (mut blocks, clock, time) = hot();
    let (spent, ask) = called(&mut blocks, 0);
    time.store(TTL + 1, Ordering::SeqCst);
    blocks.learn(spent, ask, granted(8, 0), &clock);
    assert!(blocks.take(1, &clock).is_none());
    // Redis has charged it in full, so there is no report to send.
    assert!(matches!(blocks.plan(TTL + 1, || 8), Plan::Leave));
}

#[test]
fn failed_calls_are_delayed() {
    for (error, next_ask) in [
        (StoreError::not_charged("redis", "no"), TTL / 16),
        (StoreError::maybe_charged("redis", "silent"), TTL),
    ] {
        let (mut blocks, clock, time) = hot();
        let (spent, ask) = called(&mut blocks, 0);
        blocks.learn(spent, ask, Err(error), &clock);
        assert!(matches!(blocks.plan(0, || 8), Plan::Wait(Some(at)) if at == TTL / 16));
        time.store(next_ask - 1, Ordering::SeqCst);
        assert!(matches!(blocks.plan(next_ask - 1, || 8), Plan::Wait(Some(at)) if at == next_ask));
        called(&mut blocks, next_ask);
    }
}

#[test]
fn put_back_only_refills_open_blocks() {
    let (mut blocks, clock, _) = hot();
    let (spent, ask) = called(&mut blocks, 0);
    blocks.learn(spent, ask, granted(8, 0), &clock);
    let taken = blocks.take(8, &clock).unwrap();
    assert!(blocks.take(1, &clock).is_none());
    blocks.put_back(&taken);
    let taken = blocks.take(8, &clock).unwrap();
    assert_eq!(blocks.close(0).spent()[..], [Spent { id: 7, units: 8 }]);
    blocks.put_back(&taken);
    assert!(blocks.take(1, &clock).is_none());
}

/// Redis' clock is slewed to run 8.3 % fast, and the local clock 8.3 % slow. No timer has returned
/// the block.
#[test]
fn clock_skew_never_overspends_block() {
    let time = Arc::new(AtomicU64::new(0));
    let clock = Clock::by_hand(Arc::clone(&time), false);
    let (mut blocks, ..) = hot();
    let (spent, ask) = called(&mut blocks, 0);
    blocks.learn(spent, ask, granted(8, 0), &clock);
    let here = |redis: u64| (redis as f64 / 1.083_333 * 0.916_667) as u64;
    time.store(here(TTL) - here(TTL) / 50, Ordering::SeqCst);
    assert!(blocks.take(1, &clock).is_some(), "the margin is no larger than necessary");
    time.store(here(TTL), Ordering::SeqCst);
    assert!(blocks.take(1, &clock).is_none());
}

/// The safety margin does not shorten the time for returning units.
#[test]
fn blocks_are_reported_until_they_lapse() {
    let time = Arc::new(AtomicU64::new(0));
    let clock = Clock::by_hand(Arc::clone(&time), false);
    let (mut blocks, ..) = hot();
    let (spent, ask) = called(&mut blocks, 0);
    blocks.learn(spent, ask, granted(8, 0), &clock);
    assert!(matches!(blocks.plan(0, || 8), Plan::Wait(Some(at)) if at.abs_diff(750_000) < 1_000));
    time.store(TTL - TTL / 16, Ordering::SeqCst);
    let (spent, ask) = called(&mut blocks, TTL - TTL / 16);
    assert_eq!((spent.spent().len(), ask.units), (1, 0));
}
