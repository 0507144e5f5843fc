//! Budgets for language models.

use super::levels::LlmLevels;
use super::options::Concurrency;
use super::path::Path;
use super::value_types::{AtOnce, Megabytes, OnError, Units};
use crate::file::format;
use crate::yaml::typed::{Flag, Named, Short, Whole, section};

section! {
    /// Budgets of each client for requests to language models: OpenAI's chat completions, responses
    /// and embeddings, Anthropic's messages, and compatible servers. A request reserves its estimated
    /// tokens and their price, and pays for the usage that the response reports. See
    /// [language models](how-to/language-models.md).
    keys Llm = "llm" {
        /// The paths of the API. Default: all paths that end with `/completions`, `/responses`,
        /// `/embeddings`, `/messages` or `/batches`. Only POST requests are limited.
        optional path: Path,
        /// The requests per minute: the policy `requests`.
        optional requests_per_minute: Units,
        /// The input and output tokens per minute: the policy `tokens`.
        optional tokens_per_minute: Units,
        /// The amount of money per calendar month, such as `50` or `50 USD`: the policy `budget`, in
        /// millionths. Clients without a budget get 429 until the next month.
        optional monthly_budget: format::Money,
        /// The time zone of the month.
        default time_zone: format::TimeZone = "UTC",
        /// The maximum number of requests in flight: the policy `llm/inflight`.
        optional concurrency: Short<AtOnce, Concurrency>,
        /// Budgets that several clients share, such as the budget of each team.
        optional levels: LlmLevels,
        /// Prices and estimates by model name. A name includes its dated versions, builds and
        /// previews, and a vendor in front of it. `other` is for all models that are not listed, and
        /// `monthlyBudget` requires it.
        optional models: Models,
        /// Whether a streamed chat completion gets `stream_options.include_usage`. Write `false` for a
        /// server that rejects it; such a stream pays for its text.
        default add_stream_options: Flag = "true",
        /// How to treat requests while the store is unavailable. Default:
        /// `rateLimiter.onStoreError`.
        optional on_store_error: OnError,
        /// The maximum request body in MiB that the gateway reads before it decides. For a larger
        /// request the size counts as text, the model is `other`, and the rest of the body is
        /// forwarded as it arrives.
        default max_read as "maxReadMegabytes": Megabytes<1, 64> = "4",
    }

    /// Models by name.
    keys Models = "llm.models" {
        /// A model.
        others models: Named<format::Text, ModelPrice>,
    }

    /// The prices of a model per million tokens, in the currency of `monthlyBudget`, and how to
    /// estimate its tokens.
    keys ModelPrice = "llm.models.NAME" {
        /// The price of input tokens.
        default input: format::Price = "0",
        /// The price of input tokens that the model's server read from its cache. Default: `input`.
        optional cached_input: format::Price,
        /// The price of input tokens that the model's server wrote to its cache. Default: `input`.
        optional cache_write: format::Price,
        /// The price of input tokens that the model's server wrote to its cache for an hour. Default:
        /// twice `input`.
        optional long_cache_write: format::Price,
        /// The price of output tokens, including reasoning.
        default output: format::Price = "0",
        /// The output tokens that each text without a maximum reserves, until the gateway has seen 20
        /// responses of the client and the model. Later it reserves what 95 % of them do not exceed.
        /// Default: 4096, or a quarter of `tokensPerMinute` if that is less.
        optional max_output: Whole<0, 100_000_000>,
        /// The estimated tokens per 1000 bytes of text.
        default tokens_per_kilobyte: Whole<1, 10_000> = "300",
        /// The estimated tokens of an image or a file.
        default tokens_per_attachment: Whole<0, 100_000_000> = "1500",
    }
}
