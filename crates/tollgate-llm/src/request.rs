use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

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
    /// The maximum number of output tokens that the request allows, summed over all its choices.
    pub max_output: Option<u64>,
    /// Whether the response is a stream.
    pub streams: bool,
    /// Whether the request sets `stream_options.include_usage`.
    pub includes_usage: bool,
    /// The bytes of all text.
    pub text_bytes: u64,
    /// The numbers in the input. Embeddings accept tokens as numbers.
    pub numbers: u64,
    /// The images and files in the input.
    pub attachments: u64,
    /// The tokens of all text, if a [tokenizer](crate::Models::tokenizer) counts them.
    pub text_tokens: Option<u64>,
    has_stream_options: bool,
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
        Self::parse_with(body, None)
    }

    pub(crate) fn parse_with(
        body: &[u8],
        tokenizer: Option<&Tokenizer>,
    ) -> Result<Self, RequestError> {
        let mut json = serde_json::Deserializer::from_slice(body);
        let request = json.deserialize_map(RequestVisitor { tokenizer });
        let request = request.and_then(|request| json.end().map(|()| request));
        request.map_err(|error| RequestError { line: error.line(), column: error.column() })
    }

    /// Estimates the tokens: the input by its size, and the maximum output that the request allows.
    pub fn estimate(&self, model: &Model) -> Usage {
        let text = self.text_tokens.unwrap_or_else(|| model.text(self.text_bytes));
        let input = text.saturating_add(self.numbers);
        let input = input.saturating_add(model.attachments(self.attachments));
        Usage::new(input, self.max_output.unwrap_or_else(|| model.default_output()))
    }

    /// Returns the body with `stream_options.include_usage`, which lets streamed chat completions
    /// report their usage. `None` if the response is not a stream, or if the request has its own
    /// `stream_options`, which remain.
    ///
    /// Only for chat completions: the other APIs reject this member. The stream has an additional
    /// last event, which [`UsageEventFilter`](crate::UsageEventFilter) removes.
    pub fn ask_for_usage(&self, body: &[u8]) -> Option<Vec<u8>> {
        if !self.streams || self.has_stream_options {
            return None;
        }
        let start = body.iter().position(|byte| *byte == b'{')? + 1;
        // The object has at least `stream`, so a comma must follow.
        Some(
            [&body[..start], br#""stream_options":{"include_usage":true},"#, &body[start..]]
                .concat(),
        )
    }
}

/// Returns the tokens of a text.
pub(crate) type Tokenizer = dyn Fn(&str) -> u64 + Send + Sync;

struct RequestVisitor<'t> {
    tokenizer: Option<&'t Tokenizer>,
}

impl<'de> Visitor<'de> for RequestVisitor<'_> {
    type Value = Request;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a request to a model")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Request, A::Error> {
        let mut request = Request::default();
        let (mut model, mut streams, mut options) = (None, None, None);
        let (mut choices, mut maxima) = (None, [None; MAXIMA.len()]);
        while let Some(name) = members.next_key::<String>()? {
            if let Some(kind) = MAXIMA.iter().position(|it| *it == name) {
                once(&mut maxima[kind], &mut members)?;
                continue;
            }
            match &*name {
                "model" => once(&mut model, &mut members)?,
                "stream" => once(&mut streams, &mut members)?,
                "n" => once(&mut choices, &mut members)?,
                "stream_options" => once(&mut options, &mut members)?,
                _ => {
                    let request = &mut request;
                    let mut count =
                        Count { request, tokenizer: self.tokenizer, is_attachment: false };
                    count.text(&name);
                    members.next_value_seed(count)?;
                }
            }
        }
        // A request with two maxima is ambiguous, so the higher one counts.
        let maximum = maxima.into_iter().flatten().flatten().max();
        let choices: u64 = choices.flatten().unwrap_or(1);
        request.max_output = maximum.map(|tokens: u64| tokens.saturating_mul(choices.max(1)));
        request.model = model.flatten().unwrap_or_default();
        request.streams = streams.flatten().unwrap_or(false);
        request.has_stream_options = options.is_some();
        let options: StreamOptions = options.flatten().unwrap_or_default();
        request.includes_usage = options.include_usage.unwrap_or(false);
        Ok(request)
    }
}

/// The names of the maximum: chat completions (new and old), responses. Anthropic has the second.
const MAXIMA: [&str; 3] = ["max_completion_tokens", "max_tokens", "max_output_tokens"];

#[derive(Default, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

/// Reads a member that may be null and must not occur twice.
fn once<'de, A, T>(value: &mut Option<Option<T>>, members: &mut A) -> Result<(), A::Error>
where
    A: MapAccess<'de>,
    T: Deserialize<'de>,
{
    if value.is_some() {
        return Err(A::Error::custom("a member occurs twice"));
    }
    *value = Some(members.next_value()?);
    Ok(())
}

/// Counts the text in a value.
struct Count<'a> {
    request: &'a mut Request,
    tokenizer: Option<&'a Tokenizer>,
    /// Whether the value belongs to a member for an image or a file.
    is_attachment: bool,
}

/// The members that contain an image or file in base64, or its URL.
const ATTACHMENTS: [&str; 4] = ["url", "image_url", "data", "file_data"];

impl<'de> DeserializeSeed<'de> for Count<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Count<'_> {
    fn text(&mut self, text: &str) {
        self.request.text_bytes += text.len() as u64;
        if let Some(tokenizer) = self.tokenizer {
            let tokens = self.request.text_tokens.get_or_insert_default();
            *tokens = tokens.saturating_add(tokenizer(text));
        }
    }

    const fn number<E>(self) -> Result<(), E> {
        self.request.numbers += 1;
        Ok(())
    }
}

impl<'de> Visitor<'de> for Count<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_str<E>(mut self, text: &str) -> Result<(), E> {
        // Only data without white space is an attachment, so a client cannot hide prose here.
        if self.is_attachment && !text.contains(char::is_whitespace) {
            self.request.attachments += 1;
        } else {
            self.text(text);
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut members: A) -> Result<(), A::Error> {
        while let Some(name) = members.next_key::<String>()? {
            self.text(&name);
            let is_attachment = ATTACHMENTS.contains(&&*name);
            let (request, tokenizer) = (&mut *self.request, self.tokenizer);
            members.next_value_seed(Count { request, tokenizer, is_attachment })?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<(), A::Error> {
        let Self { request, tokenizer, .. } = self;
        let is_attachment = false;
        while values.next_element_seed(Count { request, tokenizer, is_attachment })?.is_some() {}
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        self.number()
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        self.number()
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        self.number()
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        self.number()
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}
