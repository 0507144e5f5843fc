//! `tollgate explain-error`: the meaning of a code, from docs/errors.md.

use tollgate_config::code::{Code, Explained, explained};

/// Explains a code in any form in which messages write it, or lists all codes.
///
/// # Errors
/// There is no such code.
pub(crate) fn explain_error(code: Option<&str>) -> Result<String, String> {
    let Some(given) = code else {
        return Ok(explained().map(|it| format!("{}  {}\n", it.code, it.title)).collect());
    };
    let number = given.trim_start_matches(|c: char| !c.is_ascii_digit());
    let number: u16 = number.trim_end_matches([']', ':']).parse().map_err(|_| {
        format!("`{given}` is no code; write it as in `tollgate explain-error TG0107`")
    })?;
    let code = Code::from(number);
    let found = explained().find(|it| it.code == code);
    found.map(|it| in_words(&it)).ok_or_else(|| {
        let near = explained().min_by_key(|it| it.code.number().abs_diff(number));
        let near = near.map(|it| format!("; the nearest is {}: {}", it.code, it.title));
        format!("there is no code {code}{}", near.unwrap_or_default())
    })
}

fn in_words(Explained { code, title, text }: &Explained) -> String {
    let lines = text.lines().map(|line| line.strip_prefix("* ").unwrap_or(line));
    let text: String = lines.map(|line| format!("{}\n", without_links(line))).collect();
    let page = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs/errors.md");
    let anchor = code.to_string().to_lowercase();
    format!("{code}: {title}\n\n{text}\n{page}#{anchor}\n")
}

/// Replaces `[text](address)` by the text.
fn without_links(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some((before, link)) = rest.split_once("](") {
        let Some((_, after)) = link.split_once(')') else { break };
        let start = before.rfind('[').unwrap_or(before.len());
        out.push_str(&before[..start]);
        out.push_str(before.get(start + 1..).unwrap_or_default());
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_found_as_messages_write_them() {
        let expected = explain_error(Some("TG0107")).unwrap();
        assert!(expected.starts_with("TG0107: A request costs more"), "{expected}");
        assert!(expected.ends_with("/docs/errors.md#tg0107\n"), "{expected}");
        for given in ["tg0107", "TG107", "107", "error[TG0107]:", "[TG0107]"] {
            assert_eq!(explain_error(Some(given)).unwrap(), expected, "{given}");
        }
    }

    #[test]
    fn unknown_codes_name_nearest() {
        let error = explain_error(Some("TG0108x")).unwrap_err();
        assert!(error.contains("`TG0108x` is no code"), "{error}");
        let error = explain_error(Some("TG0199")).unwrap_err();
        assert!(error.starts_with("there is no code TG0199; the nearest is TG0201: "), "{error}");
        assert!(explain_error(Some("TG999999")).is_err() && explain_error(Some("")).is_err());
    }

    #[test]
    fn list_has_each_code_once() {
        let list = explain_error(None).unwrap();
        assert_eq!(list.lines().count(), explained().count());
        assert!(list.contains("TG0008  There is no such key\n"), "{list}");
    }

    #[test]
    fn links_become_text() {
        assert_eq!(without_links("see [a](b.md#c), [d](e) and [f]"), "see a, d and [f]");
        assert_eq!(without_links("apis: [{a: b}](x"), "apis: [{a: b}](x");
    }
}
