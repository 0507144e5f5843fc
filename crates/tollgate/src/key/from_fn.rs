//! A closure as a source.

use std::fmt;

use super::encode::{Tag, joined};
use super::{KeyError, KeySource, Subject, SubjectKind};
use crate::Head;

/// A closure as a source. Made by [`from_fn`].
#[derive(Clone, Copy)]
pub struct FromFn<F> {
    key: F,
    kind: SubjectKind,
}

/// Keys on the bytes that `key` finds; `None` where it finds nobody.
///
/// Nothing here is verified: what the closure reads from headers, path or query is
/// forgeable. Two closures in one chain share their keys where their bytes are equal:
/// begin the bytes with one of your own where that must not be.
///
/// ```
/// // One quota per host name: cloning a header value copies nothing.
/// let per_host = tollgate::key::from_fn(|head| head.headers.get("host").cloned());
/// ```
pub const fn from_fn<F, B>(key: F) -> FromFn<F>
where
    F: Fn(&Head<'_>) -> Option<B> + Send + Sync + 'static,
    B: AsRef<[u8]>,
{
    FromFn { key, kind: SubjectKind::Other }
}

impl<F> FromFn<F> {
    /// Under which kind metrics count it: [`SubjectKind::Other`] unless told.
    #[must_use]
    pub fn of_kind(self, kind: SubjectKind) -> Self {
        Self { kind, ..self }
    }
}

impl<F, B> KeySource for FromFn<F>
where
    F: Fn(&Head<'_>) -> Option<B> + Send + Sync + 'static,
    B: AsRef<[u8]>,
{
    fn subject(&self, head: &Head<'_>) -> Result<Option<Subject>, KeyError> {
        Ok((self.key)(head)
            .map(|bytes| Subject { kind: self.kind, key: joined(Tag::Closure, &[bytes.as_ref()]) }))
    }

    fn can_be_missing(&self) -> bool {
        true
    }
}

impl<F> fmt::Debug for FromFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FromFn({})", self.kind.as_str())
    }
}
