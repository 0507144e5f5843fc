mod count;
mod member;
mod visitor;

use std::ops::Range;

use serde::de::Deserializer;

use self::member::{member, with_member};
use self::visitor::RequestVisitor;
use crate::{Model, Usage};

/// A request to a model, without its text.
///
/// All text in the body counts for the estimate, including member names, because servers turn roles
/// and tool definitions into tokens too. Images and files (base64 or a URL) are attachments, and
/// their bytes do not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Request {
    /// The name of the model; empty if the request has none.
    pub model: String,
    /// The maximum number of output tokens that the request allows, summed over all its prompts and
    /// choices. A negative number means no maximum, because local servers read it like that.
    pub max_output: Option<u64>,
    /// Whether the response is a stream.
    pub streams: bool,
    /// Whether the request sets `stream_options.include_usage`.
    pub includes_usage: bool,
    /// Whether the work continues after the response.
    pub background: bool,
    /// The bytes of all text.
    pub text_bytes: u64,
    /// The numbers in the input. Embeddings accept tokens as numbers.
    pub numbers: u64,
    /// The images and files in the input.
    pub attachments: u64,
    /// The tokens of all text, if a [tokenizer](crate::Models::tokenizer) counts them.
    pub text_tokens: Option<u64>,
    /// How many texts the model writes. 0 means a single text.
    outputs: u64,
    /// How many texts have no maximum.
    open_outputs: u64,
}

/// The error for a body that is not a model request in JSON, for example because it is compressed.
/// It contains no text from the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a model request in JSON, found something else at line {line} column {column}")]
pub struct RequestError {
    /// The line of the error, from 1.
    pub line: usize,
    /// The column of the error in bytes, from 1.
    pub column: usize,
}

impl Request {
    /// Parses a request body.
    ///
    /// # Errors
    /// The body is not a JSON object, a known member has the wrong type, or it occurs twice: the
    /// model's server might read the other occurrence.
    pub fn parse(body: &[u8]) -> Result<Self, RequestError> {
        Self::parse_with(body, false, None)
    }

    /// Parses a request, or a batch with the member `requests`.
    pub(crate) fn parse_with(
        body: &[u8],
        is_batch: bool,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<Self, RequestError> {
        let mut json = serde_json::Deserializer::from_slice(body);
        let request = json.deserialize_map(RequestVisitor { is_batch, tokenizer });
        let request = request.and_then(|request| json.end().map(|()| request));
        request.map_err(|error| RequestError { line: error.line(), column: error.column() })
    }

    /// Estimates the tokens: the input by its size, and the maximum output that the request allows.
    pub fn estimate(&self, model: &Model) -> Usage {
        let text = self.text_tokens.unwrap_or_else(|| model.text(self.text_bytes));
        let input = text.saturating_add(self.numbers);
        let input = input.saturating_add(model.attachments(self.attachments));
        Usage::new(input, self.output_of(model.default_output()))
    }

    /// The output if each text without a maximum has this many tokens.
    pub(crate) fn output_of(&self, each: u64) -> u64 {
        let open = self.open_outputs.max(u64::from(self.max_output.is_none()));
        self.max_output.unwrap_or(0).saturating_add(open.saturating_mul(each))
    }

    /// Sets a maximum for each text that has none.
    pub(crate) fn limit_output(&mut self, each: u64) {
        self.max_output = Some(self.output_of(each));
        self.open_outputs = 0;
    }

    /// The tokens of one of the texts that the model wrote.
    pub(crate) const fn share_of(&self, output: u64) -> u64 {
        if self.outputs > 1 { output.div_ceil(self.outputs) } else { output }
    }

    fn add(&mut self, other: Self) {
        let is_first = self.outputs == 0;
        if is_first {
            self.model = other.model;
        } else if self.model != other.model {
            self.model.clear();
        }
        self.text_bytes = self.text_bytes.saturating_add(other.text_bytes);
        self.numbers = self.numbers.saturating_add(other.numbers);
        self.attachments = self.attachments.saturating_add(other.attachments);
        let sum = |one: Option<u64>, other: Option<u64>| match (one, other) {
            (Some(one), Some(other)) => Some(one.saturating_add(other)),
            (one, other) => one.or(other),
        };
        self.text_tokens = sum(self.text_tokens, other.text_tokens);
        self.max_output = sum(self.max_output, other.max_output);
        self.outputs = self.outputs.saturating_add(other.outputs);
        self.open_outputs = self.open_outputs.saturating_add(other.open_outputs);
    }

    /// Returns the body with `stream_options.include_usage`, which lets streamed chat completions
    /// report their usage. Other `stream_options` remain. `None` if the response is not a stream, or if
    /// the request already has this option.
    ///
    /// Only for chat completions: the other APIs reject this member. The stream has an additional
    /// last event, which [`UsageEventFilter`](crate::UsageEventFilter) removes.
    pub fn ask_for_usage(&self, body: &[u8]) -> Option<Vec<u8>> {
        if !self.streams || self.includes_usage {
            return None;
        }
        let options = member(body, "stream_options");
        let options = options.filter(|options| body[options.clone()].starts_with(b"{"));
        let Some(Range { start, end }) = options else {
            return with_member(body, "stream_options", b"{\"include_usage\":true}");
        };
        let options = with_member(&body[start..end], "include_usage", b"true")?;
        Some([&body[..start], &options, &body[end..]].concat())
    }
}

/// Returns the tokens of a text.
pub(crate) type Tokenizer = dyn Fn(&str) -> u64 + Send + Sync;
