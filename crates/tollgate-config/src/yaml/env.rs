use crate::code::{self, Code};

pub type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

pub(super) type Wrong = (Code, String, String);

/// Replaces `${NAME}` and `${NAME:-default}`; `$${` becomes `${`. Any other `$` is an ordinary
/// character. Returns `None` if there are no references.
///
/// Called with values after the file is parsed, so a variable cannot add a key or a line.
pub(super) fn expand(text: &str, env: Env<'_>) -> Result<Option<String>, Wrong> {
    if !text.contains("${") {
        return Ok(None);
    }
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, reference) = rest.split_at(at);
        if let Some(literal) = before.strip_suffix('$') {
            out.push_str(literal);
            out.push_str("${");
            rest = &reference[2..];
            continue;
        }
        out.push_str(before);
        let Some(end) = reference.find('}') else {
            return Err((
                code::INVALID_REFERENCE,
                "a `${` without its `}`".to_owned(),
                "close it, or write `$${` for the characters themselves".to_owned(),
            ));
        };
        out.push_str(&value(&reference[2..end], env)?);
        rest = &reference[end + 1..];
    }
    out.push_str(rest);
    Ok(Some(out))
}

fn value(reference: &str, env: Env<'_>) -> Result<String, Wrong> {
    let (name, default) = match reference.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (reference, None),
    };
    let is_name = |byte: u8| byte == b'_' || byte.is_ascii_alphanumeric();
    if name.is_empty() || !name.bytes().all(is_name) || name.as_bytes()[0].is_ascii_digit() {
        return Err((
            code::INVALID_REFERENCE,
            format!("`${{{reference}}}` names no environment variable"),
            "write `${NAME}` or `${NAME:-default}`, or `$${` for the characters themselves"
                .to_owned(),
        ));
    }
    // As in a shell, `:-` also replaces an empty variable.
    let found = env(name).filter(|value| default.is_none() || !value.is_empty());
    found.or_else(|| default.map(str::to_owned)).ok_or_else(|| {
        (
            code::UNSET_VARIABLE,
            format!("the environment variable `{name}` is not set"),
            format!("set it, or give it a default: `${{{name}:-…}}`"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> Result<Option<String>, String> {
        let env = |name: &str| match name {
            "HOST" => Some("redis".to_owned()),
            "EMPTY" => Some(String::new()),
            "NESTED" => Some("${HOST}".to_owned()),
            _ => None,
        };
        expand(text, &env).map_err(|(_, what, _)| what)
    }

    #[test]
    fn references_are_replaced_once() {
        for (text, expected) in [
            ("redis://${HOST}:6379", "redis://redis:6379"),
            ("${HOST}${HOST}", "redisredis"),
            ("${NONE:-a:-b}", "a:-b"),
            ("${NONE:-}", ""),
            ("${EMPTY}", ""),
            ("${EMPTY:-full}", "full"),
            ("$${HOST}", "${HOST}"),
            ("${NESTED}", "${HOST}"),
            ("a$b ${HOST} 5$", "a$b redis 5$"),
        ] {
            assert_eq!(expanded(text).unwrap().as_deref(), Some(expected), "{text}");
        }
        assert_eq!(expanded("^/a$"), Ok(None));
    }

    #[test]
    fn invalid_references_are_reported() {
        for (text, expected) in [
            ("${NONE}", "the environment variable `NONE` is not set"),
            ("${HOST", "a `${` without its `}`"),
            ("${}", "`${}` names no environment variable"),
            ("${1A}", "`${1A}` names no environment variable"),
            ("${A B}", "`${A B}` names no environment variable"),
        ] {
            assert_eq!(expanded(text).unwrap_err(), expected, "{text}");
        }
    }
}
