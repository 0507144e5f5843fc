//! Counts a request's text.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::{Request, Tokenizer};

/// Counts the text in a value.
pub(super) struct Count<'a> {
    pub(super) request: &'a mut Request,
    pub(super) tokenizer: Option<&'a Tokenizer>,
    /// Whether the value belongs to a member for an image or a file.
    pub(super) is_attachment: bool,
}

/// The members that contain an image or file in base64, or its URL.
const ATTACHMENTS: [&str; 4] = ["url", "image_url", "data", "file_data"];

impl<'de> DeserializeSeed<'de> for Count<'_> {
    /// The number of prompts in the value. A number is a token, so it counts as 0.
    type Value = u64;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<u64, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Count<'_> {
    pub(super) fn text(&mut self, text: &str) {
        self.request.text_bytes += text.len() as u64;
        if let Some(tokenizer) = self.tokenizer {
            let tokens = self.request.text_tokens.get_or_insert_default();
            *tokens = tokens.saturating_add(tokenizer(text));
        }
    }

    const fn number<E>(self) -> Result<u64, E> {
        self.request.numbers += 1;
        Ok(0)
    }
}

impl<'de> Visitor<'de> for Count<'_> {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_str<E>(mut self, text: &str) -> Result<u64, E> {
        // Only data without white space is an attachment, so a client cannot hide prose here.
        if self.is_attachment && !text.contains(char::is_whitespace) {
            self.request.attachments += 1;
        } else {
            self.text(text);
        }
        Ok(1)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut members: A) -> Result<u64, A::Error> {
        while let Some(name) = members.next_key::<String>()? {
            self.text(&name);
            let is_attachment = ATTACHMENTS.contains(&&*name);
            let (request, tokenizer) = (&mut *self.request, self.tokenizer);
            members.next_value_seed(Count { request, tokenizer, is_attachment })?;
        }
        Ok(1)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<u64, A::Error> {
        let Self { request, tokenizer, .. } = self;
        let (mut prompts, is_attachment) = (0, false);
        let mut next = || values.next_element_seed(Count { request, tokenizer, is_attachment });
        while let Some(element) = next()? {
            prompts += element.min(1);
        }
        Ok(prompts.max(1))
    }

    fn visit_bool<E>(self, _: bool) -> Result<u64, E> {
        self.number()
    }

    fn visit_i64<E>(self, _: i64) -> Result<u64, E> {
        self.number()
    }

    fn visit_u64<E>(self, _: u64) -> Result<u64, E> {
        self.number()
    }

    fn visit_f64<E>(self, _: f64) -> Result<u64, E> {
        self.number()
    }

    fn visit_unit<E>(self) -> Result<u64, E> {
        Ok(1)
    }
}
