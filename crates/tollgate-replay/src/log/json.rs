//! Logs with a JSON object on each line.

use std::fmt;

use memchr::memmem;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use tollgate_core::{Micros, Timestamp};

use super::mapping::{Field, Mapping, Node};
use super::record::{Batch, Fields, Reason, Span, shown};
use super::text::{AN_ADDRESS, peer, request};
use super::time;

impl Mapping {
    /// Reads a line in the batch.
    pub(super) fn read(
        &self,
        batch: &mut Batch,
        (start, end): (usize, usize),
        number: u64,
        strings: &mut Vec<u8>,
    ) -> Result<Fields, Reason> {
        let (line, base) = (&batch.text[start..end], batch.text.len());
        let (fields, seen) = match self.object(line, number, base, strings) {
            // nginx copies invalid UTF-8 from requests, which JSON does not allow.
            Err(Reason::Json(_)) if std::str::from_utf8(line).is_err() => {
                let line = String::from_utf8_lossy(line);
                let (fields, seen) = self.object(line.as_bytes(), number, base, strings)?;
                // Like in a text log, a target with invalid UTF-8 is not valid HTTP.
                let is_odd = |target: &[u8]| memmem::find(target, "\u{fffd}".as_bytes()).is_some();
                let target = fields.target.from(base).bytes(strings);
                let method = if target.is_some_and(is_odd) { Span::EMPTY } else { fields.method };
                (Fields { method, ..fields }, seen)
            }
            fields => fields?,
        };
        batch.seen |= seen;
        batch.text.extend_from_slice(strings);
        Ok(fields)
    }

    /// Reads an object and returns its fields, and which named fields it has. The strings are added
    /// to `strings`, which will start at `base` in the batch.
    fn object(
        &self,
        line: &[u8],
        number: u64,
        base: usize,
        strings: &mut Vec<u8>,
    ) -> Result<(Fields, u64), Reason> {
        strings.clear();
        let fields = Fields::new(number);
        let mut reading = Reading {
            fields,
            base,
            strings,
            seen: 0,
            has_time: false,
            has_address: false,
            wrong: None,
        };
        let mut json = serde_json::Deserializer::from_slice(line);
        let read = Object { node: &self.root, reading: &mut reading }.deserialize(&mut json);
        let Reading { fields, seen, wrong, .. } = reading;
        read.and_then(|()| json.end()).map_err(|error| Reason::Json(cut(&error.to_string())))?;
        match (wrong, self.missing(seen)) {
            (Some(wrong), _) => Err(wrong),
            (None, Some(path)) => Err(Reason::Missing(path.into())),
            (None, None) => Ok((fields, seen)),
        }
    }
}

/// Truncates an error, which may repeat a string from the line.
fn cut(error: &str) -> Box<str> {
    const LONGEST: usize = 120;
    match error.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &error[..end]).into(),
        None => error.into(),
    }
}

/// The fields read so far from a line.
struct Reading<'s> {
    fields: Fields,
    /// Where the strings will be in the batch.
    base: usize,
    strings: &'s mut Vec<u8>,
    /// The named fields in the line; see [`Mapping::names`].
    seen: u64,
    has_time: bool,
    has_address: bool,
    wrong: Option<Reason>,
}

impl Reading<'_> {
    /// Records that the line has this field. A time or address only counts with a value.
    const fn note(&mut self, node: &Node) {
        let is_there = match node.field {
            Some(Field::Time) => self.has_time,
            Some(Field::Address) => self.has_address,
            _ => true,
        };
        if is_there {
            self.seen |= node.bit;
        }
    }

    fn text(&mut self, field: Field, text: &str) {
        let bytes = text.as_bytes();
        let is_needed = matches!(field, Field::Time | Field::Address);
        if matches!(bytes, b"" | b"-") && !is_needed {
            return;
        }
        match field {
            Field::Time => {
                let at = time::rfc3339(bytes).or_else(|| time::clf(bytes));
                self.time(at.or_else(|| time::epoch(bytes)), text);
            }
            Field::Address => match peer(bytes) {
                Some(address) => (self.fields.address, self.has_address) = (address, true),
                None => self.refuse(field, text),
            },
            Field::User => self.fields.user = self.keep(bytes),
            Field::Tier => self.fields.tier = self.keep(bytes),
            Field::Model => self.fields.model = self.keep(bytes),
            Field::Method => self.fields.method = self.keep(bytes),
            Field::Target => self.fields.target = self.keep(bytes),
            Field::Host => self.fields.host = self.keep(bytes),
            Field::Header(number) => {
                let span = self.keep(bytes);
                self.fields.headers.push((number, span));
            }
            Field::Request => {
                let start = self.base + self.strings.len();
                self.keep(bytes);
                (self.fields.method, self.fields.target) = request(bytes, start);
            }
            // nginx writes every value as a string.
            Field::Status | Field::Bytes | Field::Duration(_) | Field::Tokens(_) => {
                match text.parse::<f64>() {
                    Ok(number) => self.number(field, number),
                    Err(_) => self.refuse(field, text),
                }
            }
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "floats saturate, and negative numbers are rejected"
    )]
    fn number(&mut self, field: Field, number: f64) {
        if number.is_nan() || number < 0.0 {
            return self.refuse(field, &number.to_string());
        }
        match field {
            Field::Time => self.time(time::epoch(format!("{number:.6}").as_bytes()), "a number"),
            Field::Status if number <= 999.0 => self.fields.status = number as u16,
            Field::Bytes => self.fields.bytes = number as u64,
            Field::Tokens(kind) => {
                let tokens = self.fields.tokens.get_or_insert_default();
                tokens[usize::from(kind)] = number as u64;
            }
            Field::Duration(thousandths) => {
                let micros = number * f64::from(thousandths) / 1e3;
                self.fields.duration = Some(Micros::new(micros as u64));
            }
            field => self.refuse(field, &number.to_string()),
        }
    }

    fn time(&mut self, at: Option<Timestamp>, text: &str) {
        match at {
            Some(at) => (self.fields.at, self.has_time) = (at, true),
            None => self.refuse(Field::Time, text),
        }
    }

    fn keep(&mut self, bytes: &[u8]) -> Span {
        let start = self.base + self.strings.len();
        self.strings.extend_from_slice(bytes);
        Span::new(start, start + bytes.len())
    }

    fn refuse(&mut self, field: Field, found: &str) {
        let (name, expected) = match field {
            Field::Time => ("time", "RFC 3339 or seconds since 1970"),
            Field::Address => ("address", AN_ADDRESS),
            Field::Status => ("status", "a number up to 999"),
            Field::Bytes => ("bytes", "a number"),
            Field::Duration(_) => ("duration", "a number"),
            Field::Tokens(_) => ("tokens", "a number"),
            _ => ("field", "a string"),
        };
        let found = shown(found.as_bytes());
        let wrong = || Reason::Field { field: name.into(), found, expected };
        self.wrong.get_or_insert_with(wrong);
    }
}

/// The object on a line.
struct Object<'a, 's> {
    node: &'a Node,
    reading: &'a mut Reading<'s>,
}

impl<'de> DeserializeSeed<'de> for Object<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(child) = map.next_key_seed(Name(self.node))? {
            match child {
                Some(node) => {
                    map.next_value_seed(Value { node, reading: self.reading })?;
                    self.reading.note(node);
                }
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// A name in an object, which determines how to read the value.
struct Name<'a>(&'a Node);

impl<'de, 'a> DeserializeSeed<'de> for Name<'a> {
    type Value = Option<&'a Node>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'a> Visitor<'_> for Name<'a> {
    type Value = Option<&'a Node>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        let found = self.0.children.iter().find(|(other, _)| **other == *name);
        Ok(found.map(|(_, node)| node))
    }
}

/// A value that is needed, or that contains a needed value.
struct Value<'a, 's> {
    node: &'a Node,
    reading: &'a mut Reading<'s>,
}

impl<'de> DeserializeSeed<'de> for Value<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        if let Some(field) = self.node.field {
            self.reading.text(field, text);
        }
        Ok(())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<(), E> {
        if let Some(field) = self.node.field {
            self.reading.number(field, number);
        }
        Ok(())
    }

    #[expect(clippy::cast_precision_loss, reason = "no field of a log is as large")]
    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        match self.node.field {
            // Nanoseconds since 1970 have more digits than a float.
            Some(Field::Time) => {
                self.reading.time(time::epoch(number.to_string().as_bytes()), "a number");
                Ok(())
            }
            _ => self.visit_f64(number as f64),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "no field of a log is as large")]
    fn visit_i64<E: Error>(self, number: i64) -> Result<(), E> {
        self.visit_f64(number as f64)
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    /// Reads the first of a header's values.
    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<(), A::Error> {
        let Self { node, reading } = self;
        if values.next_element_seed(Value { node, reading })?.is_some() {
            while values.next_element::<IgnoredAny>()?.is_some() {}
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        Object { node: self.node, reading: self.reading }.visit_map(map)
    }
}
