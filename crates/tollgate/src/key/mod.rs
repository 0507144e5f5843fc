//! Key sources, which find the [`Key`] of a request: a client address, an API key, a user.
//!
//! A [`KeySource`] reads the [`RequestHead`] and returns a [`Subject`], or no subject, or an error if
//! the server is set up wrongly. [`KeySource::or`] and [`chain`] fall back to other sources (user,
//! else API key, else address); a tuple combines sources (per user *and* route).
//!
//! | source | subject | forgeable by a client |
//! |---|---|---|
//! | [`Global`] | all clients together | no |
//! | [`ClientIp`] | the address, IPv6 by /64 | no, if `behind` lists exactly the proxies |
//! | [`ApiKey`] | a key that a verifier accepts | no, unless `trust_unverified` |
//! | `JwtUser` (feature `jwt`) | issuer and subject of a verified token | no |
//! | [`FromExtension`] | a value of an outer layer | depends on the layer |
//! | [`MatchedRoute`] | the pattern of the route | no |
//! | [`PathParam`] | a parameter of the route, percent-decoded | **yes** |
//! | [`Header`] | the text of a header | **yes** |
//! | [`from_fn`] | the result of a closure | depends on the closure |
//!
//! A forgeable key limits nothing: a new value for each request is a new quota, and a victim's
//! value uses the victim's quota. Use a forgeable source only beside another limit.
//!
//! ```
//! use tollgate::key::{ApiKey, ApiKeys, ClientIp, KeySource};
//!
//! // Customers by API key, all other clients by the address that the proxies report.
//! let keys = ApiKeys::from_keys(["k-7f3a", "k-91bc"]);
//! let source = ApiKey::in_x_api_key().one_of(keys).or(ClientIp::behind(["10.0.0.0/8"])?);
//! assert!(!source.can_be_missing());
//! # Ok::<(), tollgate::key::ClientIpError>(())
//! ```

mod api_key;
mod chain;
mod credentials;
mod encode;
mod extension;
mod format;
mod from_fn;
mod header;
mod ip;
#[cfg(feature = "jwt")]
mod jwt;
mod name;
mod path_param;
pub(crate) mod route;
mod tuple;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
pub use tollgate_core::Key;

pub use crate::head::RequestHead;

pub use api_key::{ApiKey, ApiKeys, ApiKeysError, UnverifiedApiKey};
pub use chain::{Chain, Or, chain};
pub use extension::FromExtension;
pub use format::{SubjectFormat, SubjectFormatter};
pub use from_fn::{FromFn, from_fn, from_ref};
pub use header::Header;
pub(crate) use ip::network;
pub use ip::{ClientIp, ClientIpError, TrustedProxies, UnixPeer};
#[cfg(feature = "jwt")]
pub use jwt::{JwtKey, JwtKeyError, JwtKeys, JwtUser, JwtVerifier, TokenCheck};
pub use name::{SubjectName, SubjectNameError};
pub use path_param::PathParam;
pub use route::{MatchedRoute, RoutePattern};

/// The owner of a quota: a key, and the kind of identity behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The kind of identity behind the key.
    pub kind: SubjectKind,
    /// The key under which the quota is stored.
    pub key: Key,
}

/// The kind of identity behind a key, with few values, for a label of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SubjectKind {
    /// All clients together.
    Global,
    /// A client address, or the network around it.
    Ip,
    /// An API key.
    ApiKey,
    /// A verified user.
    User,
    /// Any other: a header, a route, the result of a closure.
    Other,
}

impl SubjectKind {
    /// Returns the word for this kind in logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::Ip => "ip",
            Self::ApiKey => "api_key",
            Self::User => "user",
            Self::Other => "other",
        }
    }
}

/// Finds the key of a request, for example a client address or an API key.
///
/// An `ApiKey` without a verifier is not a source; the compiler names the cure:
///
/// ```compile_fail
/// use tollgate::key::{ApiKey, KeySource};
///
/// fn source(_: impl KeySource) {}
/// source(ApiKey::in_x_api_key()); // an `ApiKey` needs a verifier: `.one_of(keys)`
/// ```
///
/// # Cost
/// It runs for every request, before any limit: it must neither block nor do I/O. The sources of
/// this module do not allocate, except to verify a token.
///
/// # Attacker
/// It must not panic on any input, and must return `Ok(None)`, never an error, for anything that a
/// client can cause.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say whose quota a request uses",
    label = "not a `KeySource`",
    note = "take a source of `tollgate::key`, as `ClientIp::peer()`, or a closure by `key::from_fn(|head| ..)` that returns owned bytes, or `key::from_ref(|head| ..)` that borrows a text",
    note = "an `ApiKey` needs a verifier: `.one_of(keys)` or `.verified_by(|key| ..)`"
)]
pub trait KeySource: Send + Sync + 'static {
    /// Returns the owner of the quota, or `Ok(None)`: then the next source of a chain is called.
    ///
    /// # Errors
    /// The server is set up so that the source cannot work. A layer responds with 500 and logs the
    /// error.
    fn subject(&self, head: &RequestHead<'_>) -> Result<Option<Subject>, KeyError>;

    /// Whether [`subject`](Self::subject) can return `Ok(None)`: `true` by default. A layer then
    /// needs an [`OnMissingKey`](crate::limit::OnMissingKey).
    fn can_be_missing(&self) -> bool {
        true
    }

    /// The subject that an operator names, with the key of its requests. By default operators name
    /// subjects of a source by their keys, as `key:…`.
    fn named(&self, name: &SubjectName) -> Option<Subject> {
        let _ = name;
        None
    }

    /// Calls `other` if this source finds no subject.
    fn or<K: KeySource>(self, other: K) -> Or<Self, K>
    where
        Self: Sized,
    {
        Or::new(self, other)
    }
}

macro_rules! forward_to_the_pointee {
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
        }
    )*};
}

forward_to_the_pointee!(Arc, Box);

/// The error of a key source that cannot work: a fault of the server, not of the request.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The request has no peer address.
    #[error(
        "client IP: no peer address in the request's extensions; with axum enable the feature \
         `axum` of tollgate and serve with \
         `into_make_service_with_connect_info::<SocketAddr>()`, or insert a `SocketAddr` \
         extension for each connection, or use `ClientIp::from_fn`"
    )]
    NoPeerAddress,

    /// The peer is a Unix socket, and the source has no rule for it.
    #[error(
        "client IP: the peer is a Unix socket, which has no address; add `trust_unix_peer()` if \
         the process behind it is a proxy that sets the forwarding header, or \
         `skip_unix_peer()` to let the next source of the chain decide"
    )]
    UnixPeer,

    /// The error of another source.
    #[error("key source: {0}")]
    Other(#[source] Box<dyn Error + Send + Sync>),
}

tollgate_core::debug_as_display!(KeyError);

/// Logs sources that cannot work once per minute, because all requests fail alike.
#[derive(Debug, Default)]
pub(crate) struct FaultLog(Mutex<Option<Instant>>);

impl FaultLog {
    const PAUSE: Duration = Duration::from_secs(60);

    pub(crate) fn report(&self, error: &KeyError) {
        let mut logged = self.0.lock();
        if logged.is_none_or(|at| at.elapsed() >= Self::PAUSE) {
            *logged = Some(Instant::now());
            tracing::error!(target: "tollgate", %error, "cannot tell who is asking");
        }
    }
}

/// Key source: one quota for all clients.
#[derive(Clone, Copy, Debug, Default)]
pub struct Global;

impl KeySource for Global {
    fn subject(&self, _: &RequestHead<'_>) -> Result<Option<Subject>, KeyError> {
        Ok(Some(Subject { kind: SubjectKind::Global, key: Key::GLOBAL }))
    }

    fn can_be_missing(&self) -> bool {
        false
    }

    fn named(&self, name: &SubjectName) -> Option<Subject> {
        let key = Key::GLOBAL;
        (*name == SubjectName::Global).then_some(Subject { kind: SubjectKind::Global, key })
    }
}

#[cfg(test)]
mod tests;
