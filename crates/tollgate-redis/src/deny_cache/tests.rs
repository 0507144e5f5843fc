use std::sync::Arc;

use tokio::time::Instant;
use tollgate_core::{Outcome, Quota, Timestamp};
use tollgate_interleavings::{explore, thread};

use super::*;
use crate::calls::ticket::Ticket;
use crate::script::names::Name;

/// A cache that remembers for a minute, and its clock.
fn cache() -> (DenyCache, Arc<AtomicU64>) {
    cache_of(Duration::from_secs(60))
}

fn cache_of(bound: Duration) -> (DenyCache, Arc<AtomicU64>) {
    let time = Arc::new(AtomicU64::new(USUALLY));
    let clock = Clock::by_hand(Arc::clone(&time), true);
    (DenyCache::new(bound, clock), time)
}

fn request(n: usize) -> Ticket {
    costing(n, Cost::ONE)
}

fn costing(n: usize, cost: Cost) -> Ticket {
    let policy = Policy::fixed_window_counter("p", Quota::per_minute(9)).unwrap();
    ticket(&Charge::new(&policy, &Key::new(n.to_be_bytes()), cost))
}

fn ticket(charge: &Charge<'_>) -> Ticket {
    let charge = NamedCharge::new(Name::new(), charge);
    Ticket::new(Request::Decide([charge].into_iter().collect()), 0, 0, Instant::now())
}

/// Denies a request until a minute from now.
fn deny(cache: &DenyCache, n: usize) {
    deny_for(cache, request(n), Micros::new(60_000_000));
}

fn deny_for(cache: &DenyCache, mut ticket: Ticket, wait: Micros) {
    ticket.epoch = cache.epoch();
    learn(cache, &ticket, wait);
}

fn learn(cache: &DenyCache, ticket: &Ticket, wait: Micros) {
    let now = cache.clock.now();
    let outcome = Outcome::Deny { retry_after: wait };
    let decision = Decision { outcome, ..Decision::undecided(9) };
    let verdict = Verdict::single(false, Timestamp::from_micros(now), decision);
    cache.learn(ticket, &verdict, &[wait], now..now);
}

fn is_remembered(cache: &DenyCache, n: usize) -> bool {
    remembers(cache, &request(n))
}

fn remembers(cache: &DenyCache, ticket: &Ticket) -> bool {
    let Request::Decide(charges) = &ticket.request else { return false };
    let charges: Vec<_> = charges.iter().map(NamedCharge::as_charge).collect();
    cache.find(&charges).is_some()
}

#[test]
fn denial_in_flight_during_a_reset_is_not_remembered() {
    let (cache, _) = cache();
    let mut ticket = request(1);
    ticket.epoch = cache.epoch();
    reset(&cache, &ticket);
    learn(&cache, &ticket, Micros::new(60_000_000));
    assert!(!is_remembered(&cache, 1));
    deny(&cache, 1);
    assert!(is_remembered(&cache, 1));
}

/// A client must not be able to clear the denials of others.
#[test]
fn reset_forgets_only_its_key() {
    let (cache, _) = cache();
    (1..=3).for_each(|n| deny(&cache, n));
    let mut in_flight = request(4);
    in_flight.epoch = cache.epoch();
    reset(&cache, &request(2));
    learn(&cache, &in_flight, Micros::new(60_000_000));
    assert_eq!([1, 2, 3, 4].map(|n| is_remembered(&cache, n)), [true, false, true, true]);
}

fn reset(cache: &DenyCache, ticket: &Ticket) {
    let Request::Decide(charges) = &ticket.request else { return };
    for charge in charges.iter().map(NamedCharge::as_charge) {
        cache.forget_key(cache.hash(charge.key, charge.policy));
    }
}

#[test]
fn concurrent_reset_discards_denials() {
    explore(|| {
        let (cache, _) = cache();
        let cache = Arc::new(cache);
        let mut ticket = request(1);
        ticket.epoch = cache.epoch();
        let learner = Arc::clone(&cache);
        let learns = move || learn(&learner, &ticket, Micros::new(60_000_000));
        let learns = thread::spawn(learns);
        reset(&cache, &request(1));
        learns.join().unwrap();
        assert!(!is_remembered(&cache, 1));
    });
}

#[test]
fn full_cache_sweeps_rarely() {
    let (cache, time) = cache();
    for n in 0..MOST {
        deny(&cache, n);
    }
    assert!(is_remembered(&cache, MOST - 1));
    let swept = || cache.entries.lock().swept;
    let first = swept();
    // The table is full, and was swept a moment ago.
    for n in MOST..MOST + 100 {
        deny(&cache, n);
        assert!(swept() == first && !is_remembered(&cache, n));
        time.fetch_add(WHEN_FULL / 100 - 1, Ordering::SeqCst);
    }
    time.fetch_add(WHEN_FULL, Ordering::SeqCst);
    deny(&cache, MOST);
    assert_eq!(swept(), cache.clock.now());
}

#[test]
fn expired_entries_make_room() {
    let (cache, time) = cache();
    for n in 0..MOST {
        deny(&cache, n);
    }
    time.fetch_add(59_999_999, Ordering::SeqCst);
    assert!(is_remembered(&cache, 0));
    time.fetch_add(1, Ordering::SeqCst);
    assert!(!is_remembered(&cache, 0));
    deny(&cache, MOST);
    assert!(is_remembered(&cache, MOST));
    assert_eq!(cache.entries.lock().table.len(), 1);
}

/// Another process may have changed the wait for the larger cost only, with a settlement.
#[test]
fn asking_again_does_not_prolong_other_waits() {
    let (cache, time) = cache();
    let two = || costing(0, Cost::new(2));
    deny_for(&cache, two(), Micros::new(120_000_000));
    time.fetch_add(59_999_999, Ordering::SeqCst);
    deny_for(&cache, request(0), Micros::new(60_000_001));
    assert!(is_remembered(&cache, 0) && remembers(&cache, &two()));
    time.fetch_add(1, Ordering::SeqCst);
    assert!(!remembers(&cache, &two()));
}

#[test]
fn exclusion_ends_with_receipt_lifetime() {
    let (cache, time) = cache();
    deny(&cache, 0);
    cache.exclude("p", Micros::new(1_000));
    assert!(!is_remembered(&cache, 0));
    time.fetch_add(500, Ordering::SeqCst);
    cache.exclude("p", Micros::new(1_000));
    time.fetch_add(999, Ordering::SeqCst);
    deny(&cache, 0);
    assert!(!is_remembered(&cache, 0));
    time.fetch_add(1, Ordering::SeqCst);
    deny(&cache, 0);
    assert!(is_remembered(&cache, 0));
}

/// NTP slews a clock by at most a twelfth. If Redis' clock runs fast and this clock slow, the key
/// allows requests 0.18 s before this process queries Redis again. The guarantee is 0.2 s.
#[test]
fn slewed_clocks_prolong_denials_slightly() {
    let (cache, time) = cache_of(DEFAULT_BOUND);
    deny_for(&cache, request(0), Micros::new(1_000_000));
    let start = cache.clock.now();
    for (at_redis, is_kept) in [(1_000_000, true), (1_180_000, true), (1_200_000, false)] {
        let (slow, fast) = (12 - 1, 12 + 1);
        time.store(start + at_redis * slow / fast, Ordering::SeqCst);
        assert_eq!(is_remembered(&cache, 0), is_kept, "{at_redis} µs later in Redis");
    }
}

#[test]
fn long_keys_are_not_remembered() {
    let (cache, _) = cache();
    let policy = Policy::fixed_window_counter("p", Quota::per_minute(9)).unwrap();
    for (bytes, is_kept) in [(LONGEST, true), (LONGEST + 1, false)] {
        let key = Key::new(vec![b'k'; bytes]);
        let denied = || ticket(&Charge::new(&policy, &key, Cost::ONE));
        deny_for(&cache, denied(), Micros::new(60_000_000));
        assert_eq!(remembers(&cache, &denied()), is_kept, "{bytes} bytes");
    }
}

#[test]
fn dry_charges_and_permits_are_not_remembered() {
    let window = Policy::fixed_window_counter("p", Quota::per_minute(9)).unwrap();
    let permits = Policy::concurrent_requests("p", 9, Duration::from_secs(60)).unwrap();
    let key = Key::new("k");
    let charge = Charge::new(&window, &key, Cost::ONE);
    for (charge, is_remembered) in [
        (charge, true),
        (Charge { dry: true, ..charge }, false),
        (Charge { policy: &permits, ..charge }, false),
    ] {
        let (cache, _) = cache();
        deny_for(&cache, ticket(&charge), Micros::new(60_000_000));
        assert_eq!(remembers(&cache, &ticket(&charge)), is_remembered, "{charge:?}");
    }
}

#[test]
fn cache_empties_without_denials() {
    let (cache, time) = cache();
    deny(&cache, 0);
    time.fetch_add(60_000_000, Ordering::SeqCst);
    let now = cache.clock.now();
    let decision = Decision { outcome: Outcome::WouldAllow, ..Decision::undecided(9) };
    let verdict = Verdict::single(true, Timestamp::from_micros(now), decision);
    cache.learn(&request(1), &verdict, &[], now..now);
    assert_eq!(cache.count.load(Ordering::Relaxed), 0);
}
