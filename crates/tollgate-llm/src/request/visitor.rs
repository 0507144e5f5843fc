//! Reads a request's known members, and counts the text in all other members.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Number;

use super::count::Count;
use super::{Request, Tokenizer};

#[derive(Clone, Copy)]
pub(super) struct RequestVisitor<'t> {
    pub(super) is_batch: bool,
    pub(super) tokenizer: Option<&'t Tokenizer>,
}

impl<'de> Visitor<'de> for RequestVisitor<'_> {
    type Value = Request;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a request to a model")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Request, A::Error> {
        let tokenizer = self.tokenizer;
        let mut request = Request::default();
        let (mut model, mut streams, mut options, mut background) = (None, None, None, None);
        let (mut choices, mut candidates, mut maxima) =
            (None, None, [const { None }; MAXIMA.len()]);
        let mut prompts = 1;
        while let Some(name) = members.next_key::<String>()? {
            if let Some(kind) = MAXIMA.iter().position(|it| *it == name) {
                once(&mut maxima[kind], &mut members)?;
                continue;
            }
            match &*name {
                "model" => once(&mut model, &mut members)?,
                "stream" => once(&mut streams, &mut members)?,
                "background" => once(&mut background, &mut members)?,
                "n" => once(&mut choices, &mut members)?,
                "best_of" => once(&mut candidates, &mut members)?,
                "stream_options" => once(&mut options, &mut members)?,
                "requests" if self.is_batch => {
                    members.next_value_seed(Batch { request: &mut request, tokenizer })?;
                }
                _ => {
                    let request = &mut request;
                    let mut count = Count { request, tokenizer, is_attachment: false };
                    count.text(&name);
                    let texts = members.next_value_seed(count)?;
                    prompts = if name == "prompt" { texts.max(prompts) } else { prompts };
                }
            }
        }
        request.streams = streams.flatten().unwrap_or(false);
        request.background = background.flatten().unwrap_or(false);
        let options: StreamOptions = options.flatten().unwrap_or_default();
        request.includes_usage = options.include_usage.unwrap_or(false);
        if request.outputs > 0 {
            // A batch's requests have their own models and maxima.
            return Ok(request);
        }
        request.model = model.flatten().unwrap_or_default();
        // The server writes all candidates and returns the best choices.
        let outputs: Option<u64> = choices.flatten().max(candidates.flatten());
        request.outputs = outputs.unwrap_or(1).max(1).saturating_mul(prompts);
        request.open_outputs = request.outputs;
        // A request with two maxima is ambiguous, so the higher one counts.
        let maxima = maxima.iter().flatten().flatten();
        let maxima =
            maxima.map(maximum).collect::<Result<Vec<_>, _>>().map_err(A::Error::custom)?;
        if let Some(maximum) = maxima.into_iter().flatten().max() {
            request.limit_output(maximum);
        }
        Ok(request)
    }
}

/// Returns `None` for a negative number, which local servers read as no maximum.
fn maximum(number: &Number) -> Result<Option<u64>, &'static str> {
    let is_negative = number.as_i64().is_some_and(i64::is_negative);
    let tokens = number.as_u64().filter(|_| !is_negative);
    if tokens.is_some() || is_negative { Ok(tokens) } else { Err("a maximum is not whole") }
}

impl<'de> DeserializeSeed<'de> for RequestVisitor<'_> {
    type Value = Request;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Request, D::Error> {
        deserializer.deserialize_map(self)
    }
}

/// Adds a batch's requests. Each element has its request in the member `params`.
struct Batch<'a> {
    request: &'a mut Request,
    tokenizer: Option<&'a Tokenizer>,
}

impl<'de> DeserializeSeed<'de> for Batch<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Batch<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the requests of a batch")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        let Self { request, tokenizer } = self;
        while elements.next_element_seed(Batch { request: &mut *request, tokenizer })?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let visitor = RequestVisitor { is_batch: false, tokenizer: self.tokenizer };
        while let Some(name) = members.next_key::<String>()? {
            if name == "params" {
                self.request.add(members.next_value_seed(visitor)?);
            } else {
                members.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
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
