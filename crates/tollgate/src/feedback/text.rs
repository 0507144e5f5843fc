//! Header values as text.

use http::HeaderMap;

/// Returns a header's value as text, or `None` if it is not visible ASCII.
pub(super) fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}
