//! The system clock, and a clock that steps back.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tollgate_core::{
    Algorithm, Charge, Cost, Key, LeakyMode, Micros, Policy, Quota, ReceiptId, Settlement, Store,
    StoreExt, Timestamp,
};
use tollgate_memory::{Clock, ManualClock, MemoryStore};
use tollgate_store_tests::reference::Reference;
use tollgate_store_tests::seeds;

#[test]
fn system_clock_matches_system_time() {
    let system = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let shown = Duration::from_micros(MemoryStore::new().clock().now().as_micros());
    assert!(shown.abs_diff(system) < Duration::from_secs(60), "{shown:?} {system:?}");
}

#[test]
fn system_clock_runs_at_system_rate() {
    let store = MemoryStore::new();
    let around = Instant::now();
    let begin = store.clock().now();
    let within = Instant::now();
    std::thread::sleep(Duration::from_millis(20));
    let least = within.elapsed();
    let shown = Duration::from_micros(store.clock().now().since(begin).get());
    let most = around.elapsed();
    // Both count whole microseconds. The clock measures its counter's rate when it is created,
    // which is less exact on a busy machine. A wrong unit or factor would be off by more than that.
    let slack = Duration::from_micros(2) + most / 10;
    assert!(least <= shown + slack && shown <= most + slack, "{least:?} {shown:?} {most:?}");
}

/// Two processors' counters may differ, and a test may move its clock back. All keys exist before
/// the clock steps back, because a key that was swept would be missing at the earlier time.
#[test]
fn step_back_changes_no_answer() {
    for seed in seeds(20) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let clock = ManualClock::default();
        let store = MemoryStore::builder().clock(clock.clone()).build();
        let mut reference = Reference::default();
        let quota = Quota::new(7, Duration::from_micros(100));
        let mut policies: Vec<_> = Algorithm::ALL
            .map(|algorithm| Policy::new(format!("{algorithm}"), quota, algorithm).expect("builds"))
            .into();
        let queue = LeakyMode::Queue { max_wait: Some(Micros::new(40)) };
        let queue = Algorithm::LeakyBucket { mode: queue };
        policies.push(Policy::new("impatient", quota, queue).expect("builds"));
        let keys = [Key::from("a"), Key::from("b")];
        let begin = clock.now().as_micros();
        for (policy, key) in
            policies.iter().flat_map(|policy| keys.iter().map(move |key| (policy, key)))
        {
            let charges = [Charge::new(policy, key, Cost::ONE)];
            let verdict = store.decide(&charges).into_inner().expect("decides");
            assert_eq!(verdict, reference.decide(&charges, verdict.decided_at()));
        }
        for step in 0..500 {
            clock.set(Timestamp::from_micros(begin + rng.u64(0..300)));
            let first = rng.usize(..policies.len());
            let second = (first + rng.usize(1..policies.len())) % policies.len();
            let charge = |policy: usize, rng: &mut fastrand::Rng| {
                Charge::new(&policies[policy], &keys[rng.usize(..2)], Cost::new(rng.u64(0..9)))
            };
            let charges = [charge(first, &mut rng), charge(second, &mut rng)];
            let charges = &charges[..rng.usize(1..=2)];
            let verdict = store.decide(charges).into_inner().expect("decides");
            let expected = reference.decide(charges, verdict.decided_at());
            assert_eq!(verdict, expected, "seed {seed}, step {step}: {charges:#?}");
        }
    }
}

/// After a reset, the key is charged under other numbers in the same microsecond. The receipt from
/// before the reset must not refund these units.
#[test]
fn reset_voids_receipts_of_the_same_microsecond() {
    let per_minute = |limit| Policy::fixed_window_counter("p", Quota::per_minute(limit)).unwrap();
    let versions = [5, 7, 9].map(per_minute);
    let key = Key::from("k");
    // Before the reset, the key has one version or several.
    for before in [1_u8, 2] {
        let store = MemoryStore::builder().clock(ManualClock::default()).build();
        let charge = |policy: &Policy, cost| {
            let verdict = store.charge(policy, &key, Cost::new(cost)).into_inner().unwrap();
            let charges = [Charge::new(policy, &key, Cost::new(cost))];
            verdict.receipts(&charges, || ReceiptId(before.into())).next().unwrap()
        };
        let receipt = charge(&versions[0], 2);
        if before > 1 {
            charge(&versions[1], 2);
        }
        assert!(matches!(store.reset(&versions[0], &key).now(), Ok(Ok(()))));
        charge(&versions[2], 4);
        let Ok(settled) = store.settle(&receipt, Cost::ZERO).now() else { panic!("pending") };
        assert_eq!(settled.unwrap(), Settlement::Returned { units: 0 }, "{before}");
        let peek = store.charge(&versions[2], &key, Cost::ZERO).into_inner().unwrap();
        assert_eq!(peek.decisions()[0].remaining, 5, "{before}");
    }
}
