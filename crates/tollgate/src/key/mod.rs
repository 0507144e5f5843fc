//! Key sources, which find a request's [`Key`]: a client address, an API key, a user.
//!
//! A [`KeySource`] reads the [`RequestHead`] and returns a [`Subject`], no subject, or an error if
//! the request is ambiguous or the server is misconfigured. [`KeySource::or`] and [`chain`] fall
//! back to other sources (first the user, then the API key, then the address). A tuple combines
//! sources (per user *and* route).
//!
//! | source | subject | forgeable by a client |
//! |---|---|---|
//! | [`Global`] | all clients together | no |
//! | [`ClientIp`] | the address, IPv6 by /64 | no, if `behind` lists exactly the proxies |
//! | [`ApiKey`] | a key that a verifier accepts | no, unless `trust_unverified` |
//! | [`UnverifiedApiKey::by_group`] | the group of a listed key, for example its team | no |
//! | `JwtUser` (feature `jwt`) | issuer and subject in a verified token | no |
//! | [`FromExtension`] | a value from an outer layer | depends on the layer |
//! | [`MatchedRoute`] | the pattern of the route | no |
//! | [`PathParam`] | a parameter of the route, percent-decoded | **yes** |
//! | [`Header`] | a header's text | **yes** |
//! | [`from_fn`] | a closure's result | depends on the closure |
//!
//! A forgeable key does not limit attackers: a client can send a new value with each request to get
//! a new quota, or send a victim's value to use up the victim's quota. Use a forgeable source only
//! alongside another limit.
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
mod api_key_groups;
mod chain;
mod credentials;
mod encode;
mod extension;
pub(crate) mod format;
mod from_fn;
mod header;
mod ip;
#[cfg(feature = "jwt")]
mod jwt;
pub(crate) mod missing;
mod name;
mod path_param;
pub(crate) mod route;
mod source;
mod tuple;

pub use tollgate_core::Key;

pub use crate::head::RequestHead;

pub use api_key::{ApiKey, ApiKeys, ApiKeysError, UnverifiedApiKey};
pub use api_key_groups::ApiKeyGroups;
pub use chain::{Chain, chain};
pub use extension::FromExtension;
pub use format::{SubjectFormat, SubjectFormatter};
pub use from_fn::{KeyFromFn, from_fn, from_ref, try_from_fn};
pub use header::Header;
pub use ip::{ClientIp, ClientIpError, TrustedProxies, UnixPeer};
pub(crate) use ip::{is_untrusted_proxy, network};
#[cfg(feature = "jwt")]
pub use jwt::{JwtKey, JwtKeyError, JwtKeys, JwtUser, JwtVerifier, TokenCheck};
pub use name::{SubjectName, SubjectNameError};
pub use path_param::PathParam;
pub use route::{MatchedRoute, RoutePattern};
pub use source::{KeyError, KeySource, Or, Subject};
pub use tollgate_engine::SubjectKind;

/// Key source: all clients share one quota.
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

    fn name(&self, _: &RequestHead<'_>) -> Option<String> {
        Some("global".to_owned())
    }
}

#[cfg(test)]
mod tests;
