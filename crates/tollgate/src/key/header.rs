use http::HeaderName;

use super::credentials::only_value;
use super::encode::{Tag, joined};
use super::{KeyError, KeySource, Subject, SubjectKind, SubjectName};
use crate::head::RequestHead;

/// Key source: a header's text, without verification.
///
/// **Forgeable**: the client chooses the value, unless every request passes through a proxy that
/// overwrites the header. Use [`ApiKey`](super::ApiKey) for keys, and [`ClientIp`](super::ClientIp)
/// for addresses.
///
/// A request has no key if the header is absent, empty or longer than 8 KiB. A request with several
/// values is rejected ([`KeyError::Ambiguous`]). Values are compared bytewise.
#[derive(Clone, Debug)]
pub struct Header(HeaderName);

impl Header {
    /// Uses the text of the header `name` as the key. The client chooses this text.
    pub const fn trust_unverified(name: HeaderName) -> Self {
        Self(name)
    }

    fn subject_of(&self, value: &[u8]) -> Subject {
        Subject {
            kind: SubjectKind::Other,
            // Includes the name, so two headers in the same chain do not share quotas.
            key: joined(Tag::Header, &[self.0.as_str().as_bytes(), value]),
        }
    }
}

impl KeySource for Header {
    fn subject(&self, head: &RequestHead<'_>) -> Result<Option<Subject>, KeyError> {
        Ok(only_value(head.headers, &self.0)?.map(|value| self.subject_of(value)))
    }

    fn named(&self, name: &SubjectName) -> Option<Subject> {
        let SubjectName::Header(value) = name else { return None };
        Some(self.subject_of(value.as_bytes()))
    }

    fn name(&self, head: &RequestHead<'_>) -> Option<String> {
        let value = only_value(head.headers, &self.0).ok()??;
        String::from_utf8(value.to_vec()).ok()
    }
}
