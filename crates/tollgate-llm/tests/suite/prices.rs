use proptest::prelude::*;
use tollgate_llm::{DOLLAR, Price, Usage};

fn usage([input, cached_input, cache_write, output]: [u64; 4]) -> Usage {
    let mut usage = Usage::new(input, output);
    (usage.cached_input, usage.cache_write) = (cached_input, cache_write);
    usage
}

#[test]
fn each_kind_has_its_price() {
    // $3 and $15 per million tokens, $0.30 from the cache, $3.75 into the cache.
    let price = Price::per_million(3 * DOLLAR, 15 * DOLLAR)
        .cached_input(3 * DOLLAR / 10)
        .cache_write(15 * DOLLAR / 4);
    for (tokens, micro_dollars) in [
        ([1_000_000, 0, 0, 0], 3 * DOLLAR),
        ([0, 1_000_000, 0, 0], 300_000),
        ([0, 0, 1_000_000, 0], 3_750_000),
        ([0, 0, 0, 1_000_000], 15 * DOLLAR),
        ([10, 100, 10, 2], 30 + 30 + 38 + 30),
        ([0, 1, 0, 0], 1),
        ([0, 0, 0, 0], 0),
        ([10_u64.pow(18), 0, 0, 0], 3 * 10_u64.pow(18)),
        ([u64::MAX; 4], u64::MAX),
    ] {
        assert_eq!(price.of(&usage(tokens)), micro_dollars, "{tokens:?}");
    }
    let plain = Price::per_million(DOLLAR, 0);
    assert_eq!(plain.of(&usage([1, 2, 3, 4])), 6);
}

proptest! {
    /// Rounding up takes at most one unit more than the exact sum.
    #[test]
    fn price_is_the_sum_of_its_kinds(
        prices in any::<[u32; 4]>(),
        tokens in prop::array::uniform4(0..=1_u64 << 40),
    ) {
        let [input, cached, written, output] = prices.map(u64::from);
        let price = Price::per_million(input, output).cached_input(cached).cache_write(written);
        let exact: u128 = [input, cached, written, output]
            .into_iter()
            .zip(tokens)
            .map(|(price, tokens)| u128::from(price) * u128::from(tokens))
            .sum();
        prop_assert_eq!(u128::from(price.of(&usage(tokens))), exact.div_ceil(1_000_000));
    }

    #[test]
    fn more_tokens_never_cost_less(
        prices in any::<[u64; 4]>(),
        fewer in any::<[u64; 4]>(),
        added in any::<[u64; 4]>(),
    ) {
        let [input, cached, written, output] = prices;
        let price = Price::per_million(input, output).cached_input(cached).cache_write(written);
        let more: [u64; 4] = std::array::from_fn(|kind| fewer[kind].saturating_add(added[kind]));
        let (fewer, more) = (usage(fewer), usage(more));
        prop_assert!(price.of(&fewer) <= price.of(&more));
        prop_assert!(fewer.total() <= more.total());
    }
}
