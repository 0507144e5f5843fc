use std::fmt;
use std::panic::catch_unwind;

use jsonwebtoken::errors::Error;
use jsonwebtoken::{DecodingKey, DecodingKeyKind, crypto};

use pkcs1::RsaPublicKey;

use super::JwtKeyError;

/// A key's algorithm. Each key has exactly one, because a public key for one algorithm must not
/// serve as a secret for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    Hs256,
    Rs256,
    Es256,
    EdDsa,
}

impl Algorithm {
    pub(super) const ALL: [Self; 4] = [Self::Hs256, Self::Rs256, Self::Es256, Self::EdDsa];
}

impl From<Algorithm> for jsonwebtoken::Algorithm {
    fn from(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Hs256 => Self::HS256,
            Algorithm::Rs256 => Self::RS256,
            Algorithm::Es256 => Self::ES256,
            Algorithm::EdDsa => Self::EdDSA,
        }
    }
}

/// A verification key for a single algorithm, with its name (`kid`) in tokens. The key is checked
/// when it is made, so a wrong file is a startup error.
#[derive(Clone)]
pub struct JwtKey {
    kid: Option<String>,
    pub(super) algorithm: Algorithm,
    pub(super) decoding: DecodingKey,
}

impl JwtKey {
    /// Reads the secret that signs and verifies tokens, for HS256.
    ///
    /// # Errors
    /// The secret is shorter than 32 bytes (RFC 7518 §3.2), so a client with a token could guess it
    /// offline; or it is a PEM file, because a public key is not a secret.
    pub fn hs256(secret: &[u8]) -> Result<Self, JwtKeyError> {
        if secret.windows(11).any(|text| text == b"-----BEGIN ") {
            return Err(JwtKeyError::PemAsSecret);
        }
        if secret.len() < 32 {
            return Err(JwtKeyError::ShortSecret { bytes: secret.len() });
        }
        Self::new(Algorithm::Hs256, Ok(DecodingKey::from_secret(secret)))
    }

    /// Reads a public RSA key in PEM format, for RS256.
    ///
    /// # Errors
    /// The key is private, of another type, or shorter than 2048 bits (RFC 7518 §3.3).
    pub fn rs256_pem(pem: &[u8]) -> Result<Self, JwtKeyError> {
        Self::new(Algorithm::Rs256, DecodingKey::from_rsa_pem(pem))
    }

    /// Reads a public P-256 key in PEM format, for ES256.
    ///
    /// # Errors
    /// The key is private, of another type, or on another curve.
    pub fn es256_pem(pem: &[u8]) -> Result<Self, JwtKeyError> {
        Self::new(Algorithm::Es256, DecodingKey::from_ec_pem(pem))
    }

    /// Reads a public Ed25519 key in PEM format, for EdDSA.
    ///
    /// # Errors
    /// The key is private or of another type.
    pub fn eddsa_pem(pem: &[u8]) -> Result<Self, JwtKeyError> {
        Self::new(Algorithm::EdDsa, DecodingKey::from_ed_pem(pem))
    }

    /// Sets the key's name (`kid`) in tokens.
    #[must_use]
    pub fn with_kid(self, kid: impl Into<String>) -> Self {
        Self { kid: Some(kid.into()), ..self }
    }

    pub(super) fn new(
        algorithm: Algorithm,
        decoding: Result<DecodingKey, Error>,
    ) -> Result<Self, JwtKeyError> {
        let decoding = decoding.map_err(|_| unusable(algorithm))?;
        let is_valid = match algorithm {
            Algorithm::Hs256 => true,
            // jsonwebtoken does not inspect the key before the first token.
            Algorithm::Rs256 => {
                check_size(&decoding)?;
                true
            }
            // The length of a P-256 point. Points on the other curves are longer.
            Algorithm::Es256 => decoding.try_get_as_bytes().is_ok_and(|key| key.len() == 65),
            // jsonwebtoken takes the first 32 bytes without checking the length.
            Algorithm::EdDsa => decoding.try_get_as_bytes().is_ok_and(|key| key.len() == 32),
        };
        // The program chooses the crypto provider for all users of jsonwebtoken. If it chose none,
        // jsonwebtoken would panic at the first token.
        let verified = catch_unwind(|| crypto::verify("", b"", &decoding, algorithm.into()));
        match verified {
            Err(_) => Err(JwtKeyError::NoCryptoProvider),
            Ok(Ok(_)) if is_valid => Ok(Self { kid: None, algorithm, decoding }),
            Ok(_) => Err(unusable(algorithm)),
        }
    }
}

fn check_size(key: &DecodingKey) -> Result<(), JwtKeyError> {
    let modulus = match key.kind() {
        DecodingKeyKind::RsaModulusExponent { n, .. } => n,
        // A private key contains more integers, so this rejects it, too.
        DecodingKeyKind::SecretOrDer(der) => {
            let key = RsaPublicKey::try_from(&**der).map_err(|_| unusable(Algorithm::Rs256))?;
            key.modulus.as_bytes()
        }
    };
    let zeros = modulus.iter().take_while(|byte| **byte == 0).count();
    let bits = match modulus.get(zeros) {
        Some(first) => (modulus.len() - zeros) * 8 - first.leading_zeros() as usize,
        None => 0,
    };
    // The upper bound is jsonwebtoken's: it rejects all tokens signed with a larger key.
    if (2048..=4096).contains(&bits) { Ok(()) } else { Err(JwtKeyError::RsaSize { bits }) }
}

fn unusable(algorithm: Algorithm) -> JwtKeyError {
    let (algorithm, expected) = match algorithm {
        Algorithm::Hs256 => ("HS256", "a secret"),
        Algorithm::Rs256 => ("RS256", "the public RSA key (`openssl pkey -pubout`)"),
        Algorithm::Es256 => ("ES256", "the public P-256 key (`openssl pkey -pubout`)"),
        Algorithm::EdDsa => ("EdDSA", "the public Ed25519 key (`openssl pkey -pubout`)"),
    };
    JwtKeyError::Unusable { algorithm, expected }
}

impl fmt::Debug for JwtKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JwtKey({:?}, kid {:?})", self.algorithm, self.kid)
    }
}

/// A set of verification keys with distinct names.
#[derive(Clone, Debug)]
pub struct JwtKeys(Vec<JwtKey>);

impl JwtKeys {
    /// Makes a set of these verification keys.
    ///
    /// # Errors
    /// The set is empty, one of several keys has no `kid`, or two keys have the same `kid`.
    pub fn new(keys: impl IntoIterator<Item = JwtKey>) -> Result<Self, JwtKeyError> {
        let keys: Vec<_> = keys.into_iter().collect();
        if keys.is_empty() {
            return Err(JwtKeyError::NoKeys);
        }
        for (index, key) in keys.iter().enumerate() {
            match &key.kid {
                None if keys.len() > 1 => return Err(JwtKeyError::NamelessKey),
                Some(kid) if keys[..index].iter().any(|other| other.kid == key.kid) => {
                    return Err(JwtKeyError::SameKid { kid: kid.clone() });
                }
                _ => {}
            }
        }
        Ok(Self(keys))
    }

    pub(super) const fn none() -> Self {
        Self(Vec::new())
    }

    /// Returns the names (`kid`) of the keys in the set.
    pub fn kids(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|key| key.kid.as_deref())
    }

    pub(super) fn find(&self, kid: Option<&str>) -> Option<&JwtKey> {
        match (&*self.0, kid) {
            ([only], None) => Some(only),
            ([only], Some(_)) if only.kid.is_none() => Some(only),
            (keys, Some(kid)) => keys.iter().find(|key| key.kid.as_deref() == Some(kid)),
            (_, None) => None,
        }
    }
}
