//! The key source trait and its result types.

use std::error::Error;
use std::sync::Arc;

use tollgate_core::Key;
use tollgate_engine::SubjectKind;

use super::name::SubjectName;
use crate::head::RequestHead;

/// A quota's owner: a key and the kind of identity behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The kind of identity behind the key.
    pub kind: SubjectKind,
    /// The key under which the quota is stored.
    pub key: Key,
}

/// Finds a request's key, for example a client address or an API key.
///
/// An `ApiKey` without a verifier is not a source. The compiler suggests the fix:
///
/// ```compile_fail
/// use tollgate::key::{ApiKey, KeySource};
///
/// fn source(_: impl KeySource) {}
/// source(ApiKey::in_x_api_key()); // an `ApiKey` needs a verifier: `.one_of(keys)`
/// ```
///
/// # Cost
/// It runs for every request, before any limit, so it must neither block nor do I/O. The sources in
/// this module do not allocate, except to verify a token.
///
/// # Attacker
/// Clients control the input. The source must not panic on any input, and must return `Ok(None)`
/// instead of an error for anything that a client can cause. The exception is a request with several
/// keys: it gets [`KeyError::Ambiguous`], because a missing key would let the chain's next source
/// apply, and the client would escape its quota.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot identify a request's client",
    label = "not a `KeySource`",
    note = "use a source from `tollgate::key`, such as `ClientIp::peer()`, or a closure: `key::from_fn(|head| ..)` that returns owned bytes, or `key::from_ref(|head| ..)` that borrows a text",
    note = "an `ApiKey` needs a verifier: `.one_of(keys)` or `.verified_by(|key| ..)`"
)]
pub trait KeySource: Send + Sync + 'static {
    /// Returns the quota's owner. If it returns `Ok(None)`, the chain's next source is called.
    ///
    /// # Errors
    /// The request is ambiguous, and a layer responds with 400. Or the server's configuration does
    /// not allow the source to work, and a layer responds with 500 and logs the error.
    fn subject(&self, head: &RequestHead<'_>) -> Result<Option<Subject>, KeyError>;

    /// Whether [`subject`](Self::subject) can return `Ok(None)`: `true` by default. A layer then
    /// needs an [`OnMissingKey`](crate::limit::OnMissingKey).
    fn can_be_missing(&self) -> bool {
        true
    }

    /// Returns the subject that an operator names, with the key that its requests have. By default,
    /// operators name a source's subjects by their keys, in the form `key:…`.
    fn named(&self, name: &SubjectName) -> Option<Subject> {
        let _ = name;
        None
    }

    /// Returns the subject's name for a [`QuotaLookup`](crate::tier::QuotaLookup): the text after
    /// the colon in its [`SubjectName`], but for an API key the SHA-256 in hex. It is called only
    /// when a quota is looked up. By default, and for bytes that are not UTF-8, the look-up gets the
    /// key's bytes in hex.
    fn name(&self, head: &RequestHead<'_>) -> Option<String> {
        let _ = head;
        None
    }

    /// Calls `other` if this source finds no subject.
    fn or<K: KeySource>(self, other: K) -> Or<Self, K>
    where
        Self: Sized,
    {
        Or { first: self, second: other }
    }
}

macro_rules! forward_to_inner {
    ($($pointer:ident),*) => {$(
        impl<K: KeySource + ?Sized> KeySource for $pointer<K> {
            fn subject(&self, head: &RequestHead<'_>) -> Result<Option<Subject>, KeyError> {
                (**self).subject(head)
            }

            fn can_be_missing(&self) -> bool {
                (**self).can_be_missing()
            }

            fn named(&self, name: &SubjectName) -> Option<Subject> {
                (**self).named(name)
            }

            fn name(&self, head: &RequestHead<'_>) -> Option<String> {
                (**self).name(head)
            }
        }
    )*};
}

forward_to_inner!(Arc, Box);

/// Key source: uses the second source if the first finds no key. Created by [`KeySource::or`].
///
/// Tags keep the keys of different sources apart, except for two closures or two
/// [`FromExtension`](super::FromExtension)s.
#[derive(Clone, Copy, Debug)]
pub struct Or<A, B> {
    first: A,
    second: B,
}

impl<A: KeySource, B: KeySource> KeySource for Or<A, B> {
    fn subject(&self, head: &RequestHead<'_>) -> Result<Option<Subject>, KeyError> {
        match self.first.subject(head)? {
            None => self.second.subject(head),
            found => Ok(found),
        }
    }

    fn can_be_missing(&self) -> bool {
        self.first.can_be_missing() && self.second.can_be_missing()
    }

    fn named(&self, name: &SubjectName) -> Option<Subject> {
        self.first.named(name).or_else(|| self.second.named(name))
    }

    fn name(&self, head: &RequestHead<'_>) -> Option<String> {
        match self.first.subject(head) {
            Ok(None) => self.second.name(head),
            _ => self.first.name(head),
        }
    }
}

/// The error for an ambiguous request, or for a key source that cannot work because the server is
/// misconfigured.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The request has no peer address.
    #[doc(alias = "TG0201")]
    #[error(
        "client IP: no peer address in the request's extensions; with axum enable the feature \
         `axum` of tollgate and serve with \
         `into_make_service_with_connect_info::<SocketAddr>()`, or insert a `SocketAddr` \
         extension for each connection, or use `ClientIp::from_fn` [TG0201]"
    )]
    NoPeerAddress,

    /// The peer is a Unix socket, and the source has no rule for it.
    #[doc(alias = "TG0204")]
    #[error(
        "client IP: the peer is a Unix socket, which has no address; add `trust_unix_peer()` if \
         the process behind it is a proxy that sets the forwarding header, or \
         `skip_unix_peer()` to let the next source of the chain decide [TG0204]"
    )]
    UnixPeer,

    /// The request contains several values for one client, for example two lines of `X-API-Key`.
    /// The service behind the layer might use another value than the limiter. A layer responds with
    /// 400 and the code `ambiguous-key`, regardless of other sources in the chain.
    #[error("the request identifies its client more than once")]
    Ambiguous,

    /// Another source's error.
    #[error("key source: {0}")]
    Other(#[source] Box<dyn Error + Send + Sync>),
}

tollgate_core::debug_as_display!(KeyError);
