/// A request's tokens by kind. The kinds are disjoint, except that `output` includes `reasoning`.
///
/// OpenAI includes cached tokens in the input, and Anthropic reports them separately. Here they are
/// always separate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Usage {
    /// Input tokens without those that a cache provided or stored.
    pub input: u64,
    /// Input tokens that the model's server read from its cache.
    pub cached_input: u64,
    /// Input tokens that the model's server wrote to its cache for the usual time.
    pub cache_write: u64,
    /// Input tokens that the model's server wrote to its cache for an hour.
    pub long_cache_write: u64,
    /// Output tokens, including the reasoning.
    pub output: u64,
    /// Output tokens of the reasoning, visible or hidden.
    pub reasoning: u64,
}

impl Usage {
    /// Makes a usage without cached tokens or reasoning.
    pub const fn new(input: u64, output: u64) -> Self {
        let (cached_input, cache_write, long_cache_write, reasoning) = (0, 0, 0, 0);
        Self { input, cached_input, cache_write, long_cache_write, output, reasoning }
    }

    /// Returns the input tokens of all kinds.
    pub const fn total_input(&self) -> u64 {
        let written = self.cache_write.saturating_add(self.long_cache_write);
        self.input.saturating_add(self.cached_input).saturating_add(written)
    }

    /// Returns the input and output tokens.
    pub const fn total(&self) -> u64 {
        self.total_input().saturating_add(self.output)
    }
}

/// A number in a response's `usage` object.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counter {
    /// The input, including cached tokens.
    Prompt,
    /// The input. OpenAI includes cached tokens, and Anthropic does not.
    Input,
    CacheRead,
    /// All written tokens, including [`LongCacheWrite`](Self::LongCacheWrite).
    CacheWrite,
    LongCacheWrite,
    Output,
    Reasoning,
    Total,
}

const COUNTERS: usize = 8;

impl Counter {
    /// The counter with this name in any API.
    pub(crate) const fn of(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"prompt_tokens" => Self::Prompt,
            b"input_tokens" => Self::Input,
            b"cached_tokens" | b"cache_read_input_tokens" | b"prompt_cache_hit_tokens" => {
                Self::CacheRead
            }
            b"cache_creation_input_tokens" | b"cache_creation_tokens" | b"cache_write_tokens" => {
                Self::CacheWrite
            }
            b"ephemeral_1h_input_tokens" => Self::LongCacheWrite,
            b"completion_tokens" | b"output_tokens" => Self::Output,
            b"reasoning_tokens" => Self::Reasoning,
            b"total_tokens" => Self::Total,
            _ => return None,
        })
    }

    /// Whether this number shows the output. It is preliminary in a stream's first event.
    pub(crate) const fn is_of_output(self) -> bool {
        matches!(self, Self::Output | Self::Reasoning | Self::Total)
    }
}

/// The numbers that a response has reported.
#[derive(Clone, Copy, Default)]
pub(crate) struct Reported {
    counts: [Option<u64>; COUNTERS],
    /// Whether the input has OpenAI's details, so it includes cached tokens.
    pub(crate) has_input_details: bool,
}

impl Reported {
    /// Adds a number. Streams report cumulative numbers, so the largest is the latest. Some servers
    /// later report zeros.
    pub(crate) fn add(&mut self, counter: Counter, count: u64) {
        let known = &mut self.counts[counter as usize];
        *known = (*known).max(Some(count));
    }

    const fn get(&self, counter: Counter) -> Option<u64> {
        self.counts[counter as usize]
    }

    pub(crate) const fn total(&self) -> Option<u64> {
        self.get(Counter::Total)
    }

    /// The input tokens by kind, if they are reported. No request has zero tokens.
    pub(crate) fn input(&self) -> Option<Usage> {
        let direct = self.direct_input();
        direct.or_else(|| {
            let rest = self.total()?.checked_sub(self.direct_output()?.0)?;
            (rest > 0).then_some(Usage::new(rest, 0))
        })
    }

    /// The output and its reasoning, if they are reported. Embeddings report only an input.
    pub(crate) fn output(&self) -> Option<(u64, u64)> {
        let direct = self.direct_output();
        // Some servers count the reasoning only in the total.
        let rest = self.direct_input().zip(self.total());
        let rest = rest.map(|(input, total)| (total.saturating_sub(input.total_input()), 0));
        let (output, _) = direct.max(rest)?;
        Some((output, direct.map_or(0, |(_, reasoning)| reasoning)))
    }

    fn direct_input(&self) -> Option<Usage> {
        let count = |counter| self.get(counter).unwrap_or(0);
        let (prompt, input) = (count(Counter::Prompt), count(Counter::Input));
        let reported = prompt.max(input);
        let cached_input = count(Counter::CacheRead);
        let long_cache_write = count(Counter::LongCacheWrite);
        let written = count(Counter::CacheWrite).max(long_cache_write);
        let cache_write = written - long_cache_write;
        let cached = cached_input.saturating_add(written);
        // Some proxies add Anthropic's names and numbers to OpenAI's names.
        let includes_cached = (prompt > 0 || self.has_input_details) && cached <= reported;
        let input = if includes_cached { reported - cached } else { reported };
        let input =
            Usage { input, cached_input, cache_write, long_cache_write, ..Usage::default() };
        (input.total_input() > 0).then_some(input)
    }

    fn direct_output(&self) -> Option<(u64, u64)> {
        let output = self.get(Counter::Output);
        let reasoning = self.get(Counter::Reasoning);
        match (output, reasoning.unwrap_or(0)) {
            (None, 0) => None,
            // The completion cannot include more than itself, so the reasoning is beside it.
            (output, reasoning) if Some(reasoning) > output => {
                Some((output.unwrap_or(0).saturating_add(reasoning), reasoning))
            }
            (output, reasoning) => Some((output?, reasoning)),
        }
    }
}
