//! Logs with a JSON object on each line.

use std::borrow::Cow;
use std::fmt;

use memchr::memmem;
use serde::de::{Deserializer as _, MapAccess, Visitor};
use serde_json::value::RawValue;
use smallvec::{SmallVec, smallvec};

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
    /// Assigns paths to fields, such as `time=ts,address=client.ip`, and adds the names of the headers.
    pub(super) fn new(names: &str, headers: &mut Vec<Box<str>>) -> Result<Self, FormatError> {
        let mut mapping = Self::default();
        for (place, pair) in (0..).zip(names.split(',')) {
            let pair = pair.trim();
            let (name, path) =
                pair.split_once('=').ok_or_else(|| FormatError::NoPair(pair.into()))?;
            mapping.names.push(Name {
                field: Field::of_name(name, headers)?,
                name: name.into(),
                path: path.into(),
                bit: 1_u64.checked_shl(place).unwrap_or(0),
            });
        }
        Field::check(&mapping.names.iter().map(|name| name.field).collect::<Vec<_>>())?;
        let bits = |set: &[Field]| {
            let names = mapping.names.iter().filter(|name| set.contains(&name.field));
            names.fold(0, |all, name| all | name.bit)
        };
        // Each line needs an address if the log has addresses.
        let required = [
            bits(&[Field::Time, Field::End]),
            bits(&[Field::Address]),
            bits(&[Field::Request, Field::Method]),
            bits(&[Field::Request, Field::Target]),
        ];
        mapping.required = required.into_iter().filter(|bits| *bits != 0).collect();
        Ok(mapping)
    }

    /// Reads a line, and adds the names in it to `seen`.
    pub(super) fn read(
        &self,
        reading: &mut Reading<'_>,
        (start, end): Range,
        seen: &mut u64,
    ) -> Result<(), Reason> {
        // The values are appended to the text, so the members borrow from a copy of the line.
        let line = reading.text[start..end].to_vec();
        let line = match std::str::from_utf8(&line) {
            Ok(line) => Cow::Borrowed(line),
            // nginx copies invalid UTF-8 from requests, which JSON does not allow.
            Err(_) => String::from_utf8_lossy(&line),
        };
        if !line.trim_ascii_start().starts_with('{') {
            return Err(Reason::Json("expected `{`".into()));
        }
        let found = self.fields(reading, &line)?;
        *seen |= found;
        reading.recognised += found.count_ones();
        if let Some(set) = self.required.iter().find(|set| *set & found == 0) {
            let missing = self.names.iter().find(|name| name.bit & set != 0);
            return Err(Reason::Missing(missing.map(|name| name.path.clone()).unwrap_or_default()));
        }
        // Like in a text log, a target with invalid UTF-8 is not valid HTTP.
        let target = reading.fields.target.bytes(reading.text).unwrap_or_default();
        if matches!(line, Cow::Owned(_)) && memmem::find(target, "\u{fffd}".as_bytes()).is_some() {
            reading.fields.method = Span::NONE;
        }
        Ok(())
    }

    /// The fields with these bits, with their paths, such as `time=ts`.
    pub(super) fn fields_in(&self, seen: u64) -> Vec<Box<str>> {
        let seen = self.names.iter().filter(|name| name.bit & seen != 0);
        seen.map(|Name { name, path, .. }| format!("{name}={path}").into()).collect()
    }

    /// Reads an object's fields, and returns the names that it has.
    fn fields(&self, reading: &mut Reading<'_>, object: &str) -> Result<u64, Reason> {
        let mut values: Values<'_> = smallvec![None; self.names.len()];
        let paths = self.names.iter().map(|name| &*name.path).enumerate().collect();
        find(object, &paths, &mut values).map_err(|error| not_json(&error))?;
        let mut found = 0;
        for (name, value) in self.names.iter().zip(values) {
            let Some(value) = value else { continue };
            let is_there = if let Some(text) = text(value).map_err(|error| not_json(&error))? {
                let start = reading.text.len();
                reading.text.extend_from_slice(text.as_bytes());
                let range = (start, reading.text.len());
                reading.set(name.field, &name.path, range)? != Found::Odd
                    || name.field == Field::Request
            } else {
                // Only a time or an address needs a value.
                !matches!(name.field, Field::Time | Field::End | Field::Address)
            };
            if is_there {
                found |= name.bit;
            }
        }
        Ok(found)
    }
}

/// The value of each name.
type Values<'a> = SmallVec<[Option<&'a RawValue>; 16]>;

/// The numbers of names, and their paths in an object.
type Paths<'a> = SmallVec<[(usize, &'a str); 16]>;

/// Finds the values at these paths in an object. A dotted path may be a single member's name.
fn find<'a>(object: &'a str, paths: &Paths<'_>, values: &mut Values<'a>) -> serde_json::Result<()> {
    let mut objects: SmallVec<[_; 2]> = SmallVec::new();
    let each = |key: Cow<'_, str>, value: &'a RawValue| {
        let mut inside = Paths::new();
        for (name, path) in paths {
            // Nearly all comparisons end here, without a call.
            match path.as_bytes().get(key.len()) {
                None if *path == key => values[*name] = Some(value),
                Some(b'.') if path.starts_with(&*key) => {
                    inside.push((*name, &path[key.len() + 1..]));
                }
                _ => {}
            }
        }
        if !inside.is_empty() && value.get().starts_with('{') {
            objects.push((value.get(), inside));
        }
    };
    let mut json = serde_json::Deserializer::from_str(object);
    json.deserialize_map(Members(each))?;
    json.end()?;
    objects.iter().try_for_each(|(object, inside)| find(object, inside, values))
}

/// Passes each member to a function.
struct Members<F>(F);

/// A member's name, which borrows from its line unless it has escapes.
#[derive(serde::Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de, F: FnMut(Cow<'de, str>, &'de RawValue)> Visitor<'de> for Members<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some((Key(key), value)) = map.next_entry()? {
            (self.0)(key, value);
        }
        Ok(())
    }
}

/// A string's text, or a number. A list, such as a header's values, counts as its first value.
fn text(value: &RawValue) -> serde_json::Result<Option<Cow<'_, str>>> {
    let text = value.get();
    Ok(match text.as_bytes()[0] {
        b'"' if !text.contains('\\') => Some(text[1..text.len() - 1].into()),
        b'"' => Some(serde_json::from_str::<String>(text)?.into()),
        b'[' => match *serde_json::from_str::<Vec<&RawValue>>(text)? {
            [first, ..] => return self::text(first),
            [] => None,
        },
        b'-' | b'0'..=b'9' if text.contains(['e', 'E']) => {
            Some(serde_json::from_str::<f64>(text)?.to_string().into())
        }
        b'-' | b'0'..=b'9' => Some(text.into()),
        _ => None,
    })
}

fn not_json(error: &serde_json::Error) -> Reason {
    // The error may repeat a string from the line.
    const LONGEST: usize = 120;
    let error = error.to_string();
    Reason::Json(match error.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &error[..end]).into(),
        None => error.into(),
    })
}
