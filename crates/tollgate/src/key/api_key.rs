use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use http::{HeaderMap, HeaderName};
use sha2::{Digest, Sha256};

use super::credentials::{authorization, only_text};
use super::encode::{Tag, hashed};
use super::format::hex;
use super::name::unhex;
use super::{KeyError, KeySource, Subject, SubjectKind, SubjectName};
use crate::head::RequestHead;

/// Key source: the API key of a request, if a verifier accepts it.
///
/// A rejected key does not identify a client, so the chain continues, usually with the address.
/// This way, guessing keys neither creates a new quota nor uses a customer's quota. A request with
/// several values in the header is rejected ([`KeyError::Ambiguous`]). The key is hashed immediately
/// and never stored or logged.
///
/// ```
/// use tollgate::key::{ApiKey, ApiKeys};
///
/// // `X-API-Key: …`, compared with the SHA-256 digests of the issued keys.
/// let digest = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae";
/// let by_header = ApiKey::in_x_api_key().one_of(ApiKeys::from_sha256_hex([digest])?);
///
/// // `Authorization: ApiKey …`, verified by a closure.
/// let by_scheme = ApiKey::in_authorization("ApiKey").verified_by(|key| key.starts_with("k-"));
/// # Ok::<(), tollgate::key::ApiKeysError>(())
/// ```
#[derive(Clone)]
pub struct ApiKey {
    header: ApiKeyHeader,
    verifier: Arc<dyn Fn(&str) -> bool + Send + Sync>,
}

/// Where a request carries its API key. Add a verifier to turn it into a key source.
#[derive(Clone, Debug)]
#[must_use]
pub struct UnverifiedApiKey(ApiKeyHeader);

#[derive(Clone, Debug)]
enum ApiKeyHeader {
    Header(HeaderName),
    Authorization(Arc<str>),
}

impl ApiKeyHeader {
    fn find<'a>(&self, headers: &'a HeaderMap) -> Result<Option<&'a str>, KeyError> {
        match self {
            Self::Header(name) => only_text(headers, name),
            Self::Authorization(scheme) => authorization(headers, scheme),
        }
    }
}

impl ApiKey {
    /// Reads API keys from the header `X-API-Key`.
    pub const fn in_x_api_key() -> UnverifiedApiKey {
        Self::in_header(HeaderName::from_static("x-api-key"))
    }

    /// Reads API keys from the header `name`.
    pub const fn in_header(name: HeaderName) -> UnverifiedApiKey {
        UnverifiedApiKey(ApiKeyHeader::Header(name))
    }

    /// Reads API keys from `Authorization: <scheme> <key>`. The scheme is case-insensitive.
    pub fn in_authorization(scheme: impl Into<Arc<str>>) -> UnverifiedApiKey {
        UnverifiedApiKey(ApiKeyHeader::Authorization(scheme.into()))
    }
}

impl UnverifiedApiKey {
    pub(crate) fn find<'a>(&self, head: &RequestHead<'a>) -> Result<Option<&'a str>, KeyError> {
        self.0.find(head.headers)
    }

    /// Accepts API keys for which `accepts` returns `true`. The closure runs for every request with
    /// a key, so it must not block. Compare secrets in constant time, or by digest like
    /// [`ApiKeys`].
    pub fn verified_by(self, accepts: impl Fn(&str) -> bool + Send + Sync + 'static) -> ApiKey {
        ApiKey { header: self.0, verifier: Arc::new(accepts) }
    }

    /// Accepts the API keys in this list.
    pub fn one_of(self, keys: ApiKeys) -> ApiKey {
        self.verified_by(move |key| keys.contains(key))
    }

    /// Accepts every API key, so clients choose their own quota.
    ///
    /// **Forgeable**: a client can send a new key with each request to get a new quota, or a
    /// customer's key to use the customer's quota. Use it only behind a service that rejects wrong
    /// keys.
    pub fn trust_unverified(self) -> ApiKey {
        self.verified_by(|_| true)
    }
}

impl KeySource for ApiKey {
    fn subject(&self, head: &RequestHead<'_>) -> Result<Option<Subject>, KeyError> {
        let key = self.header.find(head.headers)?;
        let accepted = key.filter(|key| (self.verifier)(key));
        Ok(accepted.map(subject))
    }

    fn named(&self, name: &SubjectName) -> Option<Subject> {
        let SubjectName::ApiKey(key) = name else { return None };
        (self.verifier)(key).then(|| subject(key))
    }

    fn name(&self, head: &RequestHead<'_>) -> Option<String> {
        Some(hex(&ApiKeys::digest(self.header.find(head.headers).ok()??)))
    }
}

fn subject(key: &str) -> Subject {
    Subject { kind: SubjectKind::ApiKey, key: hashed(Tag::ApiKey, &[key.as_bytes()]) }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ApiKey").field(&self.header).finish()
    }
}

/// A list of API keys that stores only their SHA-256 digests.
///
/// Lookups compare digests, which an attacker cannot choose, so the timing reveals no part of a
/// key. This is safe for random keys, but short or chosen keys can be guessed from a leaked list.
#[derive(Clone)]
pub struct ApiKeys(Arc<HashSet<[u8; 32]>>);

/// The error for an invalid API key digest.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[doc(alias = "TG0217")]
#[error(
    "API key digest number {position}: expected the SHA-256 of a key as 64 hex digits: \
     `printf %s KEY | sha256sum` [TG0217]"
)]
pub struct ApiKeysError {
    /// The position in the list, starting at 1. The text is withheld because it may be a key by
    /// mistake.
    pub position: usize,
}

tollgate_core::debug_as_display!(ApiKeysError);

impl ApiKeys {
    /// Makes a list of these API keys and stores only their digests.
    pub fn from_keys<K: AsRef<[u8]>>(keys: impl IntoIterator<Item = K>) -> Self {
        let digests = keys.into_iter().map(|key| Sha256::digest(key).into());
        Self(Arc::new(digests.collect()))
    }

    /// Makes a list from the SHA-256 digests of API keys, in hex.
    ///
    /// # Errors
    /// An entry is not 64 hex digits.
    pub fn from_sha256_hex<K: AsRef<str>>(
        digests: impl IntoIterator<Item = K>,
    ) -> Result<Self, ApiKeysError> {
        let digests = digests.into_iter().enumerate();
        let digests = digests.map(|(index, digest)| digest_of_hex(index, digest.as_ref()));
        Ok(Self(Arc::new(digests.collect::<Result<_, _>>()?)))
    }

    /// Returns whether `key` is in the list.
    pub fn contains(&self, key: &str) -> bool {
        self.contains_digest(&Self::digest(key))
    }

    pub(crate) fn digest(key: &str) -> [u8; 32] {
        Sha256::digest(key).into()
    }

    pub(crate) fn digests(&self) -> impl Iterator<Item = [u8; 32]> {
        self.0.iter().copied()
    }

    pub(crate) fn contains_digest(&self, digest: &[u8; 32]) -> bool {
        self.0.contains(digest)
    }
}

pub(super) fn digest_of_hex(index: usize, digest: &str) -> Result<[u8; 32], ApiKeysError> {
    let bytes = unhex(digest).and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or(ApiKeysError { position: index + 1 })
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKeys({})", self.0.len())
    }
}
