/// The error of a verification key, or of a set of keys, that is not valid.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JwtKeyError {
    /// Not a key for this algorithm.
    #[error("JWT key for {algorithm}: not usable; expected {expected}")]
    Unusable {
        /// The algorithm.
        algorithm: &'static str,
        /// The cure: what to give instead.
        expected: &'static str,
    },

    /// jsonwebtoken has no cryptography, or two to choose from.
    #[error(
        "JWT keys: jsonwebtoken has no crypto provider: enable exactly one of its features \
         `rust_crypto` (feature `jwt-rust-crypto` of tollgate) and `aws_lc_rs`, or call \
         `install_default()` of one before you make a key"
    )]
    NoCryptoProvider,

    /// A PEM file as an HMAC secret: every client with the public key could sign.
    #[error(
        "JWT key for HS256: a PEM file is no secret; use `rs256_pem`, `es256_pem` or \
         `eddsa_pem` for a public key"
    )]
    PemAsSecret,

    /// An HMAC secret that can be guessed.
    #[error(
        "JWT key for HS256: {bytes} bytes; expected at least 32 random ones (`openssl rand 32`)"
    )]
    ShortSecret {
        /// Its length.
        bytes: usize,
    },

    /// An RSA key that is too weak, or larger than can be verified.
    #[error("JWT key for RS256: {bits} bits; expected 2048 to 4096")]
    RsaSize {
        /// Its length.
        bits: usize,
    },

    /// A set without keys verifies nothing.
    #[error("JWT key set: no usable key in it; give at least one for HS256, RS256, ES256 or EdDSA")]
    NoKeys,

    /// One of several keys has no name, so no token can ask for it.
    #[error("JWT key set: one of several keys has no `kid`; name each with `with_kid`")]
    NamelessKey,

    /// Two keys with one name.
    #[error("JWT key set: two keys with the kid {kid:?}; give each its own")]
    SameKid {
        /// The name.
        kid: String,
    },

    /// Not a JSON Web Key Set.
    #[error("JWT key set: not a JSON Web Key Set (RFC 7517 §5): {reason}")]
    NoKeySet {
        /// The message of the parser.
        reason: String,
    },
}

tollgate_core::debug_as_display!(JwtKeyError);
