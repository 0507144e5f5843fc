//! The usual output, which requests without a maximum reserve.

use proptest::collection::vec;
use proptest::prelude::*;
use tollgate_llm::OutputHistory;

proptest! {
    #[test]
    fn percentile_is_at_most_25_percent_too_high(
        outputs in vec(prop_oneof![0_u64..100, 0_u64..100_000], 20..100),
    ) {
        let history = OutputHistory::new(2);
        for output in &outputs {
            history.record("client", "model", *output);
        }
        let mut sorted = outputs;
        sorted.sort_unstable();
        let exact = sorted[(sorted.len() * 19).div_ceil(20) - 1];
        let learned = history.percentile_95("client", "model").unwrap();
        prop_assert!((exact..=exact + exact / 4).contains(&learned), "{exact} {learned}");
    }
}

#[test]
fn recent_responses_count_more() {
    let history = OutputHistory::new(2);
    let record = |output, times| (0..times).for_each(|_| history.record("client", "model", output));
    record(1_000, 1_000);
    assert!(history.percentile_95("client", "model").unwrap() >= 1_000);
    record(10, 5_000);
    assert!(history.percentile_95("client", "model").unwrap() < 20);
}

#[test]
fn unused_pairs_disappear() {
    let history = OutputHistory::new(200);
    let record = |client: &str, times| (0..times).for_each(|_| history.record(client, "model", 7));
    record("unused", 20);
    for client in 0..1_000 {
        record("used", 20);
        record(&client.to_string(), 1);
    }
    assert_eq!(history.percentile_95("used", "model"), Some(7));
    assert_eq!(history.percentile_95("unused", "model"), None);
}

#[test]
fn largest_output_has_a_bucket() {
    let history = OutputHistory::new(2);
    (0..20).for_each(|_| history.record("client", "model", u64::MAX));
    assert_eq!(history.percentile_95("client", "model"), Some((1 << 23) - 1));
}
