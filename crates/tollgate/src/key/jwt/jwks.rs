//! Key sets in the format that issuers publish.

use jsonwebtoken::DecodingKey;
use jsonwebtoken::jwk::{
    AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyAlgorithm, PublicKeyUse,
};

use super::keys::Algorithm;
use super::{JwtKey, JwtKeyError, JwtKeys};

impl JwtKeys {
    /// Parses a JSON Web Key Set, which issuers publish under `jwks_uri`.
    ///
    /// Keys that cannot be used are skipped (RFC 7517 §5): other algorithms, other curves, keys for
    /// encryption, and secrets (`oct`), which must not be public.
    ///
    /// # Errors
    /// The text is not a key set, has no usable key, or contains keys with missing or equal names.
    pub fn from_jwks(json: &str) -> Result<Self, JwtKeyError> {
        let invalid =
            |error: serde_json::Error| JwtKeyError::NoKeySet { reason: error.to_string() };
        let set: JwkSet = serde_json::from_str(json).map_err(invalid)?;
        Self::new(set.keys.iter().filter_map(usable))
    }
}

fn usable(jwk: &Jwk) -> Option<JwtKey> {
    if matches!(&jwk.common.public_key_use, Some(usage) if *usage != PublicKeyUse::Signature) {
        return None;
    }
    let (algorithm, named) = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => (Algorithm::Rs256, KeyAlgorithm::RS256),
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => {
            (Algorithm::Es256, KeyAlgorithm::ES256)
        }
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
            (Algorithm::EdDsa, KeyAlgorithm::EdDSA)
        }
        _ => return None,
    };
    if matches!(jwk.common.key_algorithm, Some(other) if other != named) {
        return None;
    }
    let key = JwtKey::new(algorithm, DecodingKey::from_jwk(jwk)).ok()?;
    Some(match &jwk.common.key_id {
        Some(kid) => key.with_kid(kid),
        None => key,
    })
}
