use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use tollgate_core::{Cost, Key, Override, Quota, Source, Timestamp};

use super::*;
use crate::applied::SubjectKind;
use crate::limit::Limit;

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_micros(seconds * 1_000_000)
}

/// Limits over a clock. Each look at the clock takes as long as the second number says.
fn limits(now: &'static AtomicU64, tick: &'static AtomicU64, change: OverrideChange) -> Limits {
    let clock = || at(now.fetch_add(tick.load(Ordering::Relaxed), Ordering::Relaxed));
    let overrides = Overrides::in_process(clock);
    let (policy, subject) = ("p".to_owned(), "s".to_owned());
    let it = Override { policy, subject, change, until: at(100) };
    let mut set = overrides.set(&Key::new("k"), it);
    let Poll::Ready(Ok(_)) = set.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("in a process, nothing waits")
    };
    let policy = Policy::token_bucket("p", Quota::per_minute(5)).unwrap();
    let limits = Limits::new([Limit::new(policy.clone()), Limit::new(policy)]);
    limits.overridden_by(Some(overrides), |_, _, _| Box::new(()))
}

fn charge(limit: u8) -> AppliedLimit {
    AppliedLimit::new(limit, SubjectKind::Other, Key::new("k"), Cost::ONE)
}

#[test]
fn charges_of_a_request_share_an_instant() {
    static NOW: AtomicU64 = AtomicU64::new(0);
    static TICK: AtomicU64 = AtomicU64::new(0);
    let change = OverrideChange::Quota { limit: 3, window: None, burst: None };
    let limits = limits(&NOW, &TICK, change);
    TICK.store(1, Ordering::Relaxed);
    for start in 90..=100 {
        NOW.store(start, Ordering::Relaxed);
        let mut charges = [charge(0), charge(1)];
        limits.apply_overrides(&mut charges);
        let [first, second] = charges.map(|it| it.own.is_some());
        assert_eq!(first, second, "from {start} s on");
    }
}

/// A local store's clock may differ from the clock of the overrides.
#[test]
fn block_ends_by_the_clock_of_the_overrides() {
    static NOW: AtomicU64 = AtomicU64::new(50);
    static TICK: AtomicU64 = AtomicU64::new(0);
    let limits = limits(&NOW, &TICK, OverrideChange::Block);
    let mut charges = [charge(0)];
    assert!(limits.apply_overrides(&mut charges));
    let left = |source| {
        let decision = Decision { outcome: Outcome::WouldAllow, ..Decision::undecided(5) };
        let verdict = Verdict::new(true, at(101), [decision]).with_source(source);
        let blocked = limits.blocked(&charges, &verdict)?;
        blocked.decisions()[0].retry_after()
    };
    assert_eq!(left(Source::Local), Some(Micros::new(50_000_000)));
    assert_eq!(left(Source::Store), None);
    NOW.store(100, Ordering::Relaxed);
    assert_eq!(left(Source::Local), None);
}
