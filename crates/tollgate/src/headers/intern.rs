//! Header values that are the same in every response.

use std::collections::HashSet;

use http::HeaderValue;
use parking_lot::Mutex;

/// Returns a value with this text that is cloned without a reference count.
///
/// A shared value's count would move between cores, and a copy would allocate. So each distinct
/// text is leaked exactly once: a configuration reload adds only new texts.
pub(super) fn interned(value: &[u8]) -> Option<HeaderValue> {
    static TEXTS: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let value = std::str::from_utf8(value).ok()?;
    // `from_static` panics on invalid texts.
    HeaderValue::from_str(value).ok()?;
    let mut texts = TEXTS.lock();
    let texts = texts.get_or_insert_default();
    let text = match texts.get(value) {
        Some(text) => *text,
        None => {
            let text: &'static str = Box::leak(value.into());
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
    fn equal_texts_are_interned_once() {
        let (one, other) = (interned(b"\"p\";q=1").unwrap(), interned(b"\"p\";q=1").unwrap());
        assert_eq!(one.as_bytes().as_ptr(), other.as_bytes().as_ptr());
        assert_eq!(one, "\"p\";q=1");
    }

    #[test]
    fn invalid_text_is_not_interned() {
        assert_eq!(interned(b"a\nb"), None);
        assert_eq!(interned(&[0xff]), None);
    }
}
