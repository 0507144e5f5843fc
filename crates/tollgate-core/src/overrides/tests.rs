use std::task::{Context, Poll, Waker};

use super::*;
use crate::Strikes;

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_micros(seconds * 1_000_000)
}

fn now_ready<T>(mut future: BoxFuture<T>) -> Result<T, StoreError> {
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("in a process, nothing waits"),
    }
}

fn quota(limit: u64, until: u64) -> Override {
    let change = OverrideChange::Quota { limit, window: None, burst: None };
    Override { policy: "p".into(), subject: "s".into(), change, until: at(until) }
}

fn list_at(seconds: &Arc<AtomicU64>) -> Overrides {
    let seconds = Arc::clone(seconds);
    Overrides::in_process(move || at(seconds.load(Ordering::Relaxed)))
}

#[test]
fn overrides_end_by_the_clock() {
    let clock = Arc::new(AtomicU64::new(10));
    let (overrides, key) = (list_at(&clock), Key::new("k"));
    assert!(!overrides.is_any());
    assert!(!now_ready(overrides.set(&key, quota(5, 20))).unwrap());
    assert!(now_ready(overrides.set(&key, quota(6, 20))).unwrap());
    assert!(overrides.is_any());
    assert_eq!(overrides.find("p", &key), Some(quota(6, 20)));
    assert_eq!(overrides.find("q", &key), None);
    assert_eq!(overrides.find("p", &Key::new("l")), None);
    clock.store(20, Ordering::Relaxed);
    assert!(overrides.list().is_empty());
    assert_eq!(overrides.find("p", &key), None);
    // Requests are as cheap as before.
    assert!(!overrides.is_any());
}

#[test]
fn removed_overrides_do_not_apply() {
    let clock = Arc::new(AtomicU64::new(10));
    let (overrides, key) = (list_at(&clock), Key::new("k"));
    now_ready(overrides.set(&key, quota(5, 20))).unwrap();
    let version = overrides.version();
    assert!(!now_ready(overrides.remove("q", &key)).unwrap());
    let [(id, _)] = &overrides.list()[..] else { panic!("one override") };
    assert!(now_ready(overrides.remove_id(id.clone())).unwrap());
    assert_eq!(overrides.find("p", &key), None);
    assert!(!overrides.is_any() && overrides.version() > version);
}

#[test]
fn ended_and_excess_overrides_are_rejected() {
    let clock = Arc::new(AtomicU64::new(10));
    let overrides = list_at(&clock);
    let set = |n: usize, until| {
        now_ready(overrides.set(&Key::new(n.to_be_bytes()), quota(5, until)))
            .map_err(|it| it.to_string())
    };
    assert_eq!(set(0, 10).unwrap_err(), "overrides: the end is not in the future");
    // Each change copies the list, so a list that fills one by one would take seconds.
    overrides.edit_copy(|list| {
        let until = |n| if n == 7 { 20 } else { 30 };
        let id = |n: usize| overrides.id("p", &Key::new(n.to_be_bytes()));
        list.extend((0..Overrides::MAX).map(|n| (id(n), quota(5, until(n)))));
    });
    let full = "overrides: there are 10000 overrides, the maximum: remove one first";
    assert_eq!(set(Overrides::MAX, 30).unwrap_err(), full);
    assert!(set(3, 40).unwrap(), "an override can be replaced");
    // One has ended.
    clock.store(20, Ordering::Relaxed);
    assert!(!set(Overrides::MAX, 30).unwrap());
}

#[test]
fn long_subjects_are_cut() {
    let overrides = list_at(&Arc::new(AtomicU64::new(10)));
    for (subject, shown) in
        [("é".repeat(128), "é".repeat(128)), ("é".repeat(999), "é".repeat(127) + "…")]
    {
        let it = Override { subject, ..quota(5, 20) };
        now_ready(overrides.set(&Key::new("k"), it)).unwrap();
        assert_eq!(overrides.list()[0].1.subject, shown);
    }
}

#[test]
fn changes_apply_to_each_kind_of_policy() {
    let change = |limit, window, burst| OverrideChange::Quota { limit, window, burst };
    let of = |policy: Result<Policy, PolicyError>, change: OverrideChange| {
        change.policy(&policy.unwrap()).map(|it| it.quota()).map_err(|it| it.to_string())
    };
    let bucket = || Policy::token_bucket("b", Quota::per_minute(100).burst(20));
    assert_eq!(of(bucket(), change(500, None, None)), Ok(Quota::per_minute(500).burst(100)));
    assert_eq!(of(bucket(), change(500, None, Some(7))), Ok(Quota::per_minute(500).burst(7)));
    let hour = Some(Micros::new(3_600_000_000));
    assert_eq!(of(bucket(), change(1, hour, None)), Ok(Quota::per_hour(1).burst(1)));
    assert_eq!(of(bucket(), OverrideChange::Block), Ok(Quota::per_minute(100).burst(20)));
    assert!(of(bucket(), change(0, None, None)).is_err());
    let permits = || Policy::concurrent_requests("c", 4, Duration::from_secs(9));
    assert_eq!(of(permits(), change(7, None, None)), Ok(Quota::new(7, Duration::from_secs(9))));
    assert!(of(permits(), change(7, hour, None)).unwrap_err().contains("no window"));
    let penalty = || Policy::penalty("p", Strikes::of_denials(3, Duration::from_secs(9)));
    assert!(of(penalty(), OverrideChange::Block).unwrap_err().contains("is a penalty"));
    let queue = || bucket()?.with_queue(Duration::from_secs(9));
    assert!(of(queue(), change(7, None, None)).unwrap_err().contains("queues its requests"));
}

/// Operators see IDs beside subjects, which may be masked.
#[test]
fn ids_do_not_contain_keys() {
    let overrides = list_at(&Arc::new(AtomicU64::new(10)));
    let id = |policy, key| overrides.id(policy, &Key::new(key));
    assert!(!id("p", "ann").windows(3).any(|part| part == b"ann"));
    assert_eq!(id("p", "ann"), id("p", "ann"));
    assert!(id("p", "ann") != id("p", "bob") && id("p", "ann") != id("q", "ann"));
}
