//! A JSON object's fields, with repeated names.

use std::fmt;

use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

/// Returns the values of all fields with a name that `is_meant`.
///
/// # Errors
/// The text is not a single JSON object.
pub(super) fn values(
    text: &str,
    is_meant: impl Fn(&str) -> bool,
) -> Result<Vec<Value>, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_str(text);
    let values = json.deserialize_map(Fields { is_meant })?;
    json.end()?;
    Ok(values)
}

struct Fields<F> {
    is_meant: F,
}

impl<'de, F: Fn(&str) -> bool> Visitor<'de> for Fields<F> {
    type Value = Vec<Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut values = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            if (self.is_meant)(&key) {
                values.push(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(values)
    }
}
