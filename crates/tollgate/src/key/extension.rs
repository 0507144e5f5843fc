use std::fmt;
use std::sync::Arc;

use tollgate_core::Key;

use super::encode::{Tag, joined};
use super::{KeyError, KeySource, Subject, SubjectKind, SubjectName};
use crate::head::RequestHead;

/// Key source: the user that an authentication layer stored in the request extensions.
///
/// This is the best source for users, because each token is verified only once and the limiter
/// and the application cannot disagree. The authentication layer must be outside of the limiter.
///
/// ```
/// use tollgate::key::FromExtension;
///
/// #[derive(Clone)]
/// struct Account {
///     id: u64,
/// }
///
/// let user = FromExtension::<Account>::new(|account| Some(account.id.to_be_bytes()));
/// ```
///
/// Two extensions in the same chain share keys with equal bytes: add a prefix if they must differ.
pub struct FromExtension<T> {
    bytes: Arc<BytesOf<T>>,
}

/// Shows the key's bytes.
type BytesOf<T> = dyn Fn(&T, &mut dyn FnMut(&[u8])) + Send + Sync;

impl<T: Send + Sync + 'static> FromExtension<T> {
    /// Uses the bytes that `id` returns for an extension of type `T`. `None` means no key.
    pub fn new<B, F>(id: F) -> Self
    where
        B: AsRef<[u8]>,
        F: Fn(&T) -> Option<B> + Send + Sync + 'static,
    {
        Self::showing(move |value, show| id(value).iter().for_each(|bytes| show(bytes.as_ref())))
    }

    /// Like [`new`](Self::new), for a key that can be borrowed: `FromExtension::borrowed(|user: &User|
    /// Some(&user.name))`.
    pub fn borrowed<B, F>(id: F) -> Self
    where
        B: AsRef<[u8]> + ?Sized,
        F: for<'a> Fn(&'a T) -> Option<&'a B> + Send + Sync + 'static,
    {
        Self::showing(move |value, show| id(value).iter().for_each(|bytes| show(bytes.as_ref())))
    }

    fn showing(bytes: impl Fn(&T, &mut dyn FnMut(&[u8])) + Send + Sync + 'static) -> Self {
        Self { bytes: Arc::new(bytes) }
    }

    fn map<R>(&self, head: &RequestHead<'_>, of_bytes: impl Fn(&[u8]) -> R) -> Option<R> {
        let mut result = None;
        (self.bytes)(head.extensions.get::<T>()?, &mut |bytes| result = Some(of_bytes(bytes)));
        result
    }
}

impl<T: Send + Sync + 'static> KeySource for FromExtension<T> {
    fn subject(&self, head: &RequestHead<'_>) -> Result<Option<Subject>, KeyError> {
        Ok(self.map(head, key).map(|key| Subject { kind: SubjectKind::User, key }))
    }

    fn named(&self, name: &SubjectName) -> Option<Subject> {
        Some(Subject { kind: SubjectKind::User, key: key(name.user()?.as_bytes()) })
    }

    fn name(&self, head: &RequestHead<'_>) -> Option<String> {
        self.map(head, |bytes| String::from_utf8(bytes.to_vec()).ok())?
    }
}

fn key(bytes: &[u8]) -> Key {
    joined(Tag::Extension, &[bytes])
}

impl<T> Clone for FromExtension<T> {
    fn clone(&self) -> Self {
        Self { bytes: Arc::clone(&self.bytes) }
    }
}

impl<T> fmt::Debug for FromExtension<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FromExtension<{}>", std::any::type_name::<T>())
    }
}
