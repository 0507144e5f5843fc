//! Header values that are the same in every response.

use std::collections::HashSet;

use http::HeaderValue;
use parking_lot::Mutex;

/// A value of this line that is cloned without counting references.
///
/// A value that is shared counts its clones, and on several cores that count wanders
/// from one to the other; one that is copied is allocated each time. A static one is
/// neither. So the text is kept for as long as the program runs. Equal texts are kept
/// once, so that layers which are built again and again, say when a configuration is
/// reloaded, hold no more than their different policies.
pub(super) fn interned(line: &[u8]) -> Option<HeaderValue> {
    static TEXTS: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let line = std::str::from_utf8(line).ok()?;
    // What is not visible ASCII makes no header, and `from_static` would panic.
    HeaderValue::from_str(line).ok()?;
    let mut texts = TEXTS.lock();
    let texts = texts.get_or_insert_default();
    let text = match texts.get(line) {
        Some(text) => *text,
        None => {
            let text: &'static str = Box::leak(line.into());
            texts.insert(text);
            text
        }
    };
    Some(HeaderValue::from_static(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_are_kept_once() {
        let (one, other) = (interned(b"\"p\";q=1").unwrap(), interned(b"\"p\";q=1").unwrap());
        assert_eq!(one.as_bytes().as_ptr(), other.as_bytes().as_ptr());
        assert_eq!(one, "\"p\";q=1");
    }

    #[test]
    fn what_makes_no_header_is_none() {
        assert_eq!(interned(b"a\nb"), None);
        assert_eq!(interned(&[0xff]), None);
    }
}
