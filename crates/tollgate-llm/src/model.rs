use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use crate::name::shorter_names;
use crate::request::Tokenizer;
use crate::{Request, RequestError, Usage};

/// One dollar in micro-dollars, the unit for prices and for a policy's quota in money.
pub const DOLLAR: u64 = 1_000_000;

/// The price per million tokens, in micro-dollars (10⁻⁶ dollars). Any other currency works too, if
/// prices and policy use the same currency.
///
/// For example, `Price::per_million(DOLLAR / 4, 2 * DOLLAR)` is $0.25 per million input tokens and
/// $2 per million output tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Price {
    input: u64,
    cached_input: u64,
    cache_write: u64,
    long_cache_write: u64,
    output: u64,
}

impl Price {
    /// Makes a price of input and output tokens. Tokens that the server reads from its cache or writes
    /// to it cost the same as other input. If it caches them for an hour, they cost twice as much,
    /// because Anthropic charges that.
    pub const fn per_million(input: u64, output: u64) -> Self {
        let long_cache_write = input.saturating_mul(2);
        Self { input, cached_input: input, cache_write: input, long_cache_write, output }
    }

    /// Sets the price per million input tokens that the model's server read from its cache.
    pub const fn cached_input(mut self, per_million: u64) -> Self {
        self.cached_input = per_million;
        self
    }

    /// Sets the price per million input tokens that the model's server wrote to its cache.
    pub const fn cache_write(mut self, per_million: u64) -> Self {
        self.cache_write = per_million;
        self
    }

    /// Sets the price per million input tokens that the model's server wrote to its cache for an
    /// hour.
    pub const fn long_cache_write(mut self, per_million: u64) -> Self {
        self.long_cache_write = per_million;
        self
    }

    /// Returns the price of these tokens in micro-dollars, rounded up. It is at most `u64::MAX`.
    pub fn of(&self, usage: &Usage) -> u64 {
        let kinds = [
            (self.input, usage.input),
            (self.cached_input, usage.cached_input),
            (self.cache_write, usage.cache_write),
            (self.long_cache_write, usage.long_cache_write),
            (self.output, usage.output),
        ];
        let prices = kinds.map(|(price, tokens)| u128::from(price) * u128::from(tokens));
        let sum = prices.into_iter().fold(0_u128, u128::saturating_add);
        u64::try_from(sum.div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }
}

/// A model: its price, and how to estimate its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Model {
    price: Price,
    max_output: u64,
    tokens_per_kilobyte: u64,
    tokens_per_attachment: u64,
}

impl Model {
    /// Makes a model with this price, and with the default estimates of the methods below.
    pub const fn new(price: Price) -> Self {
        Self { price, max_output: 4096, tokens_per_kilobyte: 300, tokens_per_attachment: 1500 }
    }

    /// Sets the output tokens that a request without a maximum reserves. The default is 4096. Use 0
    /// for embeddings.
    pub const fn max_output(mut self, tokens: u64) -> Self {
        self.max_output = tokens;
        self
    }

    /// Sets the tokens per 1000 bytes of text. The default is 300, because English has about 250,
    /// and a high estimate is refunded after the response. Source code and other languages have
    /// more.
    pub const fn tokens_per_kilobyte(mut self, tokens: u64) -> Self {
        self.tokens_per_kilobyte = tokens;
        self
    }

    /// Sets the tokens per image or file in the request. The default is 1500, a large image.
    pub const fn tokens_per_attachment(mut self, tokens: u64) -> Self {
        self.tokens_per_attachment = tokens;
        self
    }

    /// Returns the price of the model.
    pub const fn price(&self) -> &Price {
        &self.price
    }

    pub(crate) const fn default_output(&self) -> u64 {
        self.max_output
    }

    pub(crate) const fn text(&self, bytes: u64) -> u64 {
        bytes.saturating_mul(self.tokens_per_kilobyte).div_ceil(1000)
    }

    pub(crate) const fn attachments(&self, number: u64) -> u64 {
        number.saturating_mul(self.tokens_per_attachment)
    }
}

/// Models by name, with a default for other names.
///
/// The client chooses the name, so give the default the price of the most expensive model that your
/// server offers, or reject names that you do not know.
///
/// A name also applies to its dated versions, builds and previews, and with a vendor in front:
/// `gpt-4o` to `gpt-4o-2024-08-06` and `openai/gpt-4o`, but not to `gpt-4o-mini` or `gpt-4`. An
/// exact match has precedence.
#[derive(Clone)]
#[must_use]
pub struct Models {
    other: Model,
    named: HashMap<String, Model>,
    tokenizer: Option<Arc<Tokenizer>>,
    keeps_stream_options: bool,
}

impl Models {
    /// Makes a table with a default model for all names that it does not contain.
    pub fn new(other: Model) -> Self {
        Self { other, named: HashMap::new(), tokenizer: None, keeps_stream_options: false }
    }

    /// Adds a model.
    pub fn with(mut self, name: impl Into<String>, model: Model) -> Self {
        self.named.insert(name.into(), model);
        self
    }

    /// Counts a request's tokens instead of estimating them by size. `tokens` receives each text
    /// separately, so the count does not include the server's framing of messages.
    ///
    /// For example, with the crate `tiktoken-rs`: `.tokenizer(|text| o200k_base_singleton()
    /// .encode_ordinary(text).len() as u64)`. A tokenizer takes far more processor time than the rest
    /// of the decision.
    pub fn tokenizer(mut self, tokens: impl Fn(&str) -> u64 + Send + Sync + 'static) -> Self {
        self.tokenizer = Some(Arc::new(tokens));
        self
    }

    /// Does not change `stream_options` of streamed chat completions, because some servers reject this
    /// member. Streams that report no usage are charged by their text.
    pub const fn keep_stream_options(mut self) -> Self {
        self.keeps_stream_options = true;
        self
    }

    pub(crate) const fn adds_stream_options(&self) -> bool {
        !self.keeps_stream_options
    }

    pub(crate) fn parse(&self, body: &[u8], is_batch: bool) -> Result<Request, RequestError> {
        Request::parse_with(body, is_batch, self.tokenizer.as_deref())
    }

    /// Returns the model with this name, or the default.
    pub fn get(&self, name: &str) -> &Model {
        shorter_names(name).find_map(|name| self.named.get(name)).unwrap_or(&self.other)
    }
}

impl fmt::Debug for Models {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { other, named, tokenizer, keeps_stream_options } = self;
        f.debug_struct("Models")
            .field("other", other)
            .field("named", named)
            .field("has_tokenizer", &tokenizer.is_some())
            .field("keeps_stream_options", keeps_stream_options)
            .finish()
    }
}
