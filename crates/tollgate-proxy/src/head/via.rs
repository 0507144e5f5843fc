//! The header `Via`, which shows the proxies that a request has passed.

use std::sync::Arc;

use http::Version;
use http::header::{HeaderMap, HeaderValue, InvalidHeaderValue, VIA};

use super::fields::append;

/// This gateway in `Via`.
#[derive(Clone, Debug)]
pub struct Via {
    name: Arc<str>,
    /// For HTTP/1.0, HTTP/1.1 and HTTP/2.
    elements: [HeaderValue; 3],
}

impl Via {
    pub fn new(name: &str) -> Result<Self, InvalidHeaderValue> {
        let element = |version: &str| HeaderValue::try_from(format!("{version} {name}"));
        Ok(Self {
            name: name.into(),
            elements: [element("1.0")?, element("1.1")?, element("2.0")?],
        })
    }

    /// Whether the request has passed this gateway before, and would loop forever.
    pub(crate) fn is_in(&self, headers: &HeaderMap) -> bool {
        headers.get_all(VIA).iter().any(|line| {
            line.to_str().is_ok_and(|line| {
                line.split(',').any(|hop| hop.split_whitespace().nth(1) == Some(&*self.name))
            })
        })
    }

    /// Appends this gateway to `Via` (RFC 9110 §7.6.3).
    pub(crate) fn append_to(&self, headers: &mut HeaderMap, version: Version) {
        let [http10, http11, http2] = &self.elements;
        let element = match version {
            Version::HTTP_10 => http10,
            Version::HTTP_2 => http2,
            _ => http11,
        };
        append(headers, &VIA, element.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn via_detects_loops() {
        let mut headers = HeaderMap::new();
        let (ours, other) = (Via::new("tollgate-1").unwrap(), Via::new("other").unwrap());
        other.append_to(&mut headers, Version::HTTP_2);
        assert!(!ours.is_in(&headers));
        ours.append_to(&mut headers, Version::HTTP_11);
        assert_eq!(headers["via"], "2.0 other, 1.1 tollgate-1");
        assert!(ours.is_in(&headers));
        assert!(!Via::new("tollgate").unwrap().is_in(&headers));
    }
}
