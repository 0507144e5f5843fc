//! A field of a request's body, such as the account of a login.

use std::fmt;

use bytes::Bytes;
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use tollgate::key::{KeyError, RequestHead};

use super::values::parameters;

/// A body that was read before the decision, in the extensions that key sources see. `None` if it is
/// too long.
#[derive(Clone, Debug)]
pub(crate) struct ReadText(pub(crate) Option<Bytes>);

/// The maximum size of a body that is searched for a field.
pub(crate) const MOST_BYTES: usize = 64 << 10;

/// The field's value in a JSON object or a form. `None` if there is no such text or number.
///
/// The service may accept other spellings of a name or value, so cases do not differ. It may also
/// prefer another of several values, read the body as a form regardless of `Content-Type`, or look
/// into the query first. A request in which these readings find more than one value is ambiguous.
pub(super) fn field(head: &RequestHead<'_>, name: &str) -> Result<Option<String>, KeyError> {
    let Some(ReadText(body)) = head.extensions.get() else { return Ok(None) };
    let body = body.as_deref().unwrap_or_default();
    let name = folded(name);
    let read = json(body, &name);
    // A lenient parser may read an object here, in which a form parser would find something else.
    let is_odd = read.is_err() && body.trim_ascii_start().starts_with(b"{");
    let is_form = !is_odd && !says_json(head);
    let form = std::str::from_utf8(body).ok().filter(|_| is_form).unwrap_or_default();
    let mut found = read.unwrap_or_default();
    for text in [form, head.uri.query().unwrap_or_default()] {
        let is_name = |key: &[u8]| folded(&String::from_utf8_lossy(key)) == name;
        let values = parameters(text, is_name);
        found.extend(values.map(|value| Some(String::from_utf8_lossy(&value).into_owned())));
    }
    match &mut found[..] {
        [] => Ok(None),
        [value] => Ok(value.take().map(|value| folded(value.trim())).filter(|it| !it.is_empty())),
        _ => Err(KeyError::Ambiguous),
    }
}

fn says_json(head: &RequestHead<'_>) -> bool {
    let is_json = |kind: &HeaderValue| {
        kind.as_bytes().to_ascii_lowercase().windows(4).any(|part| part == b"json")
    };
    head.headers.get_all(CONTENT_TYPE).iter().any(is_json)
}

/// The text in lower case. Upper case first, because `ſ` and `s` only have that in common.
fn folded(text: &str) -> String {
    text.to_uppercase().to_lowercase()
}

/// All values of the field in a JSON object; `None` for a value that is neither text nor number.
fn json(body: &[u8], name: &str) -> Result<Vec<Option<String>>, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let values = json.deserialize_map(Fields { name })?;
    json.end()?;
    Ok(values)
}

struct Fields<'n> {
    /// In lower case.
    name: &'n str,
}

impl<'de> Visitor<'de> for Fields<'_> {
    type Value = Vec<Option<String>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut values = Vec::new();
        while let Some(key) = map.next_key::<String>()? {
            if folded(&key) != self.name {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            values.push(match map.next_value::<Value>()? {
                Value::String(text) => Some(text),
                Value::Number(number) => Some(number.to_string()),
                _ => None,
            });
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    /// The value, `None` without a value, and an error if there are several.
    fn read(kind: &str, target: &str, body: &str) -> Result<Option<String>, ()> {
        let request = Request::post(target).header(CONTENT_TYPE, kind);
        let request = request.extension(ReadText(Some(Bytes::copy_from_slice(body.as_bytes()))));
        field(&RequestHead::of(&request.body(()).unwrap()), "eMail").map_err(|_| ())
    }

    #[test]
    fn bodies_show_their_field() {
        let ann = || Ok(Some("ann@a.example".to_owned()));
        const JSON: &str = "application/json";
        const FORM: &str = "application/x-www-form-urlencoded";
        for (kind, body, expected) in [
            (JSON, r#"{"email": "ann@a.example", "password": "x"}"#, ann()),
            (JSON, r#"{"a": [{"email": 1}], "E\u006dail": " Ann@A.EXAMPLE\n"}"#, ann()),
            ("", r#"{"email": "ann@a.example"}"#, ann()),
            (FORM, r#"{"email": "ann@a.example"}"#, ann()),
            (FORM, "x=1&Email=+ann%40a.example", ann()),
            (JSON, r#"{"email": 7}"#, Ok(Some("7".to_owned()))),
            // The service may read another of the values.
            (JSON, r#"{"email": "ann@a.example", "email": "bob"}"#, Err(())),
            (JSON, r#"{"email": "ann@a.example", "ema\u0131l": "bob", "EMAIL": null}"#, Err(())),
            (FORM, "email=ann@a.example&email=bob", Err(())),
            (FORM, r#"{"email": "ann@a.example", "x": "&email=bob&"}"#, Err(())),
            (JSON, r#"{"email": "ann@a.example", "x": "&email=bob&"}"#, ann()),
            // No value.
            (JSON, r#"{"email": null}"#, Ok(None)),
            (JSON, r#"{"email": " "}"#, Ok(None)),
            (JSON, r#"{"email": "ann@a.example"} x"#, Ok(None)),
            (JSON, r#"[{"email": "ann@a.example"}]"#, Ok(None)),
            (JSON, "email=ann@a.example", Ok(None)),
            (FORM, r#"{"email": "ann@a.example", x: "&email=bob&"}"#, Ok(None)),
            (FORM, "e-mail=ann", Ok(None)),
            (FORM, "", Ok(None)),
        ] {
            assert_eq!(read(kind, "/login", body), expected, "{kind} {body}");
        }
        assert_eq!(read(JSON, "/login?email=bob", r#"{"email": "ann@a.example"}"#), Err(()));
        assert_eq!(read(JSON, "/login?email=ANN@a.example", ""), ann());
        assert_eq!(folded("ſK\u{212a}É"), "skké");
    }

    #[test]
    fn unread_body_has_no_field() {
        let request = Request::post("/login?email=ann").body(()).unwrap();
        assert_eq!(field(&RequestHead::of(&request), "email").unwrap(), None);
        let long = Request::post("/login").extension(ReadText(None)).body(()).unwrap();
        assert_eq!(field(&RequestHead::of(&long), "email").unwrap(), None);
    }
}
