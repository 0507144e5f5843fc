//! Logs with a JSON object on each line.

use std::borrow::Cow;
use std::fmt;

use memchr::memmem;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::FormatError;
use super::field::Field;
use super::reading::{Found, Range, Reading};
use super::record::{Reason, Span};

/// The path of each field in a JSON object. A path joins the names of nested objects with dots.
#[derive(Clone, Debug, Default)]
pub(super) struct Mapping {
    names: Vec<Name>,
    /// Each set must have at least one name in every line.
    required: Vec<u64>,
}

/// A field's place in the objects.
#[derive(Clone, Debug)]
struct Name {
    field: Field,
    /// The field's name in `--log json:`.
    name: Box<str>,
    path: Box<str>,
    /// The name's bit in the set of names in a line. Names beyond the 64th have no bit.
    bit: u64,
}

impl Mapping {
    /// Assigns paths to fields, and adds the names of the headers.
    pub(super) fn new<'a>(
        names: impl IntoIterator<Item = (&'a str, &'a str)>,
        headers: &mut Vec<Box<str>>,
    ) -> Result<Self, FormatError> {
        let mut mapping = Self::default();
        for (place, (name, path)) in names.into_iter().enumerate() {
            let bit = u32::try_from(place).ok().and_then(|place| 1_u64.checked_shl(place));
            mapping.names.push(Name {
                field: Field::of_name(name, headers)?,
                name: name.into(),
                path: path.into(),
                bit: bit.unwrap_or(0),
            });
        }
        let bits = |set: &[Field]| {
            let names = mapping.names.iter().filter(|name| set.contains(&name.field));
            names.fold(0, |all, name| all | name.bit)
        };
        let [time, address] = [Field::Time, Field::Address].map(|field| bits(&[field]));
        let [method, target] = [Field::Method, Field::Target].map(|it| bits(&[Field::Request, it]));
        if time == 0 {
            return Err(FormatError::NoTime);
        }
        if target == 0 {
            return Err(FormatError::NoRequest);
        }
        if method == 0 {
            return Err(FormatError::NoMethod);
        }
        // Each line needs an address if the log has addresses.
        mapping.required =
            [time, address, method, target].into_iter().filter(|it| *it != 0).collect();
        Ok(mapping)
    }

    /// Reads a line, and adds the names in it to `seen`.
    pub(super) fn read(
        &self,
        reading: &mut Reading<'_>,
        (start, end): Range,
        seen: &mut u64,
    ) -> Result<(), Reason> {
        // The object borrows from the line, and the values are appended to the text.
        let line = reading.text[start..end].to_vec();
        let lossy;
        let (object, is_utf8) = match object(&line) {
            // nginx copies invalid UTF-8 from requests, which JSON does not allow.
            Err(_) if std::str::from_utf8(&line).is_err() => {
                lossy = String::from_utf8_lossy(&line);
                (object(lossy.as_bytes())?, false)
            }
            object => (object?, true),
        };
        let found = self.fields(reading, &object)?;
        *seen |= found;
        reading.recognised += found.count_ones();
        if let Some(set) = self.required.iter().find(|set| *set & found == 0) {
            let missing = self.names.iter().find(|name| name.bit & set != 0);
            return Err(Reason::Missing(missing.map(|name| name.path.clone()).unwrap_or_default()));
        }
        // Like in a text log, a target with invalid UTF-8 is not valid HTTP.
        let target = reading.fields.target.bytes(reading.text).unwrap_or_default();
        if !is_utf8 && memmem::find(target, "\u{fffd}".as_bytes()).is_some() {
            reading.fields.method = Span::EMPTY;
        }
        Ok(())
    }

    /// The fields with these bits, with their paths.
    pub(super) fn fields_in(&self, seen: u64) -> Vec<Box<str>> {
        let seen = self.names.iter().filter(|name| name.bit & seen != 0);
        seen.map(|Name { name, path, .. }| format!("{name}={path}").into()).collect()
    }

    /// The path of the first field that has a bit, but not one of these.
    pub(super) fn never_in(&self, seen: u64) -> Option<&str> {
        let never = self.names.iter().find(|name| name.bit != 0 && name.bit & seen == 0);
        never.map(|name| &*name.path)
    }

    /// Reads an object's fields, and returns the names that it has.
    fn fields(&self, reading: &mut Reading<'_>, object: &Json<'_>) -> Result<u64, Reason> {
        let mut found = 0;
        for name in &self.names {
            let Some(value) = name.find(object) else { continue };
            let is_there = if let Json::Text(text) = value {
                let start = reading.text.len();
                reading.text.extend_from_slice(text.as_bytes());
                let range = (start, reading.text.len());
                reading.set(name.field, &name.path, range)? != Found::Odd
                    || name.field == Field::Request
            } else {
                // Only a time or an address needs a value.
                !matches!(name.field, Field::Time | Field::Address)
            };
            if is_there {
                found |= name.bit;
            }
        }
        Ok(found)
    }
}

impl Name {
    fn find<'a>(&self, object: &'a Json<'_>) -> Option<&'a Json<'a>> {
        // A dotted name may be a single name or a path.
        let by_path = || self.path.split('.').try_fold(object, Json::get);
        object.get(&self.path).or_else(|| self.path.contains('.').then(by_path)?)
    }
}

/// A JSON value that borrows from its line.
enum Json<'a> {
    /// A string or number. A list, such as a header's values, counts as its first value.
    Text(Cow<'a, str>),
    Object(Vec<(Self, Self)>),
    Other,
}

impl Json<'_> {
    /// The last member with this name.
    fn get(&self, name: &str) -> Option<&Self> {
        let Self::Object(members) = self else { return None };
        let is_it = |key: &Self| matches!(key, Self::Text(key) if key == name);
        members.iter().rfind(|(key, _)| is_it(key)).map(|(_, value)| value)
    }
}

/// Parses an object.
fn object(line: &[u8]) -> Result<Json<'_>, Reason> {
    // A list would count as its first value.
    if !line.trim_ascii_start().starts_with(b"{") {
        return Err(Reason::Json("expected `{`".into()));
    }
    serde_json::from_slice(line).map_err(|error| {
        // The error may repeat a string from the line.
        const LONGEST: usize = 120;
        let error = error.to_string();
        Reason::Json(match error.char_indices().nth(LONGEST) {
            Some((end, _)) => format!("{}…", &error[..end]).into(),
            None => error.into(),
        })
    })
}

impl<'de: 'a, 'a> Deserialize<'de> for Json<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Json<'de>, E> {
        Ok(Json::Text(text.into()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json<'de>, E> {
        Ok(Json::Text(text.to_owned().into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Json<'de>, E> {
        Ok(Json::Text(number.to_string().into()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Json<'de>, E> {
        Ok(Json::Text(number.to_string().into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Json<'de>, E> {
        Ok(Json::Text(number.to_string().into()))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Json<'de>, E> {
        Ok(Json::Other)
    }

    fn visit_unit<E>(self) -> Result<Json<'de>, E> {
        Ok(Json::Other)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Json<'de>, A::Error> {
        let first = values.next_element()?.unwrap_or(Json::Other);
        while values.next_element::<IgnoredAny>()?.is_some() {}
        Ok(first)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json<'de>, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(Json::Object(members))
    }
}
