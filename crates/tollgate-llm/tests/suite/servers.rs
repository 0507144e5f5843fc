//! Real model servers' responses. The gateway's tests also send them over HTTP.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::Value;
use tollgate_llm::{Call, DOLLAR, Model, Models, Price};

pub(crate) fn all_cases() -> impl Iterator<Item = Value> {
    let lines = include_str!("../servers.jsonl").lines();
    lines.map(|line| serde_json::from_str(line).expect("a valid line"))
}

/// Returns the cases in which the body shows the cost.
fn cases() -> impl Iterator<Item = Value> {
    all_cases().filter(|case| {
        let has_body = !case["chunks"].as_array().expect("a list").is_empty();
        let is_plain = case["encoding"].as_str().is_none_or(|coding| coding == "identity");
        has_body && is_plain && case["status"].is_null()
    })
}

/// The default model costs 1 per input token and 4 per output token, and the cheap model 0 and 1.
pub(crate) fn models() -> Models {
    let other = Model::new(Price::per_million(DOLLAR, 4 * DOLLAR)).max_output(1000);
    let cheap = Model::new(Price::per_million(0, DOLLAR)).max_output(1000);
    Models::new(other).with("cheap", cheap)
}

proptest! {
    #[test]
    fn any_chunking_costs_the_same_and_loses_nothing(cuts in vec(any::<Index>(), 0..8)) {
        let models = models();
        for case in cases() {
            let name = &case["case"];
            let path = case["path"].as_str().expect("a path").split('?').next().expect("a path");
            let request = case["request"].to_string();
            let (call, _) = Call::parse(path, request.as_bytes(), &models).expect("a request");
            let chunks = case["chunks"].as_array().expect("a list");
            let chunks = chunks.iter().map(|chunk| chunk.as_str().expect("a text"));
            let response: String = chunks.collect();
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(response.len() + 1)).collect();
            cuts.sort_unstable();
            let mut meter = call.meter(case["type"].as_str().expect("a type"));
            let (mut received, mut start) = (Vec::new(), 0);
            for cut in cuts.into_iter().chain([response.len()]) {
                received.extend_from_slice(&meter.read(&response.as_bytes()[start..cut]));
                start = cut;
            }
            received.extend(meter.finish());
            let hidden = case["hidden"].as_str().unwrap_or_default();
            let expected = response.replacen(hidden, "", usize::from(!hidden.is_empty()));
            prop_assert_eq!(String::from_utf8_lossy(&received), expected, "{}", name);
            prop_assert_eq!(Value::from(meter.price()), case["charged"].clone(), "{}", name);
        }
    }
}
