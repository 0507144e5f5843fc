//! The sizes of states, which documents promise.

use tollgate_core::algorithm::{
    calendar_window_counter, fixed_window_counter, leaky_bucket, sliding_window_counter,
    token_bucket,
};

#[test]
fn state_sizes_match_documentation() {
    for (algorithm, size) in [
        ("`token_bucket` with a", size_of::<token_bucket::State>()),
        ("`Refill::Interval`", size_of::<token_bucket::State>()),
        ("`leaky_bucket`", size_of::<leaky_bucket::State>()),
        ("`sliding_window_counter`", size_of::<sliding_window_counter::State>()),
        ("`fixed_window_counter`", size_of::<fixed_window_counter::State>()),
        ("with a calendar", size_of::<calendar_window_counter::State>()),
    ] {
        let mut rows = include_str!("../../../../docs/choosing.md").lines();
        let row = rows.find(|row| row.contains(algorithm)).expect("a row per algorithm");
        assert!(row.contains(&format!("{size} bytes")), "{size}: {row}");
    }
}
