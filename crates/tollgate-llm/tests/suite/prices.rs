use proptest::prelude::*;
use tollgate_llm::{DOLLAR, Price, Usage};

/// Tokens by kind: input, cached, written to the cache, written for an hour, output.
fn usage([input, cached_input, cache_write, long_cache_write, output]: [u64; 5]) -> Usage {
    let mut usage = Usage::new(input, output);
    (usage.cached_input, usage.cache_write) = (cached_input, cache_write);
    usage.long_cache_write = long_cache_write;
    usage
}

#[test]
fn each_kind_has_its_price() {
    // $3 and $15 per million tokens, $0.30 from the cache, $3.75 and $6 into the cache.
    let price = Price::per_million(3 * DOLLAR, 15 * DOLLAR)
        .cached_input(3 * DOLLAR / 10)
        .cache_write(15 * DOLLAR / 4);
    for (tokens, micro_dollars) in [
        ([1_000_000, 0, 0, 0, 0], 3 * DOLLAR),
        ([0, 1_000_000, 0, 0, 0], 300_000),
        ([0, 0, 1_000_000, 0, 0], 3_750_000),
        ([0, 0, 0, 1_000_000, 0], 6 * DOLLAR),
        ([0, 0, 0, 0, 1_000_000], 15 * DOLLAR),
        ([10, 100, 10, 3, 2], 30 + 30 + 38 + 18 + 30),
        ([0, 1, 0, 0, 0], 1),
        ([0, 0, 0, 0, 0], 0),
        ([10_u64.pow(18), 0, 0, 0, 0], 3 * 10_u64.pow(18)),
        ([u64::MAX; 5], u64::MAX),
    ] {
        assert_eq!(price.of(&usage(tokens)), micro_dollars, "{tokens:?}");
    }
    let plain = Price::per_million(DOLLAR, 0);
    // Without their own prices, cached tokens cost the input, and for an hour twice as much.
    assert_eq!(plain.of(&usage([1, 20, 300, 4000, 50_000])), 1 + 20 + 300 + 2 * 4000);
    let own = plain.long_cache_write(3 * DOLLAR);
    assert_eq!(own.of(&usage([1, 20, 300, 4000, 50_000])), 1 + 20 + 300 + 3 * 4000);
}

proptest! {
    /// A kind that counts twice, or with another kind's price, changes another kind's digits.
    #[test]
    fn kinds_are_priced_independently(tokens in prop::array::uniform5(0_u64..1000)) {
        // A price in dollars per token, with three digits for each kind.
        let price = |digits: u32| DOLLAR * 1000_u64.pow(digits);
        let prices = Price::per_million(price(0), price(1))
            .cached_input(price(2))
            .cache_write(price(3))
            .long_cache_write(price(4));
        let [input, output, cached, written, long] = tokens;
        let usage = usage([input, cached, written, long, output]);
        let digits = format!("{long:03}{written:03}{cached:03}{output:03}{input:03}");
        prop_assert_eq!(prices.of(&usage), digits.parse::<u64>().unwrap());
    }

    /// The smallest unit is a micro-dollar, so a fraction costs a full micro-dollar.
    #[test]
    fn parts_of_a_unit_are_rounded_up(price in 1_u64..1_000_000, units in 0_u64..1_000_000) {
        let price = Price::per_million(price, price);
        let whole = price.of(&Usage::new(units * 1_000_000, 0));
        let one_more = price.of(&Usage::new(units * 1_000_000 + 1, 0));
        let rest = price.of(&Usage::new(1, 0));
        prop_assert_eq!((one_more - whole, rest), (1, 1));
        // Only the sum is rounded, not each kind.
        let split = Usage::new(units * 1_000_000 - units.min(1), 1);
        prop_assert_eq!(price.of(&split), whole.max(1));
    }

    #[test]
    fn more_tokens_cost_more(
        fewer in prop::array::uniform5(0..=1_u64 << 40),
        kind in 0_usize..5,
        added in 1_u64..1 << 40,
    ) {
        let price = Price::per_million(3 * DOLLAR, 15 * DOLLAR)
            .cached_input(2 * DOLLAR)
            .cache_write(4 * DOLLAR)
            .long_cache_write(6 * DOLLAR);
        let mut more = fewer;
        more[kind] += added;
        let (fewer, more) = (usage(fewer), usage(more));
        prop_assert_eq!(more.total(), fewer.total() + added);
        let each = [3, 2, 4, 6, 15][kind];
        prop_assert_eq!(price.of(&more), price.of(&fewer) + each * added);
    }
}

#[test]
fn absurd_numbers_saturate() {
    let price = Price::per_million(u64::MAX, u64::MAX);
    for kind in 0..5 {
        let mut tokens = [1; 5];
        tokens[kind] = u64::MAX;
        let usage = usage(tokens);
        assert_eq!((price.of(&usage), usage.total()), (u64::MAX, u64::MAX), "{kind}");
    }
}
