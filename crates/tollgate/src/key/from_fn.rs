use std::fmt;
use std::sync::Arc;

use tollgate_core::Key;

use super::encode::{Tag, joined};
use super::{KeyError, KeySource, Subject, SubjectKind, SubjectName};
use crate::head::RequestHead;

/// Key source: a closure. Created by [`from_fn`], [`from_ref`] and [`try_from_fn`].
#[derive(Clone)]
pub struct KeyFromFn {
    key: Arc<KeyOf>,
    kind: SubjectKind,
}

type KeyOf = dyn Fn(&RequestHead<'_>) -> Result<Option<Key>, KeyError> + Send + Sync;

/// Makes a key source from a closure that returns the key's bytes, or `None` for no key.
///
/// The key is forgeable if the closure reads a header, path or query that a client chooses. If a
/// client can send the value twice, use [`try_from_fn`]. Two closures in the same chain share keys
/// with equal bytes: add a prefix if they must differ.
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
pub fn from_fn<F, B>(bytes: F) -> KeyFromFn
where
    F: Fn(&RequestHead<'_>) -> Option<B> + Send + Sync + 'static,
    B: AsRef<[u8]>,
{
    try_from_fn(move |head| Ok(bytes(head)))
}

/// Makes a key source from a closure that can reject ambiguous requests. Otherwise it is the same as
/// [`from_fn`].
///
/// ```
/// use tollgate::key::{self, KeyError};
///
/// let per_session = key::try_from_fn(|head| {
///     let mut values = head.headers.get_all("x-session").iter();
///     match (values.next(), values.next()) {
///         // The service might read the other value.
///         (_, Some(_)) => Err(KeyError::Ambiguous),
///         (value, None) => Ok(value.cloned()),
///     }
/// });
/// ```
pub fn try_from_fn<F, B>(bytes: F) -> KeyFromFn
where
    F: Fn(&RequestHead<'_>) -> Result<Option<B>, KeyError> + Send + Sync + 'static,
    B: AsRef<[u8]>,
{
    let key = move |head: &RequestHead<'_>| Ok(bytes(head)?.map(|bytes| key(bytes.as_ref())));
    KeyFromFn { key: Arc::new(key), kind: SubjectKind::Other }
}

/// Makes a key source from a closure that borrows text from the request instead of copying it.
/// Otherwise it is the same as [`from_fn`].
///
/// ```
/// let per_host = tollgate::key::from_ref(|head| head.headers.get("host")?.to_str().ok());
/// ```
pub fn from_ref<F>(text: F) -> KeyFromFn
where
    F: for<'a> Fn(&RequestHead<'a>) -> Option<&'a str> + Send + Sync + 'static,
{
    let key = move |head: &RequestHead<'_>| Ok(text(head).map(|text| key(text.as_bytes())));
    KeyFromFn { key: Arc::new(key), kind: SubjectKind::Other }
}

fn key(bytes: &[u8]) -> Key {
    joined(Tag::Closure, &[bytes])
}

impl KeyFromFn {
    /// Sets the key's kind in metrics, [`SubjectKind::Other`] by default.
    #[must_use]
    pub fn of_kind(self, kind: SubjectKind) -> Self {
        Self { kind, ..self }
    }
}

impl KeySource for KeyFromFn {
    fn subject(&self, head: &RequestHead<'_>) -> Result<Option<Subject>, KeyError> {
        Ok((self.key)(head)?.map(|key| Subject { kind: self.kind, key }))
    }

    /// Assumes that the closure returns the text in the name.
    fn named(&self, name: &SubjectName) -> Option<Subject> {
        let text = match (self.kind, name) {
            (SubjectKind::User, SubjectName::User { .. }) => &*name.user()?,
            (SubjectKind::ApiKey, SubjectName::ApiKey(key)) => key,
            (SubjectKind::Ip, SubjectName::Ip(ip)) => &ip.to_string(),
            (_, SubjectName::Other(text)) => text,
            _ => return None,
        };
        Some(Subject { kind: self.kind, key: key(text.as_bytes()) })
    }
}

impl fmt::Debug for KeyFromFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyFromFn({})", self.kind.as_str())
    }
}
