//! The length and the seeds for random tests.

use std::ops::Range;
use std::time::Duration;

use fastrand::Rng;
use tollgate_core::{Charge, Cost, Key, Micros};

/// Whether `TOLLGATE_LONG=1` requests long tests.
pub fn is_long() -> bool {
    std::env::var_os("TOLLGATE_LONG").is_some_and(|value| value == "1")
}

/// Returns the seeds for a random test. They start at the number in `TOLLGATE_SEED`. If the
/// variable is unset, each run uses different seeds.
///
/// The function prints the variable, and test runners show the output when a test fails.
pub fn seeds(count: u64) -> Range<u64> {
    let first = match std::env::var("TOLLGATE_SEED") {
        Ok(seed) => seed.parse().unwrap_or_else(|_| {
            panic!("TOLLGATE_SEED={seed}: expected a number such as 1000");
        }),
        // 32 bits are enough to avoid repetition, and short enough to type.
        Err(_) => fastrand::u32(..).into(),
    };
    println!("TOLLGATE_SEED={first} repeats this test");
    first..first.saturating_add(count)
}

/// Returns a single seed for a random test. See [`seeds`].
pub fn seed() -> u64 {
    seeds(1).start
}

/// Makes some of a request's charges dry, shadows, or low in priority. If all have the same key, some
/// requests may queue. A store over several machines need not let a request queue on two of them.
pub fn vary<'a>(
    rng: &mut Rng,
    charges: impl IntoIterator<Item = Charge<'a>>,
    may_queue: bool,
) -> Vec<Charge<'a>> {
    let mut charges: Vec<_> = charges.into_iter().collect();
    let same_key = |key: &Key| charges.iter().all(|charge| charge.key == key);
    let queues =
        may_queue && rng.u8(..4) == 0 && charges.first().is_some_and(|first| same_key(first.key));
    for charge in &mut charges {
        *charge = match rng.u8(..10) {
            0 => charge.dry(),
            1 | 2 => charge.shadow(),
            3 => charge.leaving(Cost::new(rng.u64(0..=charge.policy.capacity() / 2))),
            _ => *charge,
        };
        let can_queue = charge.policy.clone().with_queue(Duration::ZERO).is_ok();
        if queues && can_queue && rng.u8(..4) > 0 {
            charge.queue = Some(Micros::new(rng.u64(0..=3 * charge.policy.window().get())));
        }
    }
    charges
}
