use std::fmt;

use super::encode::{Tag, joined};
use super::{KeyError, KeySource, Subject, SubjectKind, SubjectName};
use crate::head::RequestHead;

/// Key source: a closure. Created by [`from_fn`].
#[derive(Clone, Copy)]
pub struct KeyFromFn<F> {
    key: F,
    kind: SubjectKind,
}

/// Makes a key source from a closure that returns the key's bytes, or `None` for no key.
///
/// The key is forgeable if the closure reads a header, path or query that a client chooses. Two
/// closures in the same chain share keys with equal bytes: add a prefix if they must differ.
///
/// ```
/// // One quota per host name: cloning a header value is cheap.
/// let per_host = tollgate::key::from_fn(|head| head.headers.get("host").cloned());
/// ```
///
/// The result must not borrow from the request. Otherwise the compiler reports that a lifetime may
/// not live long enough. Use [`from_ref`] for such a closure:
///
/// ```compile_fail
/// let per_host = tollgate::key::from_fn(|head| head.headers.get("host")?.to_str().ok());
/// ```
pub const fn from_fn<F, B>(key: F) -> KeyFromFn<F>
where
    F: Fn(&RequestHead<'_>) -> Option<B> + Send + Sync + 'static,
    B: AsRef<[u8]>,
{
    KeyFromFn { key, kind: SubjectKind::Other }
}

impl<F> KeyFromFn<F> {
    /// Sets the key's kind in metrics, [`SubjectKind::Other`] by default.
    #[must_use]
    pub fn of_kind(self, kind: SubjectKind) -> Self {
        Self { kind, ..self }
    }

    fn subject_of(&self, bytes: &[u8]) -> Subject {
        Subject { kind: self.kind, key: joined(Tag::Closure, &[bytes]) }
    }
}

impl<F, B> KeySource for KeyFromFn<F>
where
    F: Fn(&RequestHead<'_>) -> Option<B> + Send + Sync + 'static,
    B: AsRef<[u8]>,
{
    fn subject(&self, head: &RequestHead<'_>) -> Result<Option<Subject>, KeyError> {
        Ok((self.key)(head).map(|bytes| self.subject_of(bytes.as_ref())))
    }

    /// Assumes that the closure returns the text in the name.
    fn named(&self, name: &SubjectName) -> Option<Subject> {
        let text = match (self.kind, name) {
            (SubjectKind::User, SubjectName::User { issuer: None, name }) => name,
            (SubjectKind::ApiKey, SubjectName::ApiKey(key)) => key,
            (SubjectKind::Ip, SubjectName::Ip(ip)) => &ip.to_string(),
            (_, SubjectName::Other(text)) => text,
            _ => return None,
        };
        Some(self.subject_of(text.as_bytes()))
    }
}

/// Makes a key source from a closure that borrows text from the request instead of copying it.
/// Otherwise it is the same as [`from_fn`].
///
/// ```
/// let per_host = tollgate::key::from_ref(|head| head.headers.get("host")?.to_str().ok());
/// ```
pub const fn from_ref<F>(key: F) -> impl KeySource + Clone
where
    F: for<'a> Fn(&RequestHead<'a>) -> Option<&'a str> + Clone + Send + Sync + 'static,
{
    FromRef(key)
}

#[derive(Clone)]
struct FromRef<F>(F);

impl<F> KeySource for FromRef<F>
where
    F: for<'a> Fn(&RequestHead<'a>) -> Option<&'a str> + Send + Sync + 'static,
{
    fn subject(&self, head: &RequestHead<'_>) -> Result<Option<Subject>, KeyError> {
        Ok((self.0)(head).map(of_closure))
    }

    fn named(&self, name: &SubjectName) -> Option<Subject> {
        let SubjectName::Other(text) = name else { return None };
        Some(of_closure(text))
    }
}

fn of_closure(text: &str) -> Subject {
    Subject { kind: SubjectKind::Other, key: joined(Tag::Closure, &[text.as_bytes()]) }
}

impl<F> fmt::Debug for KeyFromFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyFromFn({})", self.kind.as_str())
    }
}
