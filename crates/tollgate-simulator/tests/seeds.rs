//! The first seeds. `cargo xtask simulate` runs more.

use tollgate_simulator::{run, search};

#[test]
fn promises_hold_for_the_first_seeds() {
    let search = search(0..200, None);
    if let Some(run) = search.violating {
        panic!("{run}");
    }
    let counts = search.counts;
    println!("{counts:?}");
    // A simulation without denials, leases or failures would check little.
    assert!(counts.decided.iter().all(|count| *count > 300), "{counts:?}");
    assert!(counts.not_charged > 300 && counts.maybe_charged > 300, "{counts:?}");
    assert!(counts.corrections > 300, "{counts:?}");
    // 2000 seeds enter all branches.
    let holes = search.reached.holes();
    assert!(holes.len() < 15, "{holes:?}");
}

#[test]
fn a_seed_repeats_its_trace() {
    for seed in 0..5 {
        assert_eq!(run(seed), run(seed));
    }
}
