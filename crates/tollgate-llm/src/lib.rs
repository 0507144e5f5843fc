//! Token usage of language models, for budgets in tokens and money.
//!
//! A service that forwards requests to a model needs three numbers: an estimate of the tokens before
//! the request, the actual tokens after the response, and their price. This crate reads them from
//! bytes. Without features it contains no I/O, HTTP or logging. With the feature `http`, it reads
//! requests and watches bodies of any framework. With `axum`, the layer `LlmBudget` applies all of it
//! around a router.
//!
//! ```
//! use tollgate_llm::{DOLLAR, Model, Models, Price, Request, UsageReader};
//!
//! // $0.25 per million input tokens, $2 per million output tokens. Other models cost more.
//! let mini = Price::per_million(DOLLAR / 4, 2 * DOLLAR).cached_input(DOLLAR / 40);
//! let other = Price::per_million(15 * DOLLAR, 120 * DOLLAR);
//! let models = Models::new(Model::new(other)).with("gpt-5-mini", Model::new(mini));
//!
//! let body = br#"{"model": "gpt-5-mini", "max_tokens": 200, "stream": true,
//!     "messages": [{"role": "user", "content": "What is six times seven?"}]}"#;
//! let request = Request::parse(body)?;
//! let model = models.get(&request.model);
//! // Before the request: the tokens and micro-dollars to reserve.
//! let estimate = request.estimate(model);
//! assert_eq!((estimate.total_input(), estimate.output), (15, 200));
//! assert_eq!(model.price().of(&estimate), 404);
//!
//! // After the response: the actual usage. Chunks may be split anywhere.
//! let mut reader = UsageReader::sse();
//! reader.read(b"data: {\"choices\": [{\"delta\": {\"content\": \"42\"}}]}\n\nda");
//! reader.read(b"ta: {\"choices\": [], \"usage\": {\"prompt_tokens\": 13,");
//! reader.read(b"\"completion_tokens\": 2}}\n\ndata: [DONE]\n\n");
//! let usage = reader.usage(&request, model);
//! assert_eq!((usage.total_input(), usage.output), (13, 2));
//! assert_eq!(model.price().of(&usage), 8);
//! # Ok::<(), tollgate_llm::RequestError>(())
//! ```
//!
//! # APIs
//!
//! | API | request | response | stream |
//! |---|---|---|---|
//! | OpenAI chat completions, and compatible servers | yes | yes | if the request sets `stream_options.include_usage` ([`Request::ask_for_usage`]) |
//! | OpenAI responses | yes | yes | yes |
//! | OpenAI embeddings | yes | yes | – |
//! | Anthropic messages | yes | yes | yes |
//! | batches of Anthropic messages | their sum | the estimate | – |
//!
//! The parsers need no setting, because they recognize each API by its field names. [`Call`] also
//! uses the path, which contains Azure's model.
//!
//! # Unusual input
//!
//! | input | result |
//! |---|---|
//! | a request that is not valid JSON, is compressed, or has a known member twice | [`RequestError`] with line and column, without text from the body |
//! | a request without `model` | the default of [`Models`] |
//! | a request without a maximum, or with a negative maximum | [`Model::max_output`] for each prompt and choice |
//! | a response that is cut off or reports no usage | estimated input, and output by the text's bytes |
//! | a complete response without text, and work in the background | the estimate, because the work continues |
//! | a compressed or otherwise unreadable response | the estimate; send `Accept-Encoding: identity` to the model's server |
//! | a response without a single byte that breaks off | the input only |
//! | a total that exceeds input and output | the rest is output, such as hidden reasoning |
//! | reasoning that exceeds the output | it is not part of the output, so both count |
//! | several reports | the largest numbers, because some servers report zeros at the end |
//! | a usage of 10^18 tokens | counted; sums and prices stop at `u64::MAX` |
//! | a token count that is zero, negative, a fraction or a string | as if this number was not reported |
//!
//! # Limits of the estimate
//!
//! A model's hidden reasoning is not in its stream. If a client leaves during the reasoning, its
//! output tokens are unknown, and it pays for its input and the visible text. The server's own
//! context, such as `previous_response_id`, is not part of the request. The reported usage has both.

mod api;
#[cfg(feature = "axum")]
mod budget;
mod call;
mod filter;
#[cfg(feature = "axum")]
mod layer;
#[cfg(feature = "http")]
mod message;
mod model;
mod name;
mod output;
mod reader;
mod request;
mod scan;
#[cfg(feature = "axum")]
mod service;
mod usage;

pub use api::Api;
#[cfg(feature = "axum")]
pub use budget::Budget;
pub use call::{Call, Meter};
pub use filter::UsageEventFilter;
#[cfg(feature = "axum")]
pub use layer::{LlmBudget, LlmBudgetBuilder};
#[cfg(feature = "http")]
pub use message::{Watch, WatchedBody, error_response};
pub use model::{DOLLAR, Model, Models, Price};
pub use output::OutputHistory;
pub use reader::UsageReader;
pub use request::{Request, RequestError};
#[cfg(feature = "axum")]
pub use service::LlmService;
pub use usage::Usage;

/// The example of the guide is compiled with the documentation tests.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../../../docs/how-to/language-models.md")]
struct Guide;
