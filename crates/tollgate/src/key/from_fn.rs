use std::fmt;
use std::sync::Arc;

use tollgate_core::Key;

use super::encode::{Tag, joined};
use super::{KeyError, KeySource, Subject, SubjectKind, SubjectName};
use crate::head::RequestHead;

/// Key source: a closure. Created by [`from_fn`], [`from_ref`] and [`try_from_fn`].
#[derive(Clone)]
pub struct KeyFromFn {
    bytes: Arc<BytesOf>,
    kind: SubjectKind,
}

/// Shows the key's bytes.
type BytesOf =
    dyn Fn(&RequestHead<'_>, &mut dyn FnMut(&[u8])) -> Result<(), KeyError> + Send + Sync;

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
    KeyFromFn::showing(move |head, show| {
        bytes(head)?.iter().for_each(|bytes| show(bytes.as_ref()));
        Ok(())
    })
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
    KeyFromFn::showing(move |head, show| {
        text(head).into_iter().for_each(|text| show(text.as_bytes()));
        Ok(())
    })
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

    fn showing(
        bytes: impl Fn(&RequestHead<'_>, &mut dyn FnMut(&[u8])) -> Result<(), KeyError>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self { bytes: Arc::new(bytes), kind: SubjectKind::Other }
    }

    fn map<R>(
        &self,
        head: &RequestHead<'_>,
        of_bytes: impl Fn(&[u8]) -> R,
    ) -> Result<Option<R>, KeyError> {
        let mut result = None;
        (self.bytes)(head, &mut |bytes| result = Some(of_bytes(bytes)))?;
        Ok(result)
    }
}

impl KeySource for KeyFromFn {
    fn subject(&self, head: &RequestHead<'_>) -> Result<Option<Subject>, KeyError> {
        Ok(self.map(head, key)?.map(|key| Subject { kind: self.kind, key }))
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

    fn name(&self, head: &RequestHead<'_>) -> Option<String> {
        self.map(head, |bytes| String::from_utf8(bytes.to_vec()).ok()).ok()??
    }
}

impl fmt::Debug for KeyFromFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyFromFn({})", self.kind.as_str())
    }
}
