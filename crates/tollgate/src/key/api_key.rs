//! API keys.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use http::{HeaderMap, HeaderName};
use sha2::{Digest, Sha256};

use super::credentials::{authorization, only_text};
use super::encode::{Tag, hashed};
use super::{KeyError, KeySource, Subject, SubjectKind, SubjectName};
use crate::RequestHead;

/// The API key of a request, if a verifier accepts it.
///
/// A key that is refused identifies nobody: the chain goes on, usually to the address.
/// So guessing keys neither wins a fresh quota nor spends a customer's. The key itself
/// is hashed at once and never kept or logged.
///
/// ```
/// use tollgate::key::{ApiKey, ApiKeys};
///
/// // `X-API-Key: …`, against the SHA-256 digests of the keys that were given out.
/// let digest = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae";
/// let by_header = ApiKey::in_x_api_key().one_of(ApiKeys::from_sha256_hex([digest])?);
///
/// // `Authorization: ApiKey …`, against whatever knows the keys.
/// let by_scheme = ApiKey::in_authorization("ApiKey").verified_by(|key| key.starts_with("k-"));
/// # Ok::<(), tollgate::key::ApiKeysError>(())
/// ```
#[derive(Clone)]
pub struct ApiKey {
    place: Place,
    verifier: Arc<dyn Fn(&str) -> bool + Send + Sync>,
}

/// Where to look for an API key. It is no source before it is told whom to believe.
#[derive(Clone, Debug)]
#[must_use]
pub struct UnverifiedApiKey(Place);

#[derive(Clone, Debug)]
enum Place {
    Header(HeaderName),
    Authorization(Arc<str>),
}

impl Place {
    fn find<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        match self {
            Self::Header(name) => only_text(headers, name),
            Self::Authorization(scheme) => authorization(headers, scheme),
        }
    }
}

impl ApiKey {
    /// In the header `X-API-Key`.
    pub const fn in_x_api_key() -> UnverifiedApiKey {
        Self::in_header(HeaderName::from_static("x-api-key"))
    }

    /// In the header `name`.
    pub const fn in_header(name: HeaderName) -> UnverifiedApiKey {
        UnverifiedApiKey(Place::Header(name))
    }

    /// In `Authorization: <scheme> <key>`. The scheme is case-insensitive.
    pub fn in_authorization(scheme: impl Into<Arc<str>>) -> UnverifiedApiKey {
        UnverifiedApiKey(Place::Authorization(scheme.into()))
    }
}

impl UnverifiedApiKey {
    /// What stands there, whoever sent it.
    pub(crate) fn find<'a>(&self, head: &RequestHead<'a>) -> Option<&'a str> {
        self.0.find(head.headers)
    }

    /// Believes the keys that `accepts` returns true for. It runs for every request that
    /// carries a key, so it must not block; compare secrets in constant time, or by digest
    /// as [`ApiKeys`] does.
    pub fn verified_by(self, accepts: impl Fn(&str) -> bool + Send + Sync + 'static) -> ApiKey {
        ApiKey { place: self.0, verifier: Arc::new(accepts) }
    }

    /// Believes the keys in the list.
    pub fn one_of(self, keys: ApiKeys) -> ApiKey {
        self.verified_by(move |key| keys.contains(key))
    }

    /// Believes every key.
    ///
    /// **Forgeable**: a new key for each request is a new quota for each request, and
    /// whoever learns a customer's key can spend the customer's quota. Only right behind
    /// something that has refused the bad keys already.
    pub fn trust_unverified(self) -> ApiKey {
        self.verified_by(|_| true)
    }
}

impl KeySource for ApiKey {
    fn subject(&self, head: &RequestHead<'_>) -> Result<Option<Subject>, KeyError> {
        let key = self.place.find(head.headers);
        let accepted = key.filter(|key| (self.verifier)(key));
        Ok(accepted.map(subject))
    }

    fn can_be_missing(&self) -> bool {
        true
    }

    fn named(&self, name: &SubjectName) -> Option<Subject> {
        let SubjectName::ApiKey(key) = name else { return None };
        (self.verifier)(key).then(|| subject(key))
    }
}

fn subject(key: &str) -> Subject {
    Subject { kind: SubjectKind::ApiKey, key: hashed(Tag::ApiKey, &[key.as_bytes()]) }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ApiKey").field(&self.place).finish()
    }
}

/// A list of API keys that keeps only their SHA-256 digests.
///
/// A look-up compares digests, which an attacker cannot steer, so its timing tells nothing
/// about a key. Plain SHA-256 is right for keys that were drawn at random; from a leaked
/// list, short or chosen ones can be guessed.
#[derive(Clone)]
pub struct ApiKeys(Arc<HashSet<[u8; 32]>>);

/// A digest that is none.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "API key digest number {position}: expected the SHA-256 of a key as 64 hex digits, as \
     `printf %s KEY | sha256sum` prints it"
)]
pub struct ApiKeysError {
    /// Which of the list, from 1. The text is withheld: it may be a key by mistake.
    pub position: usize,
}

tollgate_core::debug_as_display!(ApiKeysError);

impl ApiKeys {
    /// These keys, of which only the digests are kept.
    pub fn from_keys<K: AsRef<[u8]>>(keys: impl IntoIterator<Item = K>) -> Self {
        let digests = keys.into_iter().map(|key| Sha256::digest(key).into());
        Self(Arc::new(digests.collect()))
    }

    /// The keys whose SHA-256 digests these are, in hex of either case.
    ///
    /// # Errors
    /// One of them is not 64 hex digits.
    pub fn from_sha256_hex<K: AsRef<str>>(
        digests: impl IntoIterator<Item = K>,
    ) -> Result<Self, ApiKeysError> {
        let digests = digests.into_iter().enumerate().map(|(index, digest)| {
            parse_digest(digest.as_ref()).ok_or(ApiKeysError { position: index + 1 })
        });
        Ok(Self(Arc::new(digests.collect::<Result<_, _>>()?)))
    }

    /// Whether `key` is one of them.
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

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKeys({})", self.0.len())
    }
}

fn parse_digest(hex: &str) -> Option<[u8; 32]> {
    let hex = hex.as_bytes();
    if hex.len() != 64 {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let mut digest = [0; 32];
    for (byte, pair) in digest.iter_mut().zip(hex.chunks_exact(2)) {
        *byte = u8::try_from(digit(pair[0])? << 4 | digit(pair[1])?).ok()?;
    }
    Some(digest)
}
