use serde::Deserialize;

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
    /// Input tokens that the model's server wrote to its cache.
    pub cache_write: u64,
    /// Output tokens, including the reasoning.
    pub output: u64,
    /// Output tokens of the reasoning, visible or hidden.
    pub reasoning: u64,
}

impl Usage {
    /// Makes a usage without cached tokens or reasoning.
    pub const fn new(input: u64, output: u64) -> Self {
        Self { input, cached_input: 0, cache_write: 0, output, reasoning: 0 }
    }

    /// Returns the input tokens of all kinds.
    pub const fn total_input(&self) -> u64 {
        self.input.saturating_add(self.cached_input).saturating_add(self.cache_write)
    }

    /// Returns the input and output tokens.
    pub const fn total(&self) -> u64 {
        self.total_input().saturating_add(self.output)
    }
}

/// A response's `usage` object, with the names from all APIs.
#[derive(Clone, Copy, Default, Deserialize)]
pub(crate) struct Reported {
    // OpenAI chat completions and embeddings.
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<InputDetails>,
    completion_tokens_details: Option<OutputDetails>,
    // OpenAI responses, Anthropic messages.
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    // OpenAI responses.
    input_tokens_details: Option<InputDetails>,
    output_tokens_details: Option<OutputDetails>,
    // Anthropic messages.
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
}

#[derive(Clone, Copy, Default, Deserialize)]
struct InputDetails {
    cached_tokens: Option<u64>,
}

#[derive(Clone, Copy, Default, Deserialize)]
struct OutputDetails {
    reasoning_tokens: Option<u64>,
}

impl Reported {
    /// Adds a later report of the same response. Its numbers replace earlier ones.
    pub(crate) fn update(&mut self, later: Self) {
        *self = Self {
            prompt_tokens: later.prompt_tokens.or(self.prompt_tokens),
            completion_tokens: later.completion_tokens.or(self.completion_tokens),
            prompt_tokens_details: later.prompt_tokens_details.or(self.prompt_tokens_details),
            completion_tokens_details: later
                .completion_tokens_details
                .or(self.completion_tokens_details),
            input_tokens: later.input_tokens.or(self.input_tokens),
            output_tokens: later.output_tokens.or(self.output_tokens),
            input_tokens_details: later.input_tokens_details.or(self.input_tokens_details),
            output_tokens_details: later.output_tokens_details.or(self.output_tokens_details),
            cache_read_input_tokens: later.cache_read_input_tokens.or(self.cache_read_input_tokens),
            cache_creation_input_tokens: later
                .cache_creation_input_tokens
                .or(self.cache_creation_input_tokens),
        };
    }

    /// Removes the output, which is preliminary in a stream's first event.
    pub(crate) const fn without_output(mut self) -> Self {
        self.output_tokens = None;
        self
    }

    /// The input tokens by kind, if they are reported.
    pub(crate) fn input(&self) -> Option<Usage> {
        let reported = self.prompt_tokens.or(self.input_tokens)?;
        let details = self.prompt_tokens_details.or(self.input_tokens_details);
        let cached = details.and_then(|details| details.cached_tokens);
        let cached = cached.or(self.cache_read_input_tokens).unwrap_or(0);
        let written = self.cache_creation_input_tokens.unwrap_or(0);
        // OpenAI's number includes the cached tokens. A proxy may add Anthropic's names to it.
        let is_total = self.prompt_tokens.is_some() || self.input_tokens_details.is_some();
        let [cached_input, cache_write] = if is_total {
            let cached = cached.min(reported);
            [cached, written.min(reported - cached)]
        } else {
            [cached, written]
        };
        let input = if is_total { reported - cached_input - cache_write } else { reported };
        Some(Usage { input, cached_input, cache_write, ..Usage::default() })
    }

    /// The output and its reasoning, if they are reported. Embeddings report only an input.
    pub(crate) fn output(&self) -> Option<(u64, u64)> {
        let is_embedding = self.prompt_tokens.is_some() && self.completion_tokens.is_none();
        let output = self.completion_tokens.or(self.output_tokens);
        let output = output.or_else(|| is_embedding.then_some(0))?;
        let details = self.completion_tokens_details.or(self.output_tokens_details);
        let reasoning = details.and_then(|details| details.reasoning_tokens).unwrap_or(0);
        Some((output, reasoning.min(output)))
    }
}
