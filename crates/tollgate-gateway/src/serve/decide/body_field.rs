//! A field of a request's body, such as the account of a login.

use bytes::Bytes;
use http::HeaderValue;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use serde_json::Value;
use tollgate::key::{
    KeyError, KeyFromFn, KeySource, RequestHead, Subject, SubjectName, try_from_fn,
};

use super::{json_object, values};

/// A body that was read before the decision, in the extensions that key sources see. `None` if it is
/// too long.
#[derive(Clone, Debug)]
pub(crate) struct ReadText(pub(crate) Option<Bytes>);

/// The maximum size of a body that is searched for a field.
pub(crate) const MOST_BYTES: usize = 64 << 10;

/// Finds a request's group in the body's field `name`.
pub(super) fn source(name: &str) -> impl KeySource + use<> {
    let name = name.to_owned();
    Source(try_from_fn(move |head: &RequestHead<'_>| field(head, &name)))
}

struct Source(KeyFromFn);

impl KeySource for Source {
    fn subject(&self, head: &RequestHead<'_>) -> Result<Option<Subject>, KeyError> {
        self.0.subject(head)
    }

    fn named(&self, name: &SubjectName) -> Option<Subject> {
        match name {
            SubjectName::Other(text) => self.0.named(&SubjectName::Other(compared(text))),
            name => self.0.named(name),
        }
    }

    fn name(&self, head: &RequestHead<'_>) -> Option<String> {
        self.0.name(head)
    }
}

/// The field's value in a JSON object or a form. `None` if there is no such text or integer.
///
/// Services differ in how they read a request: in the spellings of names and values, in which of
/// several values they prefer, in whether they read the body as a form regardless of `Content-Type`,
/// or look into the query first. A request in which these readings find more than one value is
/// ambiguous. A body without a known value counts as a value, because the service may see more in it.
/// Otherwise a client could choose its account in the query.
fn field(head: &RequestHead<'_>, name: &str) -> Result<Option<String>, KeyError> {
    let Some(ReadText(body)) = head.extensions.get() else { return Ok(None) };
    let name = spelling(name);
    let mut found = match body.as_deref() {
        Some([]) => Vec::new(),
        body => body.and_then(|body| in_body(head, body, &name)).unwrap_or_default(),
    };
    if found.is_empty() && body.as_ref().is_none_or(|body| !body.is_empty()) {
        found.push(None);
    }
    found.extend(in_form(head.uri.query().unwrap_or_default(), &name));
    match &mut found[..] {
        [] => Ok(None),
        [value] => Ok(value.take().map(|value| compared(&value)).filter(|it| !it.is_empty())),
        _ => Err(KeyError::Ambiguous),
    }
}

/// All values of the field; `None` for a value that the gateway cannot know. `None` for a body that
/// services read in different ways.
fn in_body(head: &RequestHead<'_>, body: &[u8], name: &str) -> Option<Vec<Option<String>>> {
    let media = media_type(head)?;
    let text = std::str::from_utf8(body).ok()?;
    let says_json = media.ends_with("json") && !media.contains([',', ' ']);
    let says_form = ["", "application/x-www-form-urlencoded", "text/plain"].contains(&&*media);
    // A lenient parser may read an object, XML or the parts of a form in other texts.
    let is_form = || says_form && !text.contains(|it: char| it.is_control() || "\"<{".contains(it));
    match in_json(text, name) {
        Ok(values) if says_json => Some(values),
        Ok(mut values) => {
            values.extend(in_form(text, name));
            Some(values)
        }
        Err(_) => is_form().then(|| in_form(text, name).collect()),
    }
}

/// The body's media type in lower case. `None` if the body may need decoding, or has parts.
fn media_type(head: &RequestHead<'_>) -> Option<String> {
    let mut types = head.headers.get_all(CONTENT_TYPE).iter();
    let kind = types.next().map_or(Ok(""), HeaderValue::to_str).ok()?.to_ascii_lowercase();
    if types.next().is_some() || head.headers.contains_key(CONTENT_ENCODING) {
        return None;
    }
    let (media, parameters) = kind.split_once(';').unwrap_or((&kind, ""));
    // These agree on the bytes of names.
    let is_known = |parameter: &str| {
        let charset = parameter.replace(['"', ' '], "");
        let known = ["charset=utf-8", "charset=us-ascii", "charset=iso-8859-1"];
        !charset.contains("charset") || known.contains(&&*charset)
    };
    let is_plain = parameters.split(';').all(is_known) && !media.contains("multipart");
    is_plain.then(|| media.trim().to_owned())
}

/// All values of the field in a form; `None` for a value that the gateway cannot know.
fn in_form(text: &str, name: &str) -> impl Iterator<Item = Option<String>> {
    text.split(['&', ';']).filter_map(move |parameter| {
        let (key, value) = values::pair(parameter);
        let Some(key) = decoded(key) else { return Some(None) };
        if spelling(&key) == name {
            return Some(decoded(value));
        }
        // Some services read the only value of a list, or an operator of their database.
        let list = key.split_once('[').filter(|(list, _)| spelling(list) == name);
        list.map(|_| None)
    })
}

/// The text that all services decode; `None` if they differ.
fn decoded(text: &str) -> Option<String> {
    let is_hex =
        |text: &str| text.len() >= 4 && text.bytes().take(4).all(|it| it.is_ascii_hexdigit());
    let mut escapes = text.split(['u', 'U']).zip(text.split(['u', 'U']).skip(1));
    // .NET Framework decodes `%u0061`.
    if escapes.any(|(before, after)| before.ends_with('%') && is_hex(after)) {
        return None;
    }
    String::from_utf8(values::decoded(text).into_owned()).ok()
}

/// A name without the differences that some services ignore. PHP ends names at a zero byte, removes
/// spaces, and replaces dots, spaces and brackets.
fn spelling(name: &str) -> String {
    let name = name.split('\0').next().unwrap_or_default().replace(['.', '[', ' '], "_");
    folded(name.trim_matches(|it: char| "_\u{feff}".contains(it) || is_space(it)))
}

/// A value as the gateway compares it.
fn compared(value: &str) -> String {
    folded(value.trim_matches(is_space))
}

fn is_space(it: char) -> bool {
    it.is_whitespace() || it.is_control()
}

/// The text in lower case. Upper case first, because `ſ` and `s` only have that in common.
fn folded(text: &str) -> String {
    text.to_uppercase().to_lowercase()
}

/// All values of the field in a JSON object; `None` for a value that is neither text nor integer.
fn in_json(body: &str, name: &str) -> Result<Vec<Option<String>>, serde_json::Error> {
    let values = json_object::values(body, |key| spelling(key) == name)?;
    let known = values.into_iter().map(|value| match value {
        Value::String(text) => Some(text),
        // Services may round other numbers.
        Value::Number(number) if !number.is_f64() => Some(number.to_string()),
        _ => None,
    });
    Ok(known.collect())
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

    /// Another value beside it does not become the account.
    #[test]
    fn unreadable_bodies_choose_no_account() {
        const JSON: &str = "application/json";
        const FORM: &str = "application/x-www-form-urlencoded";
        const ANN: &str = r#"{"email": "ann"}"#;
        for (kind, body) in [
            (JSON, r#"{"email": "ann",}"#),
            (JSON, r#"{"email": "ann\ud800"}"#),
            (JSON, r#"{"password": "x"}"#),
            (JSON, r#"{"email": 7.5}"#),
            (JSON, "email=ann"),
            (JSON, " "),
            (FORM, "email=ann\n"),
            (FORM, "x=\"&email=ann"),
            (FORM, "email[]=ann"),
            (FORM, "email[$ne]=ann"),
            (FORM, "email=ann%ff"),
            (FORM, "email=%u0061nn"),
            (FORM, "%u0065mail=ann"),
            (FORM, "%ff=ann"),
            ("application/x-www-form-urlencoded; charset=ibm037", "email=ann"),
            ("application/json; charset=utf-16", ANN),
            ("text/yaml", "email: bob # &email=ann&"),
            ("text/xml", "<email>bob</email>"),
            ("text/plain", "\u{feff}{\"email\": \"bob\", \"x\": \"&email=ann&\"}"),
            ("text/plain", "/* &email=ann& */ {\"email\": \"bob\"}"),
            ("multipart/form-data; boundary=x", "email=ann"),
            ("Multipart/form-data; boundary=x", ANN),
            (
                "multipart/form-data; boundary=x",
                "--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n&email=ann&\r\n--x--\r\n",
            ),
        ] {
            assert_eq!(read(kind, "/login", body), Ok(None), "{kind} {body}");
            assert_eq!(read(kind, "/login?x=1", body), Ok(None), "{kind} {body}");
            assert_eq!(read(kind, "/login?Email=bob", body), Err(()), "{kind} {body}");
        }
        for body in [None, Some(&b"{\"email\": \"ann\", \"x\": \"\xff\"}"[..])] {
            let body = ReadText(body.map(Bytes::from_static));
            let request = Request::post("/login?email=bob").extension(body).body(()).unwrap();
            assert!(field(&RequestHead::of(&request), "email").is_err());
        }
        let request = Request::post("/login?email=bob").header(CONTENT_ENCODING, "deflate");
        let request = request.extension(ReadText(Some(Bytes::from_static(ANN.as_bytes()))));
        assert!(field(&RequestHead::of(&request.body(()).unwrap()), "email").is_err());
        let request = Request::post("/login").header(CONTENT_TYPE, FORM).header(CONTENT_TYPE, JSON);
        let request = request.extension(ReadText(Some(Bytes::from_static(ANN.as_bytes()))));
        let request = request.body(()).unwrap();
        assert_eq!(field(&RequestHead::of(&request), "email").unwrap(), None);
    }

    #[test]
    fn operators_name_accounts_like_requests() {
        let source = source("email");
        let request = Request::post("/login").header(CONTENT_TYPE, "application/json");
        let body = ReadText(Some(Bytes::from_static(br#"{"email": "Ann@a.example "}"#)));
        let request = request.extension(body).body(()).unwrap();
        let found = source.subject(&RequestHead::of(&request)).unwrap();
        for name in ["other:ann@a.example", "other:ANN@a.example", "other: Ann@A.example "] {
            assert_eq!(source.named(&name.parse().unwrap()), found, "{name}");
        }
        assert_ne!(source.named(&"other:bob@a.example".parse().unwrap()), found);
    }

    /// Services read these names and separators as the field.
    #[test]
    fn spellings_of_forms_are_the_field() {
        const FORM: &str = "application/x-www-form-urlencoded";
        for first in ["+email=ann", "%20eMail+=ann", "x=1;email=ann", "email%00x=ann", "email_=ann"]
        {
            let alone = read(FORM, "/login", first);
            assert_eq!(alone, Ok(Some("ann".to_owned())), "{first}");
            assert_eq!(read(FORM, "/login", &format!("{first}&email=bob")), Err(()), "{first}");
            assert_eq!(read(FORM, &format!("/login?{first}"), "email=bob"), Err(()), "{first}");
            assert_eq!(read(FORM, &format!("/login?{first}"), ""), alone, "{first}");
        }
        for other in ["email[]=ann", "email[x]=ann", "email=%u0061", "\u{feff}email=ann"] {
            assert_eq!(read(FORM, "/login", &format!("{other}&email=bob")), Err(()), "{other}");
        }
        for body in ["user_email=ann", "user.email=ann", "user+email=ann", "user[email=ann"] {
            let request = Request::post("/login").extension(ReadText(Some(body.into())));
            let request = request.body(()).unwrap();
            let found = field(&RequestHead::of(&request), "user.email").unwrap();
            assert_eq!(found.as_deref(), Some("ann"), "{body}");
        }
        // The parameter is not the type.
        let json = r#"{"email": "ann", "x": "&email=bob&"}"#;
        assert_eq!(read(&format!("{FORM}; x=json"), "/login", json), Err(()));
        let text = r#"{"email": "ann", "password": "50%up"}"#;
        assert_eq!(read(FORM, "/login", text), Ok(Some("ann".to_owned())));
    }

    #[test]
    fn unread_body_has_no_field() {
        let request = Request::post("/login?email=ann").body(()).unwrap();
        assert_eq!(field(&RequestHead::of(&request), "email").unwrap(), None);
        let long = Request::post("/login").extension(ReadText(None)).body(()).unwrap();
        assert_eq!(field(&RequestHead::of(&long), "email").unwrap(), None);
    }
}
