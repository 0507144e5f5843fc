//! Whose quota is used: where a request's [`Key`] comes from.
//!
//! A [`KeySource`] looks at the [`RequestHead`] of a request and names a [`Subject`], or
//! says that this request has none of its sort, or that the server is set up so
//! that it can never tell. Sources combine: [`KeySource::or`] and [`chain`] fall
//! back (user, else API key, else address), a tuple asks for all of its parts (per
//! user *and* route).
//!
//! | source | subject | forgeable by a client |
//! |---|---|---|
//! | [`Global`] | everybody together | no |
//! | [`ClientIp`] | the address, IPv6 by /64 | no, if `behind` lists exactly the proxies |
//! | [`ApiKey`] | a key that a verifier accepts | no, unless `trust_unverified` |
//! | `JwtUser` (feature `jwt`) | issuer and subject of a verified token | no |
//! | [`Extension`] | what a layer before put down | as far as that layer lets it |
//! | [`MatchedRoute`] | the route's pattern | no |
//! | [`PathParam`] | a parameter of the route, percent-decoded | **yes** |
//! | [`Header`] | the text of a header | **yes** |
//! | [`from_fn`] | what the closure says | as far as the closure lets it |
//!
//! What a client can forge limits nothing: a fresh value for each request is a fresh
//! quota, and a victim's value spends the victim's quota. Put a forgeable source only
//! beside a limit that is not.
//!
//! ```
//! use tollgate::key::{ApiKey, ApiKeys, ClientIp, KeySource};
//!
//! // Customers by their key, everybody else by address, as the proxies report it.
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
mod from_fn;
mod header;
mod ip;
#[cfg(feature = "jwt")]
mod jwt;
mod name;
mod path_param;
pub(crate) mod route;
#[cfg(feature = "admin")]
mod shown;
mod tuple;

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
pub use tollgate_core::Key;

use crate::RequestHead;

pub use api_key::{ApiKey, ApiKeys, ApiKeysError, UnverifiedApiKey};
pub use chain::{Chain, Or, chain};
pub use extension::Extension;
pub use from_fn::{FromFn, FromRef, from_fn, from_ref};
pub use header::Header;
pub(crate) use ip::as_v4;
pub use ip::{ClientIp, ClientIpError, TrustedProxies, UnixPeer};
#[cfg(feature = "jwt")]
pub use jwt::{JwtKey, JwtKeyError, JwtKeys, JwtUser, JwtVerifier};
pub use name::{SubjectName, SubjectNameError};
pub use path_param::PathParam;
pub use route::{MatchedRoute, RoutePattern};
#[cfg(feature = "admin")]
pub(crate) use shown::Display;
#[cfg(feature = "admin")]
pub use shown::Shown;

/// Who is asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// What sort of identity it is.
    pub kind: SubjectKind,
    /// Whose quota is used.
    pub key: Key,
}

/// What sort of identity a request was counted under: few values, so that it can label a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SubjectKind {
    /// Everybody together.
    Global,
    /// A client address, or the network around it.
    Ip,
    /// An API key.
    ApiKey,
    /// A user that somebody has verified.
    User,
    /// Anything else: a header, a route, a closure's answer.
    Other,
}

impl SubjectKind {
    /// The word for logs and metrics.
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

/// Names the subject of a request.
///
/// # Cost
/// It runs for every request, before any limit: it must neither block nor do I/O,
/// and those of this module do not allocate, except to verify a token.
///
/// # Attacker
/// It reads what a stranger sent. It must not panic on any bytes, and must return
/// `Ok(None)`, never an error, for whatever a client can bring about.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say whose quota a request uses",
    label = "not a `KeySource`",
    note = "take a source of `tollgate::key`, as `ClientIp::peer()`, or a closure by `key::from_fn(|head| ..)` that returns owned bytes, or `key::from_ref(|head| ..)` that borrows a text",
    note = "an `ApiKey` has to be told whom to believe: `.one_of(keys)` or `.verified_by(|key| ..)`"
)]
pub trait KeySource: Send + Sync + 'static {
    /// The subject; `Ok(None)` if this request has none of this sort, so that the
    /// next source of a chain is asked.
    ///
    /// # Errors
    /// The server is set up so that the source cannot work; a layer answers 500 and logs it.
    fn subject(&self, head: &RequestHead<'_>) -> Result<Option<Subject>, KeyError>;

    /// Whether [`subject`](Self::subject) can return `Ok(None)`. A layer then has to be
    /// told what becomes of such requests.
    fn can_be_missing(&self) -> bool;

    /// The subject that an operator names, with the key that its requests have; none if this
    /// source finds no such subjects. A source of your own has none unless it says so, and
    /// its subjects are named by their keys, as `key:…`.
    fn named(&self, name: &SubjectName) -> Option<Subject> {
        let _ = name;
        None
    }

    /// Asks `other` about the requests in which this source finds nothing.
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

/// Why no source could work: a fault in how the server is put together, not in the request.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// Nothing in the request tells where it came from.
    #[error(
        "client IP: no peer address in the request's extensions; with axum enable the feature \
         `axum` of tollgate and serve with \
         `into_make_service_with_connect_info::<SocketAddr>()`, or insert a `SocketAddr` \
         extension for each connection, or use `ClientIp::from_fn`"
    )]
    NoPeerAddress,

    /// The peer is a Unix socket, and nobody has said what that means.
    #[error(
        "client IP: the peer is a Unix socket, which has no address; add `trust_unix_peer()` if \
         the process behind it is a proxy that sets the forwarding header, or \
         `skip_unix_peer()` to let the next source of the chain decide"
    )]
    UnixPeer,

    /// A source from outside this crate says why.
    #[error("key source: {0}")]
    Other(#[source] Box<dyn Error + Send + Sync>),
}

tollgate_core::debug_as_display!(KeyError);

/// Logs sources that cannot work: once in a while, because all requests fail alike. Clients are
/// not told, since they could do nothing about it.
#[derive(Debug, Default)]
pub(crate) struct FaultLog(Mutex<Option<Instant>>);

impl FaultLog {
    /// Often enough for a log that was rotated.
    const PAUSE: Duration = Duration::from_secs(60);

    pub(crate) fn report(&self, error: &KeyError) {
        let mut logged = self.0.lock();
        if logged.is_none_or(|at| at.elapsed() >= Self::PAUSE) {
            *logged = Some(Instant::now());
            tracing::error!(target: "tollgate", %error, "cannot tell who is asking");
        }
    }
}

/// One quota that everybody shares.
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
