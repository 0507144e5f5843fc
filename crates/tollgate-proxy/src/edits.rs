//! Configured changes to headers.

use std::fmt;

use http::header::{HOST, HeaderMap, HeaderName, HeaderValue, VIA};

use crate::header_names::{is_framing, is_spelling};

/// Header fields that are removed and set, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    set: Vec<(HeaderName, HeaderValue)>,
    remove: Vec<HeaderName>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    #[error("the header describes the message length or the connection")]
    Framing,
    #[error("the header `Host` has its own setting")]
    Host,
    /// Otherwise a request could loop forever.
    #[error("the gateway detects loops with this header")]
    Via,
}

impl Edits {
    pub fn set(&mut self, name: HeaderName, mut value: HeaderValue) -> Result<(), EditError> {
        check(&name)?;
        // The value may be a password.
        value.set_sensitive(true);
        self.set.push((name, value));
        Ok(())
    }

    pub fn remove(&mut self, name: HeaderName) -> Result<(), EditError> {
        check(&name)?;
        self.remove.push(name);
        Ok(())
    }

    pub const fn is_empty(&self) -> bool {
        self.set.is_empty() && self.remove.is_empty()
    }

    pub fn apply(&self, headers: &mut HeaderMap) {
        self.clear(headers);
        headers.extend(self.set.iter().cloned());
    }

    /// Removes the fields that are removed or set, in every spelling. Otherwise a service that
    /// reads `_` as `-` would find the client's value.
    pub fn clear(&self, headers: &mut HeaderMap) {
        if self.is_empty() {
            return;
        }
        let names = || self.set.iter().map(|(name, _)| name).chain(&self.remove);
        let is_edited =
            |name: &HeaderName| names().any(|known| is_spelling(name.as_str(), known.as_str()));
        let edited: Vec<_> = headers.keys().filter(|name| is_edited(name)).cloned().collect();
        for name in edited {
            headers.remove(name);
        }
    }
}

/// Only the names, because a value may be a password.
impl fmt::Display for Edits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = self.set.iter().map(|(name, _)| ("set", name));
        let all = set.chain(self.remove.iter().map(|name| ("remove", name)));
        for (index, (what, name)) in all.enumerate() {
            write!(f, "{}{what} {name}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

fn check(name: &HeaderName) -> Result<(), EditError> {
    let is = |known: &HeaderName| is_spelling(name.as_str(), known.as_str());
    if is_framing(name.as_str()) {
        Err(EditError::Framing)
    } else if is(&HOST) {
        Err(EditError::Host)
    } else if is(&VIA) {
        Err(EditError::Via)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_replaces_all_values_and_spellings() {
        let mut edits = Edits::default();
        edits.set(HeaderName::from_static("x-role"), HeaderValue::from_static("none")).unwrap();
        edits.remove(HeaderName::from_static("x-gone")).unwrap();
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-role", "admin"),
            ("x_role", "admin"),
            ("x-gone", "1"),
            ("x_gone", "1"),
            ("x-kept", "1"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers.append("x-role", HeaderValue::from_static("root"));
        edits.apply(&mut headers);
        let left: Vec<_> = headers.iter().map(|(name, value)| (name.as_str(), value)).collect();
        assert_eq!(left.len(), 2, "{left:?}");
        assert_eq!(
            (&headers["x-role"], &headers["x-kept"]),
            (&"none".parse().unwrap(), &"1".parse().unwrap())
        );
        assert!(!format!("{edits:?}").contains("none"), "a value may be a password");
    }

    #[test]
    fn framing_headers_cannot_be_edited() {
        for (name, error) in [
            ("content-length", EditError::Framing),
            ("content_length", EditError::Framing),
            ("transfer-encoding", EditError::Framing),
            ("connection", EditError::Framing),
            ("upgrade", EditError::Framing),
            ("te", EditError::Framing),
            ("keep-alive", EditError::Framing),
            ("host", EditError::Host),
            ("via", EditError::Via),
        ] {
            let (name, mut edits) = (HeaderName::from_static(name), Edits::default());
            let value = HeaderValue::from_static("0");
            assert_eq!(edits.set(name.clone(), value), Err(error), "{name}");
            assert_eq!(edits.remove(name), Err(error));
            assert!(edits.is_empty());
        }
    }
}
