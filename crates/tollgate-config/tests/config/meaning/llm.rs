//! Budgets and prices of language models.

use tollgate_config::plan::LlmPlan;
use tollgate_llm::{Call, Price, Usage};

use super::with;

fn llm(rest: &str) -> LlmPlan {
    let plan = with(&format!("  llm: {{requestsPerMinute: 1, {rest}}}\n"));
    LlmPlan::clone(plan.routes[0].limits.apis[0].llm.as_ref().unwrap())
}

fn price(keys: &str) -> Price {
    *llm(&format!("models: {{other: {{{keys}}}}}")).models.get("").price()
}

const MILLION: u64 = 1_000_000;

#[test]
fn budgets_are_in_millionths() {
    for (written, expected) in [
        ("50", 50_000_000),
        ("49.99", 49_990_000),
        ("0.5", 500_000),
        ("0.05", 50_000),
        ("0.000001", 1),
        ("12.345678", 12_345_678),
        ("007.50", 7_500_000),
        ("50 USD", 50_000_000),
        ("1.25EUR", 1_250_000),
        ("3   KRW", 3_000_000),
    ] {
        let plan = llm(&format!("monthlyBudget: {written}, models: {{other: {{}}}}"));
        let policy = plan.budgets[0].policy().unwrap();
        assert_eq!(policy.capacity(), expected, "{written}");
    }
}

#[test]
fn prices_are_per_million_tokens() {
    for (written, expected) in
        [("2", 2 * MILLION), ("0.25", 250_000), ("0.025", 25_000), ("0.000001", 1), ("0", 0)]
    {
        let price = price(&format!("input: {written}"));
        assert_eq!(price.of(&Usage::new(MILLION, 0)), expected, "{written}");
    }
}

#[test]
fn cached_tokens_have_their_own_prices() {
    let cached = |keys: &str| {
        let price = price(keys);
        let of = |change: fn(&mut Usage)| {
            let mut usage = Usage::default();
            change(&mut usage);
            price.of(&usage) / MILLION
        };
        [
            of(|usage| usage.input = MILLION),
            of(|usage| usage.cached_input = MILLION),
            of(|usage| usage.cache_write = MILLION),
            of(|usage| usage.long_cache_write = MILLION),
            of(|usage| usage.output = MILLION),
        ]
    };
    for (keys, expected) in [
        ("", [0, 0, 0, 0, 0]),
        ("input: 5, output: 25", [5, 5, 5, 10, 25]),
        ("input: 5, cachedInput: 1", [5, 1, 5, 10, 0]),
        ("input: 5, cacheWrite: 6", [5, 5, 6, 10, 0]),
        ("input: 5, longCacheWrite: 7", [5, 5, 5, 7, 0]),
        ("input: 1, cachedInput: 2, cacheWrite: 3, longCacheWrite: 4, output: 5", [1, 2, 3, 4, 5]),
    ] {
        assert_eq!(cached(keys), expected, "{keys}");
    }
}

#[test]
fn stream_options_can_remain_unchanged() {
    for (keys, adds) in [
        ("tokensPerMinute: 10", true),
        ("tokensPerMinute: 10, addStreamOptions: true", true),
        ("tokensPerMinute: 10, addStreamOptions: false", false),
        ("models: {other: {}}, addStreamOptions: false", false),
        ("models: {a: {}}, addStreamOptions: false", false),
        ("models: {other: {}, a: {}}", true),
    ] {
        let models = llm(keys).models;
        let (_, changed) = Call::parse("/v1/completions", br#"{"stream": true}"#, &models).unwrap();
        assert_eq!(changed.is_some(), adds, "{keys}");
    }
}
