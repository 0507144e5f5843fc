//! Upstream responses that forgive a key.

use http::HeaderMap;
use serde_json::Value;
use tollgate::Limit;
use tollgate::limit::ResponseHead;
use tollgate_config::plan::{ForgiveOn, Statuses};

use super::json_object;
use crate::serve::answers::AnsweredBy;

/// Forgives after these responses, if there are any.
pub(super) fn forgiving(limit: Limit, on: Option<&ForgiveOn>) -> Limit {
    let Some(ForgiveOn { status, header, body }) = on.cloned() else { return limit };
    let has_header = move |headers: &HeaderMap| match &header {
        None => true,
        Some((name, None)) => headers.contains_key(name),
        Some((name, Some(value))) => headers.get_all(name).iter().any(|it| it == value),
    };
    let head = move |response: &ResponseHead<'_>| {
        AnsweredBy::of(response.extensions).is_none()
            && Statuses::any(&status, response.status)
            && has_header(response.headers)
    };
    match body {
        Some(fields) => limit.forgive_on_body(head, move |body| has_fields(body, &fields)),
        None => limit.forgive_on(head),
    }
}

/// Whether a JSON object has all these fields. A repeated field matches no value.
fn has_fields(body: &[u8], fields: &[(String, Value)]) -> bool {
    let Ok(body) = std::str::from_utf8(body) else { return false };
    fields.iter().all(|(name, expected)| {
        let values = json_object::values(body, |key| key == name);
        values.is_ok_and(|values| values[..] == [expected.clone()])
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_fields_must_match() {
        let fields = [("ok".to_owned(), json!(true)), ("code".to_owned(), json!(0))];
        for (body, expected) in [
            (r#"{"ok": true, "code": 0}"#, true),
            (r#" {"user": {"ok": false}, "code": 0, "\u006fk": true} "#, true),
            (r#"{"ok": true}"#, false),
            (r#"{"ok": false, "code": 0}"#, false),
            (r#"{"ok": "true", "code": 0}"#, false),
            (r#"{"OK": true, "code": 0}"#, false),
            (r#"{"data": {"ok": true, "code": 0}}"#, false),
            (r#"[{"ok": true, "code": 0}]"#, false),
            (r#"{"ok": true, "code": 0, "ok": false}"#, false),
            (r#"{"ok": true, "code": 0} x"#, false),
            (r#"{"ok": true, "code": 0"#, false),
        ] {
            assert_eq!(has_fields(body.as_bytes(), &fields), expected, "{body}");
        }
        assert!(!has_fields(b"\xff{\"ok\": true, \"code\": 0}", &fields));
    }
}
