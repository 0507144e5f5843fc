/// The error for an invalid verification key or key set.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JwtKeyError {
    /// The key is not valid for this algorithm.
    #[error("JWT key for {algorithm}: not usable; expected {expected}")]
    Unusable {
        /// The algorithm.
        algorithm: &'static str,
        /// The fix: a description of a valid key.
        expected: &'static str,
    },

    /// jsonwebtoken has no crypto provider, or several.
    #[error(
        "JWT keys: jsonwebtoken has no crypto provider: enable exactly one of its features \
         `rust_crypto` (feature `jwt-rust-crypto` of tollgate) and `aws_lc_rs`, or call \
         `install_default()` of one before you make a key"
    )]
    NoCryptoProvider,

    /// A PEM file as an HMAC secret. Every client that has the public key could sign tokens.
    #[error(
        "JWT key for HS256: a PEM file is not a secret; use `rs256_pem`, `es256_pem` or \
         `eddsa_pem` for a public key"
    )]
    PemAsSecret,

    /// An HMAC secret that can be guessed.
    #[error(
        "JWT key for HS256: {bytes} bytes; expected at least 32 random bytes (`openssl rand 32`)"
    )]
    ShortSecret {
        /// The secret's length in bytes.
        bytes: usize,
    },

    /// An RSA key that is too weak, or larger than jsonwebtoken can verify.
    #[error("JWT key for RS256: {bits} bits; expected 2048 to 4096")]
    RsaSize {
        /// The key's length in bits.
        bits: usize,
    },

    /// A set without usable keys cannot verify tokens.
    #[error("JWT key set: no usable key in it; give at least one for HS256, RS256, ES256 or EdDSA")]
    NoKeys,

    /// A key in a set of several keys has no name, so no token can refer to it.
    #[error("JWT key set: one of several keys has no `kid`; name each with `with_kid`")]
    NamelessKey,

    /// Two keys with the same name.
    #[error("JWT key set: two keys with the kid {kid:?}; give each its own")]
    SameKid {
        /// The shared name.
        kid: String,
    },

    /// The text is not a JSON Web Key Set.
    #[error("JWT key set: not a JSON Web Key Set (RFC 7517 §5): {reason}")]
    NoKeySet {
        /// The parser's message.
        reason: String,
    },
}

tollgate_core::debug_as_display!(JwtKeyError);
